"""What the calls cost a forward loop in Python: ns a call, one round, as "name value" lines.

usage: hooks.py LIBRARY

Two contexts over the loopback transport in this process. Calls are timed in stretches of 500, the rings are drained by steps between
them, and what the loop around a call costs is taken off. ctypes calls LIBRARY with its argument types declared.
"""

import ctypes as c
import json
import mmap
import statistics
import sys
from timeit import Timer

import kvlease

STRETCH, STRETCHES = 500, 60
ID = "chatcmpl-0123456789abcdef0123456789abcdef-%08d"  # as long as an OpenAI-style server's
CONFIG = {"transport": "loopback", "kv_lease_duration": 600}


class Cost:
    """Seconds and calls by name."""

    def __init__(self, names):
        self.names, self.took = names, {}

    def add(self, name, call, around="pass"):
        """A stretch of calls, less one of what stands around each."""
        took = Timer(call, globals=self.names).timeit(STRETCH) - Timer(around, globals=self.names).timeit(STRETCH)
        self.took.setdefault(name, []).append(took / STRETCH)

    def say(self):
        for name, took in self.took.items():
            print(name, f"{statistics.median(took) * 1e9:.4g}")


def drain(*contexts):
    for context in contexts:
        for _ in range(3):
            context.step()
            while context.poll():
                pass


def ours(cost):
    memory = mmap.mmap(-1, 64 * 4096)
    address = c.addressof(c.c_char.from_buffer(memory))
    owner, reader = (kvlease.Context({**CONFIG, "engine_id": name}) for name in "PD")
    for context in (owner, reader):
        context.register([kvlease.Region(address, len(memory), 4096, 4096, 64)])
    p, q = owner.producer(), reader.producer()
    engine = reader.engine_add("P", 1)
    reader.engine_handshake(engine, 0, owner.handshake_get())
    drain(reader)
    names = cost.names
    names |= {"grant": p.grant, "cancel": p.cancel, "expect": p.expect, "track": q.track, "untrack": q.untrack, "step": owner.step,
              "poll": owner.poll, "params": owner.params, "read": kvlease.params_read, "engine": engine}
    for blocks in (1, 8, 64):
        names[f"groups{blocks}"] = [list(range(blocks))]
    names["keep"] = [].append
    names["kept"], lease = p.grant("kept", names["groups8"]), p.grant("first", names["groups8"])
    names["text"] = owner.params(lease, "first", names["groups8"])
    names["remote"] = kvlease.params_read(names["text"])
    for _ in range(STRETCHES):
        for blocks in (1, 8, 64):
            ids, same, leases = [ID % i for i in range(STRETCH)], [ID % i for i in range(STRETCH)], []
            names |= {"pop": ids.pop, "same": same.pop, "keep": leases.append}
            cost.add(f"python.grant{blocks}", f"keep(grant(pop(), groups{blocks}))", "keep(same())")
            names |= {"pop": leases[:STRETCH].pop, "same": leases[:STRETCH].pop}
            cost.add("python.cancel", "cancel(pop())", "same()")
            drain(owner)
        tracks = []
        names |= {"keep": tracks.append, "id": ID % 0}
        cost.add("python.track", "keep(track(engine, remote, id))", "keep(engine)")
        names |= {"pop": tracks[:STRETCH].pop, "same": tracks[:STRETCH].pop}
        cost.add("python.untrack", "untrack(pop())", "same()")
        drain(owner, reader)
        cost.add("python.poll", "poll()")
        cost.add("python.step", "step()")
        cost.add("python.params", "params(kept, 'kept', groups8)")
        cost.add("python.params_read", "read(text)")
    owner.close(), reader.close()


def through_ctypes(cost, library):
    class Bytes(c.Structure):
        _fields_ = [("data", c.c_char_p), ("len", c.c_size_t)]

    lib = c.CDLL(library)
    lib.kvl_track.argtypes = [c.c_void_p, c.c_uint64, c.c_void_p, Bytes, c.c_uint64, c.POINTER(c.c_uint64)]
    lib.kvl_untrack.argtypes = [c.c_void_p, c.c_uint64]
    config = json.dumps({**CONFIG, "engine_id": "C"}).encode()
    context, producer, out, need = c.c_void_p(), c.c_void_p(), c.c_uint64(), c.c_size_t()
    assert lib.kvl_open(config, c.c_size_t(len(config)), c.byref(context), None, c.c_size_t(0)) == 0
    assert lib.kvl_producer_open(context, c.byref(producer)) == 0
    remote, buf = (c.c_uint64 * 64)(), c.create_string_buffer(4096)
    remote[0] = c.sizeof(remote)  # the size is the struct's first field, and the flag after it is written
    text = cost.names["text"].encode()
    assert lib.kvl_params_read(text, c.c_size_t(len(text)), remote, buf, c.c_size_t(4096), c.byref(need)) == 0
    tracks = []

    def track(id):
        if lib.kvl_track(producer, 1 << 32, remote, Bytes(id, len(id)), 0, out):
            raise RuntimeError("kvl_track")
        tracks.append(out.value)

    def untrack(handle):
        if lib.kvl_untrack(producer, handle):
            raise RuntimeError("kvl_untrack")

    event = c.create_string_buffer(64 * 256)
    cost.names |= {"track": track, "untrack": untrack, "id": (ID % 0).encode(), "empty": lambda id: None}
    for _ in range(STRETCHES):
        cost.add("ctypes.track", "track(id)")
        cost.names |= {"pop": tracks[:STRETCH].pop, "same": tracks[:STRETCH].pop}
        cost.add("ctypes.untrack", "untrack(pop())", "same()")
        tracks.clear()
        cost.add("python.empty", "empty(id)")
        for _ in range(3):
            assert lib.kvl_step(context) == 0
            while lib.kvl_poll(context, event, c.c_size_t(64), 256) > 0:
                pass
    assert lib.kvl_close(context, c.c_uint64(0)) == 0


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    cost = Cost({})
    ours(cost)
    through_ctypes(cost, sys.argv[1])
    cost.say()


if __name__ == "__main__":
    main()
