"""Compares the stand-in's bytes with those of vLLM's classes, and with the vectors of the description of the wire.

usage: golden.py vllm.tsv
"""

import json
import sys

import wire

want = dict(line.rstrip("\n").split("\t") for line in open(sys.argv[1]))
want = {name: bytes.fromhex(b) for name, b in want.items()}
SMALL = dict(
    engine_id="E", agent_metadata=b"\x01\x02", kv_caches_base_addr=[0x7F0000000000], device_id=0, num_blocks=8, block_lens=[4096],
    block_strides=[4096], kv_cache_layout="LBHNC", block_size=16, ssm_sizes=(0, 0), attn_backend_name="FLASH_ATTN",
    physical_blocks_per_logical_kv_block=1,
)
FULL = dict(
    engine_id="engine-" + "e" * 40, agent_metadata=bytes(range(256)) * 2, kv_caches_base_addr=[2**47 + i * 2**31 for i in range(20)],
    device_id=7, num_blocks=70000, block_lens=[65536] * 20, block_strides=[131072] * 20, kv_cache_layout="LBHNC", block_size=128,
    ssm_sizes=(300, 70000), attn_backend_name="FLASHINFER", physical_blocks_per_logical_kv_block=2, region_num_blocks=[70000] * 20,
    region_group_ids=[0, -1] * 10, region_names=[f"model.layers.{i}.attn" for i in range(20)], region_mem_types=["VRAM"] * 20,
    dcp_size=2, pcp_size=1, ple_block_len=4096, region_members=[[f"model.layers.{i}.attn"] for i in range(20)],
    packed_member_layouts={"model.layers.0.attn": (0, 4096)},
)
IDS = {"plain": "chatcmpl-0a-89abcdef", "comma": "a,b", "colon": "a:b", "hb": "HB:job-1", "utf8": "größe-ü", "long": "x" * 1000}
PARAMS = dict(engine_id="P", request_id="r1-89abcdef", blocks=[[3, 4, 9]], host="127.0.0.1", port=5600, tp_size=1, tokens=40, generation=1)

got = {f"heartbeat.{name}": wire.heartbeat([id]) for name, id in IDS.items()}
got |= {f"completion.{name}": wire.completion(id, wire.readers_of(1, 1)) for name, id in IDS.items()}
got |= {
    "heartbeat.two": wire.heartbeat(["a", "b"]),
    "completion.of-two": wire.completion("r1", wire.readers_of(2, 1)),
    "read": json.dumps({
        "op": "READ", "here": wire.descriptors([1, 0], [64, 64]), "there": wire.descriptors(wire.tail([3, 4, 9], 2), [100, 100]),
        "message": wire.completion("r1", wire.readers_of(2, 1)).decode(),
    }).encode(),
    "request.0.0": wire.handshake_request(0, 0),
    "request.0.3": wire.handshake_request(0, 3),
    "request.1.200": wire.handshake_request(1, 200),
    "stamp": wire.pack(12345.5),
    "metadata.small": wire.metadata(**SMALL),
    "metadata.full": wire.metadata(**FULL),
    "payload": wire.handshake_payload("ab" * 32, wire.metadata(**SMALL)),
    "params.first-turn": json.dumps(wire.response_params(**PARAMS)).encode(),
    "params.second-turn": json.dumps(wire.response_params(**PARAMS, owner_is_decode=True, expiry=1480.25)).encode(),
    "registration": wire.registration(**json.loads(want["registration.fields"])),
    "registration.fields": want["registration.fields"],
}
wrong = [name for name in sorted(want.keys() | got.keys()) if want.get(name) != got.get(name)]

# The vectors of the description, shortened where its text shortens them.
VECTORS = {
    "a request for (0, 3)": (wire.handshake_request(0, 3), "93c40c6765745f6d6574615f6d73670003"),
    "the second frame of a reply": (wire.pack(12345.5), "cb40c81cc000000000"),
    "a payload": (
        wire.handshake_payload("ab" * 32, b"\x80"),
        "82b2636f6d7061746962696c6974795f68617368d940" + "6162" * 32 + "b46167656e745f6d657461646174615f6279746573c40180",
    ),
    "a heartbeat": (wire.heartbeat(["a", "b"]), "48423a612c62"),
    "a completion": (wire.completion("r1", 2), "72313a32"),
    "a registration": (
        wire.registration(request_id="d", decode_engine_id="D", decode_host="h", decode_port=5600, decode_tp_size=1, local_block_ids=([1, 2],),
                          remote_engine_id="P", remote_host="h2", remote_port=5601, remote_tp_size=1, remote_pp_size=1),
        "505553485f5245473a8baa726571756573745f6964a164b06465636f64655f656e67696e655f6964a144ab6465636f64655f686f7374a168ab6465636f64655f"
        "706f7274cd15e0ae6465636f64655f74705f73697a6501af6c6f63616c5f626c6f636b5f69647391920102b072656d6f74655f656e67696e655f6964a150ab72"
        "656d6f74655f686f7374a26832ab72656d6f74655f706f7274cd15e1ae72656d6f74655f74705f73697a6501ae72656d6f74655f70705f73697a6501",
    ),
}
wrong += [name for name, (b, vector) in VECTORS.items() if b.hex() != vector]
if len(wire.metadata(**SMALL)) != 378 or len(wire.unpack(wire.metadata(**SMALL))) != 21:
    wrong.append("length of the small map")
for value in (0, 127, 128, 255, 256, 65536, 2**32, 2**63, -1, -32, -33, -129, -32769, 1.5, "x" * 31, "x" * 32, "x" * 256, b"x" * 70000,
              None, True, False, [0] * 16, {str(i): i for i in range(16)}, [[[]]]):
    if wire.unpack(wire.pack(value)) != value:
        wrong.append(f"round trip of {value!r:.40}")
if wrong:
    sys.exit(f"not vLLM's bytes: {', '.join(wrong)}")
print(f"{len(want)} golden values and {len(VECTORS)} vectors agree")
