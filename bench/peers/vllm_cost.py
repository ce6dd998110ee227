"""Times the lease path of a stock vLLM wheel: one round per line on stdin, answered by "name value" lines and a dot.

usage: vllm_cost.py FOLDER_OF_THE_PROBE FOLDER_OF_THE_WHEEL SIZE...

The probe is vllm_lease_cost.py, which loads the connector's real modules and puts stand-ins around them. It is not part of
this repository: KVLEASE_PEERS names its folder.
"""

import importlib
import random
import sys
import time

sys.path.insert(0, sys.argv[1])
probe = importlib.import_module("vllm_lease_cost")
v = probe.load(sys.argv[2])
sizes = [int(n) for n in sys.argv[3:]]
BIG = max(sizes)
MESSAGE, BATCH, ENDS, HOSTILE = 10_000, 64, 256, 4 << 20

ids = [probe.rid(i) for i in range(BIG)]
chance = random.Random(1)


def say(name, seconds, per=1):
    print(name, f"{seconds / per * 1e9:.6g}")


def timed(fn):
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def holding(n):
    """A prefill worker that holds n leases."""
    w = probe.make_worker(v)
    end = time.perf_counter() + 1e6
    w._reqs_to_send = dict.fromkeys(ids[:n], end)
    w._reqs_to_process = set(ids[:n])
    return w


owners = {n: holding(n) for n in sizes}


def beats(owner, n, each):
    """Different ids in random order, in messages of `each`; with fewer than a message takes, each as often as chance has it."""
    named = chance.sample(ids[:n], k=MESSAGE) if n >= MESSAGE else chance.choices(ids[:n], k=MESSAGE)
    owner.nixl_wrapper.inbox = {"D": [("HB:" + ",".join(named[i : i + each])).encode() for i in range(0, MESSAGE, each)]}
    return timed(owner._get_new_notifs)


def one_message():
    """Single messages to an owner of 10,000 leases: heartbeats of some ids, and 4 MiB from nobody, as bench/plane sends them."""
    n = min(MESSAGE, BIG)
    owner = owners[n]
    for k in (10, 100, 1000):
        messages = [("HB:" + ",".join(chance.sample(ids[:n], k=k))).encode() for _ in range(20)]

        def take():
            for m in messages:
                owner.nixl_wrapper.inbox = {"D": [m]}
                owner._get_new_notifs()

        say(f"vllm.heartbeat.{k}", timed(take), len(messages))
    for name, piece in (("commas", b","), ("ids_of_one_byte", b"x,"), ("ids_of_50_bytes", probe.rid(1 << 30).encode() + b","), ("one_id", b"x")):
        owner.nixl_wrapper.inbox = {"D": [(b"HB:" + piece * (HOSTILE // len(piece)))[:HOSTILE]]}
        say(f"vllm.hostile.{name}", timed(owner._get_new_notifs))


def tracker():
    s = probe.make_scheduler(v)
    requests = [probe.make_request(i) for i in range(min(MESSAGE, BIG))]
    return s, requests


def track_and_idle():
    s, requests = tracker()

    def track():
        for r in requests:
            s.on_new_request(r)

    say("vllm.track", timed(track), len(requests))
    # One engine that holds and tracks 10,000: what scheduler and worker do in a step in which nothing is due.
    owner = owners[min(MESSAGE, BIG)]
    s._last_heartbeat_time = time.perf_counter() + 1e6
    rounds = 20

    def idle():
        for _ in range(rounds):
            owner.start_load_kv(s.build_connector_meta(None))
            owner.get_transfer_results()

    say("vllm.idle", timed(idle), rounds)


def round_of_engines(name, engines):
    w = probe.make_worker(v)
    w.nixl_wrapper.keep_sent = False
    meta = v.metadata.NixlConnectorMetadata()
    for i in range(engines):
        probe.add_engine(w, f"engine-{i}")
        req_ids = {probe.rid(i * 10 + k) for k in range(10)}
        meta.heartbeat_by_engine[f"engine-{i}"] = v.metadata.HeartbeatInfo(req_ids=req_ids, host="h", port=1, tp_size=1)
    say(name, timed(lambda: w._send_heartbeats(meta)))


def ends():
    w = holding(min(MESSAGE, BIG))
    for i in ids[:ENDS]:
        w._reqs_to_send[i] = 0.0
    say("vllm.ends", timed(lambda: w._reap_expired_send_leases(set())))


def completions():
    """From a completion's message to the worker's word that the request's blocks may go, among 10,000 leases."""
    n, times = min(MESSAGE, BIG), 50
    owner, took = holding(n), 0.0
    for i in chance.sample(ids[:n], k=times):
        owner.nixl_wrapper.inbox = {"D": [f"{i}:1".encode()]}
        start = time.perf_counter()
        sent = owner.get_transfer_results().finished_sending
        took += time.perf_counter() - start
        if sent != {i}:
            raise RuntimeError(f"the completion of {i} has freed {sent}")
        owner._reqs_to_send[i] = start + 1e6
        owner._reqs_to_process.add(i)
    say("vllm.complete", took, times)


def death():
    """Seconds from the last heartbeat to the end of the lease, on a clock that the harness moves; polled every 30 ms."""
    now = [1000.0]
    clock = type("clock", (), {"perf_counter": staticmethod(lambda: now[0])})
    for seconds in (3, 30):
        w = probe.make_worker(v, lease=seconds)
        module = sys.modules[type(w).__mro__[1].__module__]
        real, module.time = module.time, clock
        try:
            w._reqs_to_send["r"] = now[0] + seconds
            w._reqs_to_process.add("r")
            now[0] += seconds * 0.9
            w.nixl_wrapper.inbox = {"D": [b"HB:r"]}
            w._get_new_notifs()
            beat = now[0]
            while "r" not in w.get_transfer_results().finished_sending and now[0] < beat + 600:
                now[0] += 0.03
        finally:
            module.time = real
        print(f"vllm.freed.{seconds}", f"{now[0] - beat:.6g}")


for _ in sys.stdin:
    for n, owner in owners.items():
        say(f"vllm.renew.{n}", beats(owner, n, BATCH), MESSAGE)
        say(f"vllm.message.{n}", beats(owner, n, MESSAGE))
        say(f"vllm.scan.{n}", timed(lambda o=owner: o._reap_expired_send_leases(set())))
    one_message()
    track_and_idle()
    round_of_engines("vllm.round", 1_000)
    round_of_engines("vllm.round.4096", 4_096)
    ends()
    completions()
    death()
    print(".", flush=True)
