"""Lives of the objects: who keeps whom, what is left when they go, and that nothing leaks."""

import copy
import gc
import json
import os
import pickle
import subprocess
import sys

import kvlease as k
import lab
import pytest

PARAMS = {"remote_block_ids": [[1, 2]], "remote_engine_id": "P", "remote_request_id": "r", "remote_host": "h", "remote_port": 1}


def test_a_with_block_closes_the_context(engines):
    with k.Context({"transport": "loopback"}) as context:
        producer = context.producer()
        assert not context.closed and "open" in repr(context)
    assert context.closed and "closed" in repr(context)
    context.close()  # again does nothing
    with pytest.raises(k.Closed):
        with context:
            pass
    with pytest.raises(k.Closed, match="the context is closed"):
        producer.grant("a", [[1]])


@pytest.mark.parametrize("call", [
    "step", "beat", "poll", "wait_fd", "stats", "config", "producer", "unregister", "fence_all", "handshake_get",
    "metrics_text", "metrics_listen", "log"
])
def test_a_closed_context_refuses(call):
    context = k.Context({"transport": "loopback"})
    context.close()
    with pytest.raises(k.Closed):
        getattr(context, call)()


def test_an_exception_in_a_with_block_goes_on():
    with pytest.raises(KeyError):
        with k.Context({"transport": "loopback"}) as context:
            raise KeyError("mine")
    assert context.closed


def test_a_producer_keeps_its_context(engines):
    producer = lab.Engine("P").producer  # the engine is gone, with what it knew of the context
    gc.collect()
    lease = producer.grant("a", [[1]])
    producer.cancel(lease)
    assert producer.context is producer.context and not producer.context.closed
    producer.context.close()


def test_a_context_that_is_dropped_is_closed_with_a_warning():
    for dropped in (lambda: k.Context({"transport": "loopback"}), lambda: k.Context({"transport": "loopback"}).producer()):
        with pytest.warns(ResourceWarning, match="a context was not closed"):
            dropped()
    script = "import kvlease; kvlease.Context({'transport': 'loopback'})"
    run = subprocess.run([sys.executable, "-W", "error::ResourceWarning", "-c", script], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and "a context was not closed" in run.stderr


def test_contexts_in_cycles_are_collected(engines):
    class Engine:
        pass

    engine = Engine()
    engine.self, engine.context = engine, k.Context({"transport": "loopback"})
    engine.producer = engine.context.producer()
    with pytest.warns(ResourceWarning):
        del engine
        gc.collect()


def test_a_remote_outlives_its_text():
    remotes = [k.params_read(json.dumps({**PARAMS, "remote_request_id": f"request {i}", "remote_block_ids": [list(range(i))]}))
               for i in range(200)]
    gc.collect()
    assert [(r.id, len(r.groups[0])) for r in remotes] == [(f"request {i}", i) for i in range(200)]
    assert "request 7" in repr(remotes[7]) and "'P'" in repr(remotes[7])


def test_objects_of_the_library_are_made_by_it_alone():
    for type in (k.Producer, k.Remote):
        with pytest.raises(TypeError):
            type()
        with pytest.raises(TypeError):
            type.__new__(type)
    for type in (k.Context, k.Producer, k.Remote):
        with pytest.raises(TypeError):
            class Sub(type):
                pass
    remote = k.params_read(PARAMS)
    for change in (lambda: setattr(remote, "id", "other"), lambda: setattr(remote, "new", 1), lambda: pickle.dumps(remote),
                   lambda: copy.copy(remote), lambda: delattr(remote, "id")):
        with pytest.raises((AttributeError, TypeError)):
            change()


def test_events_are_named_tuples(engines):
    owner = engines("P")
    owner.producer.cancel(owner.producer.grant("a", [[1]], user=(1 << 64) - 1))
    owner.turn()
    event, = owner.events
    kind, flags, status, rank, handle, user, value0, value1, time_ns, reasons = event
    assert (kind, status, user, value0) == (k.EV_FREED, k.FREED_REVOKED, (1 << 64) - 1, 1) and event[4] == handle == event.handle
    assert pickle.loads(pickle.dumps(event)) == event and "user=18446744073709551615" in repr(event)
    assert len({event, tuple(event)}) == 1
    with pytest.raises((AttributeError, TypeError)):
        event.kind = 5


# ---- leaks ----

LEAKS = r"""
import gc, json, os, resource, sys, tracemalloc
sys.path.insert(0, sys.argv[1])
import kvlease as k, lab

PARAMS = {"remote_block_ids": [[1, 2]], "remote_engine_id": "P", "remote_request_id": "r", "remote_host": "h", "remote_port": 1}
text, id, big = json.dumps(PARAMS), "request-id-of-forty-one-bytes-0123456789", list(range(64)) * 40
owner = lab.Engine("P", requests_max=1024, events_max=1024)  # pages of its rings are there after a few rounds
p, c = owner.producer, owner.context
remote = k.params_read(text)
engine = c.engine_add("Q", 1)

def refused(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except (k.Error, TypeError, ValueError, OverflowError):
        return
    raise AssertionError(call)

def hooks(i):
    lease = p.grant(id, [[1, 2, 3], (big, 0)], user=i | 1 << 40)
    c.params(lease, id, [big]); c.params_key(lease)
    p.cancel(lease)
    track = p.track(engine, remote, id, user=i)
    p.untrack(track)
    r = k.params_read(text); r.groups; r.id; repr(r)
    k.params_read(PARAMS)
    refused(k.params_read, "{}"); refused(k.params_read, {"a": {1}})
    refused(p.grant, id, [[1, "x"]]); refused(p.grant, id, [big, [-1]]); refused(p.grant, "", [[1]])
    refused(p.grant, id, [[1]], nonsense=1); refused(p.track, engine, None, id); refused(p.read, 1 << 32, [big], [big, big])
    refused(p.pressure, 1 << 40)
    c.step(); c.poll()
    refused(p.untrack, track); refused(p.cancel, lease)

def others(i):  # they leave garbage in the core, which collects it in its own time
    c.stats(); c.config(); c.handshake_get(); c.params(p.grant("lease", [[1]]), "lease", [big * 3])
    refused(k.Context, {"nonsense": 1}); refused(c.engine_handshake, engine, 0, b"map"); refused(c.register, [owner.cache.region()])
    refused(c.register, [owner.cache.region(mem=5)]); refused(c.delta_take, 0); refused(c.handshake_set, 0, bytearray(9))
    c.engine_remove(c.engine_add("R", 1)); c.step(); c.poll()

def resident():
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()

def traced():
    gc.collect()
    return tracemalloc.get_traced_memory()[0]

def growth(call, rounds, measure):
    for i in range(rounds // 4):  # what is made once
        call(i)
    before, objects, counts = measure(), len(gc.get_objects()), [sys.getrefcount(o) for o in watched]
    for i in range(rounds):
        call(i)
    return [(measure() - before) / rounds, (len(gc.get_objects()) - objects) / rounds,
            *((b - a) / rounds for a, b in zip(counts, [sys.getrefcount(o) for o in watched]))]

watched = [id, text, PARAMS, remote, c, p, big, k.Event, k.Remote, k.Full, None, k.Invalid]
result = {"resident": growth(hooks, 20_000, resident)}
tracemalloc.start()
result["hooks"], result["others"] = growth(hooks, 2000, traced), growth(others, 2000, traced)
owner.close()
print(json.dumps(result))
"""


def test_nothing_leaks():
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", LEAKS, os.path.dirname(__file__)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    for what, (grown, *counts) in json.loads(run.stdout).items():
        most = 64 if what == "resident" else 16  # bytes a round: no object is so small; the process grows by a page now and then
        assert grown < most and all(abs(n) < 0.25 for n in counts), (what, grown, counts)


def test_contexts_that_come_and_go_leave_nothing():
    script = r"""
import gc, os, resource, sys, time
sys.path.insert(0, sys.argv[1])
import lab

def state():
    gc.collect()
    with open("/proc/self/statm") as f:
        return len(os.listdir("/proc/self/fd")), int(f.read().split()[1]) * resource.getpagesize()

for i in range(80):
    if i == 20:
        before = state()
    engine = lab.Engine("P", requests_max=256, tracked_max=256)
    engine.producer.grant("a", [[1]])
    engine.turn()
    engine.close()
end = time.monotonic() + 30
while (after := state())[0] > before[0] or after[1] > before[1] + (4 << 20):  # the core collects what it held on a thread of its own
    assert time.monotonic() < end, (before, after)
    time.sleep(0.05)
"""
    run = subprocess.run([sys.executable, "-c", script, os.path.dirname(__file__)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_the_interpreter_ends_with_objects_alive():
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import kvlease, lab
engine, pumped = lab.Engine("P"), lab.Engine("Q", drive="pump")
events = engine.context.poll()
sys.modules["kept"] = engine.producer
engine.producer.grant("a", [[1]])
class Late:
    def __init__(self): self.producer, self.remote = engine.producer, kvlease.params_read(%r)
    def __del__(self): self.producer.grant("late", [[1]]); self.remote.groups
late = Late()
late.self = late
""" % (PARAMS,)
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script, os.path.dirname(__file__)], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
