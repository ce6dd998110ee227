"""Writes vllm.tsv: what the classes of a vLLM 0.33.0 wheel send, one "name, bytes in hex" a line.

usage: remake.py FOLDER_OF_THE_PROBE FOLDER_OF_THE_WHEEL > vllm.tsv

The probe is vllm_lease_cost.py, which loads the connector's real modules and puts stand-ins around them; it is not part of
this repository. msgspec, numpy and pyzmq must be installed.
"""

import json
import sys
from types import SimpleNamespace

sys.path.insert(0, sys.argv[1])
import msgspec  # noqa: E402
import vllm_lease_cost as probe  # noqa: E402

v = probe.load(sys.argv[2])


def say(name, b):
    print(name, (b if isinstance(b, bytes) else json.dumps(b).encode()).hex(), sep="\t")


def request(remote_id, **params):
    r = probe.make_request(1)
    r.kv_transfer_params.update(remote_request_id=remote_id, **params)
    return r


def reader(consumers):
    """A worker of D that is connected; it has to report `consumers`."""
    w = probe.make_worker(v)
    probe.add_engine(w, "engine-p0")
    plan = SimpleNamespace(all_source_ranks=(0,), source_ranks_per_group=((0,),), local_consumers=consumers)
    info = SimpleNamespace(remote_tp_size=1, remote_dcp_size=1, remote_block_size=16, remote_physical_blocks_per_logical=1)
    w.transfer_topo = SimpleNamespace(get_engine_info=lambda e: info, tp_ratio=lambda n: 1, block_size_ratio=lambda n: 1,
                                      unregister_remote_engine=lambda e: None)
    w.region_group_ids, w._group_spec_types = [0], (object,)
    w.src_xfer_handles_by_block_size = {16: 1}
    w.kv_cache_config = SimpleNamespace(transfer_groups=[0])
    w.tp_mappings["engine-p0"], w.dst_region_group_ids["engine-p0"] = plan, [0]
    w.dst_xfer_side_handles["engine-p0"] = {0: 7}
    return w


def completion(remote_id, consumers):
    """What a request says that ends without a read."""
    w, m = reader(consumers), v.metadata.NixlConnectorMetadata()
    params = dict(request(remote_id).kv_transfer_params, remote_engine_id="engine-p0", remote_block_ids=([],))
    m.add_new_req_to_recv("d-1", [], params, (0,), False)
    w.start_load_kv(m)
    (sent,) = w.nixl_wrapper.sent
    return sent[1]


def read(remote_id, consumers):
    """What rides on a read of the last two of three blocks, and the descriptors of both sides: two layers of 64 and 100 blocks."""
    w, m, posted = reader(consumers), v.metadata.NixlConnectorMetadata(), []
    w.nixl_wrapper.make_prepped_xfer = lambda op, here, ids, there, remote_ids, notif_msg: posted.append((op, ids, remote_ids, notif_msg))
    w.nixl_wrapper.transfer = lambda handle: "PROC"
    w._transfer_layer_group_ids, w.num_regions, w.block_len_per_layer, w._uses_region_group_mapping = [], 2, [4096] * 2, False
    w.region_group_ids = w.dst_region_group_ids["engine-p0"] = [0, 0]
    w.dst_num_blocks = {"engine-local": 64, "engine-p0": 100}
    w.dst_uses_region_group_mapping = {"engine-p0": False}
    params = dict(request(remote_id).kv_transfer_params, remote_engine_id="engine-p0", remote_block_ids=([3, 4, 9],))
    m.add_new_req_to_recv("d-1", ([1, 0],), params, (0,), True)
    w.start_load_kv(m)
    ((op, ids, remote_ids, message),) = posted
    return {"op": op, "here": [int(i) for i in ids], "there": [int(i) for i in remote_ids], "message": message.decode()}


def heartbeat(*ids):
    if len(ids) == 1:  # from the scheduler on
        s = probe.make_scheduler(v)
        s.on_new_request(request(ids[0]))
        m = s.build_connector_meta(None)
    else:  # in a set the order would be chance
        m = v.metadata.NixlConnectorMetadata()
        m.heartbeat_by_engine["engine-p0"] = v.metadata.HeartbeatInfo(req_ids=ids, host="h", port=1, tp_size=1)
    w = probe.make_worker(v)
    probe.add_engine(w, "engine-p0")
    w._send_heartbeats(m)
    return w.nixl_wrapper.sent[0][1]


IDS = {"plain": "chatcmpl-0a-89abcdef", "comma": "a,b", "colon": "a:b", "hb": "HB:job-1", "utf8": "größe-ü", "long": "x" * 1000}
for name, id in IDS.items():
    say("heartbeat." + name, heartbeat(id))
    say("completion." + name, completion(id, 1))
say("heartbeat.two", heartbeat("a", "b"))
say("completion.of-two", completion("r1", 2))
say("read", read("r1", 2))

# ---- handshake ----
encode = msgspec.msgpack.encode
for pp, rank in ((0, 0), (0, 3), (1, 200)):
    say(f"request.{pp}.{rank}", encode((v.base_worker.GET_META_MSG, pp, rank)))
say("stamp", encode(12345.5))
small = v.metadata.NixlAgentMetadata(
    engine_id="E", agent_metadata=b"\x01\x02", kv_caches_base_addr=[0x7F0000000000], device_id=0, num_blocks=8, block_lens=[4096],
    block_strides=[4096], kv_cache_layout="LBHNC", block_size=16, ssm_sizes=(0, 0), attn_backend_name="FLASH_ATTN",
    physical_blocks_per_logical_kv_block=1,
)
full = v.metadata.NixlAgentMetadata(
    engine_id="engine-" + "e" * 40, agent_metadata=bytes(range(256)) * 2, kv_caches_base_addr=[2**47 + i * 2**31 for i in range(20)],
    device_id=7, num_blocks=70000, block_lens=[65536] * 20, block_strides=[131072] * 20, kv_cache_layout="LBHNC", block_size=128,
    ssm_sizes=(300, 70000), attn_backend_name="FLASHINFER", physical_blocks_per_logical_kv_block=2, region_num_blocks=[70000] * 20,
    region_group_ids=[0, -1] * 10, region_names=[f"model.layers.{i}.attn" for i in range(20)], region_mem_types=["VRAM"] * 20,
    dcp_size=2, pcp_size=1, ple_block_len=4096, region_members=[[f"model.layers.{i}.attn"] for i in range(20)],
    packed_member_layouts={"model.layers.0.attn": (0, 4096)},
)
say("metadata.small", encode(small))
say("metadata.full", encode(full))
say("payload", encode(v.metadata.NixlHandshakePayload(compatibility_hash="ab" * 32, agent_metadata_bytes=encode(small))))

# ---- transfer parameters ----
from vllm.v1.request import RequestStatus as status  # noqa: E402, the probe's stand-in


def params(owner_is_decode):
    s = probe.make_scheduler(v, engine_id="P", bidirectional_kv_xfer=owner_is_decode)
    clock = SimpleNamespace(perf_counter=lambda: 1000.25)
    s.get_exchange_clipped_blocks = lambda b: b
    s._registration_generation = 1
    v.pull_scheduler.time = clock
    r = request("r1", do_remote_prefill=False, do_remote_decode=not owner_is_decode)
    r.request_id, r.status, r.num_computed_tokens = "r1-89abcdef", status.FINISHED_LENGTH_CAPPED, 40
    held, out = s.request_finished(r, ([3, 4, 9],))
    assert held
    return out


say("params.first-turn", params(False))
say("params.second-turn", params(True))

# ---- push ----
s = probe.make_scheduler(v, push=True, engine_id="D")
r = request("p1")
blocks = SimpleNamespace(get_unhashed_block_ids_all_groups=lambda: ([1, 2],), blocks=([],))
s.on_new_request(r)
s.update_state_after_alloc(r, blocks, 16)
for id, data in s.build_connector_meta(None).push_registrations.items():
    w = probe.make_worker(v, push=True)
    probe.add_engine(w, data["remote_engine_id"])
    w._do_send_reg_notif(id, data)
    say("registration", w.nixl_wrapper.sent[0][1])
    say("registration.fields", {k: x for k, x in data.items()})
