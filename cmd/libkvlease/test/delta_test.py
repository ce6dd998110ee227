"""A host and two ranks that know each other only by bytes which Python carries: lost, doubled, swapped, cut, bent, foreign ones.

usage: delta_test.py LIBRARY [SEED]
"""

import ctypes as c
import json
import mmap
import random
import sys
import time

from kvl import Blocks, Bytes, Event, Grant, Region

OK, FULL, INVALID, STALE, POISONED = 0, -1, -2, -3, -6
FREED, RANK_UP, RANK_DOWN = 1, 11, 12
REVOKED = 3
CAP, RANKS, BLOCKS, BLOCK_BYTES = 65536, 2, 16, 128

if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
seed = int(sys.argv[2]) if len(sys.argv) == 3 else random.randrange(1 << 32)
print("seed", seed)
chance = random.Random(seed)
lib = c.CDLL(sys.argv[1])
lib.kvl_last_error.restype = lib.kvl_status_name.restype = c.c_char_p


lib.kvl_register.argtypes = [c.c_void_p, c.POINTER(Region), c.c_size_t, c.c_uint32]
lib.kvl_delta_take.argtypes = [c.c_void_p, c.c_uint32, c.c_void_p, c.c_size_t, c.POINTER(c.c_size_t)]
lib.kvl_delta_put.argtypes = [c.c_void_p, c.c_uint32, Bytes]
lib.kvl_poll.argtypes = [c.c_void_p, c.POINTER(Event), c.c_size_t, c.c_uint32]
lib.kvl_close.argtypes = [c.c_void_p, c.c_uint64]
lib.kvl_cancel.argtypes = [c.c_void_p, c.c_uint64]


def name(status):
    return f"{lib.kvl_status_name(status).decode()}: {lib.kvl_last_error().decode()}"


def ok(status):
    if status != OK:
        raise RuntimeError(name(status))


def open_context(**keys):
    config = json.dumps({"engine_id": "P", "transport": "loopback", "carrier": "delta", "tp_size": RANKS, **keys}).encode()
    ctx, err = c.c_void_p(), c.create_string_buffer(512)
    if lib.kvl_open(config, c.c_size_t(len(config)), c.byref(ctx), err, c.c_size_t(512)) != OK:
        raise RuntimeError(err.value.decode())
    return ctx


def take(ctx, rank):
    buf, n = c.create_string_buffer(CAP), c.c_size_t()
    ok(lib.kvl_delta_take(ctx, rank, buf, CAP, c.byref(n)))
    return buf.raw[:n.value]


def put(ctx, rank, message):
    return lib.kvl_delta_put(ctx, rank, Bytes(message, len(message)))


class Engine:
    """One host, its ranks, and the engine's own messages between them."""

    def __init__(self, **keys):
        self.host = open_context(role="host", **keys)
        self.ranks = [open_context(role="rank", tp_rank=r, **keys) for r in range(RANKS)]
        self.producer = c.c_void_p()
        ok(lib.kvl_producer_open(self.host, c.byref(self.producer)))
        self.caches = [mmap.mmap(-1, BLOCKS * BLOCK_BYTES) for _ in self.ranks]
        for ctx, cache in zip(self.ranks, self.caches):
            region = Region(c.addressof(c.c_char.from_buffer(cache)), BLOCKS * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES, BLOCKS, -1, 0, 0,
                            Bytes(b"l", 1), 1, 0)
            ok(lib.kvl_register(ctx, region, c.sizeof(region), 1))
        self.seen = []  # (to the host?, rank, message)
        self.late = {}

    def carry(self, to_host, rank, message, bad):
        """One message on its way; with `bad` anything may happen to it."""
        ctx = self.host if to_host else self.ranks[rank]
        self.seen = self.seen[-200:] + [(to_host, rank, message)]
        if bad and chance.random() < 0.25:
            return
        if bad and chance.random() < 0.25:
            message, self.late[to_host, rank] = self.late.get((to_host, rank), b""), message
        for _ in range(1 + (bad and chance.random() < 0.25)):
            status = put(ctx, rank, message)
            assert status in (OK, FULL), name(status)

    def turn(self, bad=False):
        events = []
        for r, ctx in enumerate(self.ranks):
            ok(lib.kvl_step(ctx))
            if message := take(ctx, r):
                self.carry(True, r, message, bad)
        ok(lib.kvl_step(self.host))
        for r in range(RANKS):
            if message := take(self.host, r):
                self.carry(False, r, message, bad)
        ev = Event()
        while (got := lib.kvl_poll(self.host, c.byref(ev), c.sizeof(ev), 1)) == 1:
            events.append(Event.from_buffer_copy(ev))
        assert got == 0, name(got)
        return events

    def wait(self, what, bad=False, seconds=60):
        end, got = time.monotonic() + seconds, []
        while not what(got):
            assert time.monotonic() < end, f"waited in vain; events {[(e.kind, e.status, e.handle) for e in got]}"
            got += self.turn(bad)
            time.sleep(0.0005)
        return got

    def grants(self, n, bad):
        """n leases, each cancelled at some time: each has one end, and both ranks' reason."""
        ids = (c.c_uint32 * 2)(1, 2)
        group = Blocks(ids, 2, 0)
        leases = {}
        for i in range(n):
            text = f"request-{chance.random()}".encode()
            grant = Grant(size=c.sizeof(Grant), id=Bytes(text, len(text)), groups=c.pointer(group), groups_n=1, tokens=32, user=i + 1)
            lease = c.c_uint64()
            ok(lib.kvl_grant(self.producer, c.byref(grant), c.byref(lease)))
            leases[lease.value] = i + 1
            early = self.turn(bad) if chance.random() < 0.5 else []
            assert not early, "freed before it was cancelled"
        for lease in leases:
            ok(lib.kvl_cancel(self.producer, lease))
        got = self.wait(lambda got: sum(e.kind == FREED for e in got) >= n, bad)
        assert sorted(e.handle for e in got) == sorted(leases)
        for e in got:
            assert (e.status, e.user, e.reasons) == (REVOKED, leases[e.handle], REVOKED * 0x11), (e.status, e.user, hex(e.reasons))


def a_broken_host_closes_its_ranks():
    """kvl_fence_all on the host, whose rows are the ranks': they close them, and the ends come one duration later. One of them stands
    still for longer than that, and the host is polled and not stepped any more."""
    e = Engine(engine_id="broken", kv_lease_duration=1, allow_short_leases=True, step_max=0.1)
    e.wait(lambda got: sum(x.kind == RANK_UP for x in got) == RANKS)
    ids = (c.c_uint32 * 1)(1)
    group = Blocks(ids, 1, 0)
    grant = Grant(size=c.sizeof(Grant), id=Bytes(b"r", 1), groups=c.pointer(group), groups_n=1, tokens=16, user=9)
    lease, ev, began = c.c_uint64(), Event(), time.monotonic()
    ok(lib.kvl_grant(e.producer, c.byref(grant), c.byref(lease)))
    e.turn()
    ok(lib.kvl_fence_all(e.host))
    assert lib.kvl_step(e.host) == POISONED
    broken, told, stands, went_on = set(), [], RANKS - 1, None
    while len(broken) < RANKS or len(told) < 2:
        assert time.monotonic() - began < 30, f"ranks {broken} are broken, {len(told)} events"
        if went_on is None and time.monotonic() - began > 3:
            assert broken == set(range(RANKS)) - {stands} and [x.kind for x in told] == [9], "an end was told while a rank's rows are open"
            went_on = time.monotonic()
        for r, ctx in enumerate(e.ranks):
            if r == stands and went_on is None:
                continue
            if message := take(e.host, r):
                put(ctx, r, message)
            status = lib.kvl_step(ctx)
            assert status in (OK, POISONED), name(status)
            if status == POISONED:
                broken.add(r)
            if message := take(ctx, r):  # the host is closed when its ranks have said that their rows are
                ok(put(e.host, r, message))
        if lib.kvl_poll(e.host, c.byref(ev), c.sizeof(ev), 1) == 1:
            told.append(Event.from_buffer_copy(ev))
    assert (told[0].kind, told[1].kind) == (9, FREED)
    assert (told[1].handle, told[1].status, told[1].reasons) == (lease.value, 5, 0x55)
    assert time.monotonic() - went_on >= 1, "a reader that does not check rows may have renewed until they were closed"
    for ctx in (*e.ranks, e.host):
        ok(lib.kvl_close(ctx, c.c_uint64(10**9)))


def bent(message):
    """A message that somebody has damaged, or made up."""
    kind, b = chance.randrange(6), bytearray(message)
    if kind == 0:
        return bytes(b[:chance.randrange(len(b))])
    if kind == 1:
        b[chance.randrange(len(b))] ^= 1 << chance.randrange(8)
        return bytes(b)
    if kind == 2:
        at = chance.randrange(len(b))
        return bytes(b[:at] + chance.randbytes(chance.randrange(1, 64)) + b[at:])[:CAP]
    if kind == 3:  # a length that lies, wherever one stands
        at = chance.randrange(len(b) // 4) * 4
        b[at:at + 4] = chance.choice([b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\1\0\0\0"])
        return bytes(b)
    if kind == 4:
        return chance.randbytes(chance.randrange(1, CAP))
    return bytes(b) + chance.randbytes(8)


def main():
    a_broken_host_closes_its_ranks()
    e = Engine()
    up = e.wait(lambda got: sum(x.kind == RANK_UP for x in got) == RANKS)
    assert {x.handle for x in up if x.kind == RANK_UP} == set(range(RANKS))
    e.grants(8, bad=False)
    for _ in range(4):
        e.grants(16, bad=True)  # whatever gets lost is said again
    assert len(e.seen) > 20

    # Wrong ends: the other rank's, one's own, no rank at all, and a context that has no such stream.
    wrong = 0
    for to_host, rank, message in list(e.seen):
        for ctx, r in ((e.host, 1 - rank), (e.ranks[1 - rank], 1 - rank), (e.host if not to_host else e.ranks[rank], rank)):
            status = put(ctx, r, message)
            assert status in (INVALID, STALE), name(status)
            wrong += 1
    for ctx, r in ((e.host, RANKS), (e.host, 0xffffffff), (e.ranks[0], 1)):
        assert put(ctx, r, e.seen[0][2]) == INVALID
        assert lib.kvl_delta_take(ctx, r, c.create_string_buffer(CAP), CAP, c.byref(c.c_size_t())) == INVALID
    e.grants(8, bad=False)
    print(wrong, "messages for somebody else refused")

    # Of a rank that was started again, and of another engine.
    again, other = open_context(role="rank", tp_rank=0), open_context(role="rank", tp_rank=0, engine_id="Q")
    for ctx, want in ((again, STALE), (other, INVALID)):
        ok(lib.kvl_step(ctx))
        status = put(e.host, 0, take(ctx, 0))
        assert status == want, name(status)
        ok(lib.kvl_close(ctx, 10**9))
    e.grants(8, bad=False)

    # Damaged: refused, or, where the damage made another message of it, survived. The engine's connection is trusted; what
    # must hold is that nothing breaks: no crash, no hang, every context still answers.
    refused = taken = 0
    for _ in range(20000):
        to_host, rank, message = chance.choice(e.seen)
        status = put(e.host if to_host else e.ranks[rank], rank, bent(message))
        assert status in (OK, INVALID, STALE, FULL), name(status)
        refused += status == INVALID
        taken += status == OK
        if chance.random() < 0.05:
            for ctx in (e.host, *e.ranks):
                ok(lib.kvl_step(ctx))
    print(refused, "damaged messages refused,", taken, "taken")
    assert refused > 10000
    n = c.c_size_t()
    for ctx in (e.host, *e.ranks):
        ok(lib.kvl_stats(ctx, c.create_string_buffer(1 << 16), c.c_size_t(1 << 16), c.byref(n)))
    for ctx in (*e.ranks, e.host):
        ok(lib.kvl_close(ctx, c.c_uint64(10**9)))


main()
