"""Stock vLLM's two ends of the handshake side channel, after the description of its wire formats, over libzmq.

vllm.py listen HOST ENGINE HASH PP TP     prints its port, serves, ends with stdin
vllm.py ask HOST PORT ENGINE HASH PP TP   one handshake; prints rank, blob length, offset and round trip of each rank
vllm.py connects HOST PORT COUNT          that many handshakes of one rank, each with its own context
vllm.py strange HOST PORT                 requests that no vLLM sends; prints answered or dropped for each
All but listen print "ok" last.
"""

import os
import sys
import time

import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3, "tests", "stockpeer", "peer"))
from wire import pack, unpack  # noqa: E402


def metadata(engine, pp, rank):
    return pack({
        "engine_id": engine, "agent_metadata": b"blob of %d %d" % (pp, rank), "kv_caches_base_addr": [0x7F0000000000, 0x7F1000000000],
        "device_id": rank, "num_blocks": 113, "block_lens": [4096, 4096], "block_strides": [8192, 8192], "kv_cache_layout": "LBHNC",
        "block_size": 16, "ssm_sizes": (0, 0), "attn_backend_name": "FLASH_ATTN", "physical_blocks_per_logical_kv_block": 1,
        "region_num_blocks": None, "region_group_ids": None, "region_names": ["layer.%d" % i for i in range(2)],
        "region_mem_types": ["VRAM", "VRAM"], "dcp_size": 1, "pcp_size": 1, "ple_block_len": None,
        "region_members": [["layer.0"], ["layer.1"]], "packed_member_layouts": {"layer.0": (0, 4096)},
    })


REQUIRED = (
    "engine_id", "agent_metadata", "kv_caches_base_addr", "device_id", "num_blocks", "block_lens", "block_strides", "kv_cache_layout",
    "block_size", "ssm_sizes", "attn_backend_name", "physical_blocks_per_logical_kv_block",
)


def listen(host, engine, digest, pp_size, tp_size):
    payloads = {
        (pp, rank): pack({"compatibility_hash": digest, "agent_metadata_bytes": metadata(engine, pp, rank)})
        for pp in range(pp_size) for rank in range(tp_size)
    }
    ctx = zmq.Context()
    sock = ctx.socket(zmq.ROUTER)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.RCVHWM, 0)
    sock.setsockopt(zmq.SNDHWM, 0)
    sock.setsockopt(zmq.IPV6, int(":" in host))
    print(sock.bind_to_random_port(f"tcp://{host}"), flush=True)
    poller = zmq.Poller()
    poller.register(sock, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if sys.stdin.fileno() in ready:
            break
        try:  # what ends the thread in vLLM leaves the socket open and nobody at it
            identity, _, msg = sock.recv_multipart()
            what, pp, rank = unpack(msg)
            if what != b"get_meta_msg":
                print("unexpected", what, file=sys.stderr)
            sock.send_multipart((identity, b"", payloads[(pp, rank)], pack(time.perf_counter())))
        except (ValueError, KeyError):
            poller.unregister(sock)
    ctx.destroy(linger=0)


def request(host, port, timeout_ms=5000):
    ctx = zmq.Context()
    sock = ctx.socket(zmq.REQ)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.IPV6, int(":" in host))
    sock.setsockopt(zmq.RCVTIMEO, timeout_ms)
    sock.connect(f"tcp://{host}:{port}")
    return ctx, sock


def ask_rank(sock, pp, rank, engine=None, digest=None):
    sent = time.perf_counter()
    sock.send(pack([b"get_meta_msg", pp, rank]))
    frames = sock.recv_multipart()
    received = time.perf_counter()
    assert len(frames) == 2, len(frames)
    payload = unpack(frames[0])
    if digest is not None:
        assert payload["compatibility_hash"] == digest, payload["compatibility_hash"]
    meta = unpack(payload["agent_metadata_bytes"])
    for key in REQUIRED:
        assert key in meta, key
    if engine is not None:
        assert meta["engine_id"] == engine, meta["engine_id"]
    stamp = unpack(frames[1])
    assert isinstance(stamp, float)
    return meta, stamp - (sent + received) / 2, received - sent


def ask(host, port, engine, digest, pp_size, tp_size):
    ctx, sock = request(host, port)
    for pp in range(pp_size):
        for rank in range(tp_size):
            meta, offset, span = ask_rank(sock, pp, rank, engine, digest)
            print(pp, rank, meta["agent_metadata"].decode(), round(offset * 1e9), round(span * 1e9))
    ctx.destroy(linger=0)


def connects(host, port, count):
    for _ in range(count):
        ctx, sock = request(host, port, 30000)
        ask_rank(sock, 0, 0)
        ctx.destroy(linger=0)


def strange(host, port):
    for name, frames in (
        ("other", [pack([b"hello", 0, 0])]),
        ("text", [pack(["get_meta_msg", 0, 0])]),
        ("nil", [pack([None, 0, 0])]),
        ("rank", [pack([b"get_meta_msg", 0, 99])]),
        ("empty", [b""]),
        ("two", [pack([b"get_meta_msg", 0])]),
        ("float", [pack([b"get_meta_msg", 0, 0.0])]),
        ("frames", [pack([b"get_meta_msg", 0, 0])] * 2),
        ("nested", [b"\x91" * 4000]),
    ):
        ctx, sock = request(host, port, 30000)
        monitor = sock.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        sock.send_multipart(frames)
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        ready = dict(poller.poll(30000))
        if sock in ready:
            print(name, "answered" if len(sock.recv_multipart()) == 2 else "odd")
        else:
            print(name, "dropped" if monitor in ready else "left alone")
        sock.disable_monitor()
        ctx.destroy(linger=0)
    connects(host, port, 1)


mode, host, *args = sys.argv[1:]
if mode == "listen":
    listen(host, args[0], args[1], int(args[2]), int(args[3]))
else:
    port = int(args[0])
    if mode == "ask":
        ask(host, port, args[1], args[2], int(args[3]), int(args[4]))
    elif mode == "connects":
        connects(host, port, int(args[1]))
    elif mode == "strange":
        strange(host, port)
    print("ok")
