"""The bytes of vLLM 0.33.0's NIXL connector, after a description of its wire formats: notifications, the handshake side
channel, transfer parameters. Nothing but the standard library; testdata holds the same bytes as vLLM's own classes make them.
"""

import hashlib
import json
import struct

CONNECTOR_VERSION = 15
GET_META = b"get_meta_msg"
HEARTBEAT, REGISTRATION = "HB:", b"PUSH_REG:"


# ---- msgpack ----


def pack(v):
    if v is None or isinstance(v, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[v]
    if isinstance(v, int):
        if -32 <= v < 128:
            return struct.pack(">b", v)
        if v < 0:
            forms = ((0xD0, ">b", 7), (0xD1, ">h", 15), (0xD2, ">i", 31), (0xD3, ">q", 63))
            return next(bytes([tag]) + struct.pack(form, v) for tag, form, bits in forms if v >= -(1 << bits))
        forms = ((0xCC, ">B", 8), (0xCD, ">H", 16), (0xCE, ">I", 32), (0xCF, ">Q", 64))
        return next(bytes([tag]) + struct.pack(form, v) for tag, form, bits in forms if v < 1 << bits)
    if isinstance(v, float):
        return b"\xcb" + struct.pack(">d", v)
    if isinstance(v, (bytes, bytearray)):
        return _head(len(v), None, (0xC4, 0xC5, 0xC6)) + bytes(v)
    if isinstance(v, str):
        b = v.encode()
        return _head(len(b), (0xA0, 32), (0xD9, 0xDA, 0xDB)) + b
    if isinstance(v, (list, tuple)):
        return _head(len(v), (0x90, 16), (None, 0xDC, 0xDD)) + b"".join(pack(x) for x in v)
    if isinstance(v, dict):
        return _head(len(v), (0x80, 16), (None, 0xDE, 0xDF)) + b"".join(pack(k) + pack(x) for k, x in v.items())
    raise TypeError(f"no msgpack for {type(v).__name__}")


def _head(n, short, tags):
    if short is not None and n < short[1]:
        return bytes([short[0] + n])
    for tag, form, bits in zip(tags, (">B", ">H", ">I"), (8, 16, 32)):
        if tag is not None and n < 1 << bits:
            return bytes([tag]) + struct.pack(form, n)
    raise ValueError(f"{n} is too long")


class _Reader:
    def __init__(self, b):
        self.b, self.at = b, 0

    def take(self, n):
        if self.at + n > len(self.b):
            raise ValueError("truncated")
        self.at += n
        return self.b[self.at - n : self.at]

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self):
        c = self.take(1)[0]
        if c < 0x80 or c >= 0xE0:
            return c if c < 0x80 else c - 256
        if c < 0x90:
            return self.map(c & 15)
        if c < 0xA0:
            return [self.value() for _ in range(c & 15)]
        if c < 0xC0:
            return self.take(c & 31).decode()
        if c in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[c]
        lengths = (">B", ">H", ">I")
        if 0xC4 <= c <= 0xC6:
            return self.take(self.number(lengths[c - 0xC4]))
        if 0xCA <= c <= 0xD3:
            return self.number((">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q")[c - 0xCA])
        if 0xD9 <= c <= 0xDB:
            return self.take(self.number(lengths[c - 0xD9])).decode()
        if c in (0xDC, 0xDD):
            return [self.value() for _ in range(self.number(lengths[c - 0xDB]))]
        if c in (0xDE, 0xDF):
            return self.map(self.number(lengths[c - 0xDD]))
        raise ValueError(f"byte {c:#x}")

    def map(self, n):
        out = {}
        for _ in range(n):
            key = self.value()
            out[key] = self.value()
        return out


def unpack(b):
    r = _Reader(b)
    v = r.value()
    if r.at != len(b):
        raise ValueError("bytes follow the value")
    return v


# ---- notifications ----


def heartbeat(ids):
    return (HEARTBEAT + ",".join(ids)).encode()


def completion(request_id, readers):
    return f"{request_id}:{readers}".encode()


def registration(**fields):
    return REGISTRATION + pack({key: fields[key] for key in REGISTRATION_KEYS})


REGISTRATION_KEYS = (
    "request_id", "decode_engine_id", "decode_host", "decode_port", "decode_tp_size", "local_block_ids",
    "remote_engine_id", "remote_host", "remote_port", "remote_tp_size", "remote_pp_size",
)


def readers_of(reader_tp, owner_tp):
    """How many reader ranks report to one owner rank: the suffix of a completion."""
    return max(1, reader_tp // owner_tp)


# ---- reads ----


def descriptors(blocks, region_blocks):
    """Descriptor ids of a read: region after region, each region's blocks behind those of the regions before."""
    return [sum(region_blocks[:i]) + b for i in range(len(region_blocks)) for b in blocks]


def tail(theirs, missing):
    """Of the owner's blocks the last ones, which the reader lacks."""
    return theirs[len(theirs) - missing :]


# ---- handshake ----


def handshake_request(pp_rank, rank):
    return pack((GET_META, pp_rank, rank))


def handshake_payload(digest, metadata):
    return pack({"compatibility_hash": digest, "agent_metadata_bytes": metadata})


METADATA = {  # all keys in order of declaration; None: required, else the default
    "engine_id": None, "agent_metadata": None, "kv_caches_base_addr": None, "device_id": None, "num_blocks": None,
    "block_lens": None, "block_strides": None, "kv_cache_layout": None, "block_size": None, "ssm_sizes": None,
    "attn_backend_name": None, "physical_blocks_per_logical_kv_block": None,
    "region_num_blocks": (None,), "region_group_ids": (None,), "region_names": (None,), "region_mem_types": (None,),
    "dcp_size": (1,), "pcp_size": (1,), "ple_block_len": (None,), "region_members": ([],), "packed_member_layouts": ({},),
}


def metadata(**fields):
    unknown = set(fields) - set(METADATA)
    if unknown:
        raise ValueError(f"no such keys: {sorted(unknown)}")
    return pack({key: fields[key] if default is None else fields.get(key, default[0]) for key, default in METADATA.items()})


def read_metadata(b):
    """A peer's map, as vLLM's decoder takes it: unknown keys are skipped, missing ones without a default fail."""
    given = unpack(b)
    missing = [key for key, default in METADATA.items() if default is None and key not in given]
    if missing:
        raise ValueError(f"keys are missing: {missing}")
    return {key: given.get(key, default and default[0]) for key, default in METADATA.items()}


def compatibility_hash(mode="pull", **factors):
    factors = {
        "vllm_version": "0.33.0", "nixl_connector_version": CONNECTOR_VERSION, "model": "stand-in", "dtype": "torch.bfloat16",
        "num_kv_heads": 8, "head_size": 64, "num_hidden_layers": 2, "attn_backend_name": "FLASH_ATTN",
        "cache_dtype": "auto", "is_hma_enabled": False, "speculative_config": None, "transfer_mode": mode, **factors,
    }
    return hashlib.sha256(json.dumps(factors, sort_keys=True).encode()).hexdigest()


# ---- transfer parameters ----


def response_params(*, engine_id, request_id, blocks, host, port, tp_size, tokens, generation, expiry=None, owner_is_decode=False):
    """The object that an owner answers when a request has finished there; key order is vLLM's."""
    return {
        "do_remote_prefill": not owner_is_decode, "do_remote_decode": owner_is_decode,
        "remote_block_ids": blocks, "remote_engine_id": engine_id, "remote_request_id": request_id,
        "remote_host": host, "remote_port": port, "tp_size": tp_size, "dcp_size": 1, "pp_size": 1,
        "remote_num_tokens": tokens, "remote_blocks_expiry_time": expiry, "remote_registration_generation": generation,
        "transfer_mode": "pull",
    }
