"""Scene a from Python over ctypes: a request waits in D's queue for more than twice its lease, is read, freed.

usage: scene_a.py LIBRARY inline|pump
"""

import ctypes as c
import faulthandler
import json
import mmap
import sys
import time

from kvl import Blocks, Bytes, Desc, Event, Grant, Read, Region, Remote

faulthandler.enable()  # as vLLM does; it must not disturb the core
LAYERS, BLOCKS, BLOCK_BYTES, DURATION = 2, 16, 128, 1.2
FREED, READ_DONE, AT_RISK, ENGINE_UP = 1, 2, 6, 7


if len(sys.argv) != 3:
    sys.exit(__doc__)
lib = c.CDLL(sys.argv[1])
lib.kvl_last_error.restype = lib.kvl_status_name.restype = lib.kvl_version.restype = c.c_char_p
lib.kvl_poll.argtypes = [c.c_void_p, c.POINTER(Event), c.c_size_t, c.c_uint32]
lib.kvl_close.argtypes = [c.c_void_p, c.c_uint64]


def ok(status):
    if status != 0:
        raise RuntimeError(f"{lib.kvl_status_name(status).decode()}: {lib.kvl_last_error().decode()}")


def group(ids):
    """Block ids of one group; keeps its array alive."""
    array = (c.c_uint32 * len(ids))(*ids)
    return Blocks(array, len(ids), 0)


class Engine:
    def __init__(self, name, drive):
        config = json.dumps({"engine_id": name, "transport": "loopback", "drive": drive, "kv_lease_duration": DURATION,
                             "allow_short_leases": True, "step_max": 0.1}).encode()
        self.ctx, self.producer, err = c.c_void_p(), c.c_void_p(), c.create_string_buffer(256)
        if lib.kvl_open(config, c.c_size_t(len(config)), c.byref(self.ctx), err, c.c_size_t(256)) != 0:
            raise RuntimeError(err.value.decode())
        ok(lib.kvl_producer_open(self.ctx, c.byref(self.producer)))
        self.cache = mmap.mmap(-1, LAYERS * BLOCKS * BLOCK_BYTES)
        base = c.addressof(c.c_char.from_buffer(self.cache))
        size = BLOCKS * BLOCK_BYTES
        regions = (Region * LAYERS)(*[Region(base + i * size, size, BLOCK_BYTES, BLOCK_BYTES, BLOCKS, -1, 0, 0, Bytes(b"l", 1))
                                      for i in range(LAYERS)])
        ok(lib.kvl_register(self.ctx, regions, c.c_size_t(c.sizeof(Region)), c.c_uint32(LAYERS)))

    def at(self, layer, block):
        start = (layer * BLOCKS + block) * BLOCK_BYTES
        return slice(start, start + BLOCK_BYTES)

    def poll(self):
        ev = Event()
        got = lib.kvl_poll(self.ctx, c.byref(ev), c.sizeof(ev), 1)
        if got < 0:
            ok(got)
        return ev if got else None


def content(layer, position):
    return bytes((layer * 50 + position * 17 + b) % 256 for b in range(BLOCK_BYTES))


def wait(engines, of, kind, seconds):
    """Runs the forward loops until `of` has an event of this kind; None after the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for e in engines:
            ok(lib.kvl_step(e.ctx))
        ev = of.poll()
        if ev is not None and ev.kind not in (ENGINE_UP, AT_RISK):  # a busy machine is late
            assert ev.kind == kind, f"event of kind {ev.kind}, status {ev.status}"
            return ev
        time.sleep(0.002)
    return None


def main():
    p, d = Engine("P", sys.argv[2]), Engine("D", sys.argv[2])
    p_ids, d_ids = [3, 4, 9], [1, 2, 0]
    for layer in range(LAYERS):
        for i, block in enumerate(p_ids):
            p.cache[p.at(layer, block)] = content(layer, i)

    groups = group(p_ids)
    grant = Grant(size=c.sizeof(Grant), id=Bytes(b"request-1", 9), groups=c.pointer(groups), groups_n=1, tokens=48, user=7)
    lease, n = c.c_uint64(), c.c_size_t()
    ok(lib.kvl_grant(p.producer, c.byref(grant), c.byref(lease)))
    text = c.create_string_buffer(4096)
    ok(lib.kvl_params(p.ctx, lease, c.byref(grant), text, c.c_size_t(4096), c.byref(n)))
    params = json.dumps(json.loads(text.value)).encode()  # a router reads and writes it
    blob = c.create_string_buffer(8192)
    ok(lib.kvl_handshake_get(p.ctx, c.c_uint32(0), blob, c.c_size_t(8192), c.byref(n)))
    lib.kvl_handshake_set.argtypes = [c.c_void_p, c.c_uint32, Bytes]  # an engine that makes its map itself
    assert lib.kvl_handshake_set(p.ctx, 1, Bytes(blob.raw[:n.value], n)) == -2, "there is no rank 1"
    assert lib.kvl_handshake_set(p.ctx, 0, Bytes(b"\x81\xa1", 2)) == -2, "half a map"
    ok(lib.kvl_handshake_set(p.ctx, 0, Bytes(blob.raw[:n.value], n)))
    ours = blob.raw[:n.value]
    ok(lib.kvl_handshake_get(p.ctx, c.c_uint32(0), blob, c.c_size_t(8192), c.byref(n)))
    assert sorted(ours) == sorted(blob.raw[:n.value]), "our key has its place in it, and nothing else has changed"

    remote, buf, need = Remote(size=c.sizeof(Remote)), c.create_string_buffer(4096), c.c_size_t()
    ok(lib.kvl_params_read(params, c.c_size_t(len(params)), c.byref(remote), buf, c.c_size_t(4096), c.byref(need)))
    desc, engine, track = Desc(size=c.sizeof(Desc), ranks=1, engine_id=remote.engine_id), c.c_uint64(), c.c_uint64()
    ok(lib.kvl_engine_add(d.ctx, c.byref(desc), c.byref(engine)))
    lib.kvl_engine_handshake.argtypes = [c.c_void_p, c.c_uint64, c.c_uint32, Bytes]
    ok(lib.kvl_engine_handshake(d.ctx, engine, 0, Bytes(c.cast(blob, c.c_char_p), n)))
    lib.kvl_track.argtypes = [c.c_void_p, c.c_uint64, c.POINTER(Remote), Bytes, c.c_uint64, c.POINTER(c.c_uint64)]
    ok(lib.kvl_track(d.producer, engine, c.byref(remote), Bytes(b"local", 5), 5, c.byref(track)))

    assert wait([p, d], p, None, DURATION * 2.5) is None, "freed while D waits"
    local = group(d_ids)
    read = Read(c.sizeof(Read), 1, c.pointer(local), remote.groups)
    ok(lib.kvl_read(d.producer, track, c.byref(read)))
    done = wait([p, d], d, READ_DONE, 10)
    assert done is not None and done.handle == track.value and done.user == 5
    for layer in range(LAYERS):
        for i, block in enumerate(d_ids):
            assert d.cache[d.at(layer, block)] == content(layer, i), "a wrong byte"
    freed = wait([p, d], p, FREED, 10)
    assert freed is not None and freed.status == 1 and freed.handle == lease.value and freed.user == 7
    print(f"held {freed.value1 / 1e9:.2f} s under a lease of {DURATION} s, read, freed(completed)")
    ok(lib.kvl_close(d.ctx, 10**9))
    ok(lib.kvl_close(p.ctx, 10**9))


main()
