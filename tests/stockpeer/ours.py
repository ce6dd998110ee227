"""An engine on kvlease over ctypes, driven by JSON lines like the stock peer; the peer's folder gives it lines and cache only.

usage: ours.py LIBRARY CONFIG [LAYERS BLOCKS]     CONFIG is the JSON object for kvl_open
"""

import ctypes as c
import faulthandler
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "peer"), os.path.join(HERE, "..", "..", "cmd", "libkvlease", "test")]
import cache  # noqa: E402
import lines  # noqa: E402
from kvl import Blocks, Bytes, Desc, Event, Grant, Read, Region, Remote  # noqa: E402

faulthandler.enable()
KINDS = {1: "freed", 2: "read_done", 3: "read_failed", 4: "blocks_back", 5: "lease_gone", 6: "at_risk", 7: "engine_up", 8: "engine_down",
         9: "poisoned", 10: "expect_lapsed"}
REASONS = {1: "completed", 2: "released", 3: "revoked", 4: "expired", 5: "poisoned", 6: "duplicate", 7: "closed"}
OUTCOMES = {0: "ok", 1: "stale", 2: "unproven", 3: "failed", 4: "timeout", 5: "cancelled", 6: "lost"}
PASS = 0.005


def text(s):
    b = s.encode()
    return Bytes(b, len(b))


def group(ids, first=0):
    return Blocks((c.c_uint32 * len(ids))(*ids), len(ids), first)


class Engine:
    def __init__(self, library, config, layers, blocks):
        self.lib = lib = c.CDLL(library)
        lib.kvl_last_error.restype = lib.kvl_status_name.restype = c.c_char_p
        lib.kvl_poll.argtypes = [c.c_void_p, c.POINTER(Event), c.c_size_t, c.c_uint32]
        lib.kvl_engine_handshake.argtypes = [c.c_void_p, c.c_uint64, c.c_uint32, Bytes]
        lib.kvl_track.argtypes = [c.c_void_p, c.c_uint64, c.POINTER(Remote), Bytes, c.c_uint64, c.POINTER(c.c_uint64)]
        for name in ("kvl_cancel", "kvl_revoke", "kvl_untrack"):
            getattr(lib, name).argtypes = [c.c_void_p, c.c_uint64]
        lib.kvl_expect.argtypes = [c.c_void_p, Bytes, c.POINTER(c.c_uint64)]
        lib.kvl_reject.argtypes = [c.c_void_p, c.c_uint64, c.POINTER(Remote)]
        lib.kvl_read.argtypes = [c.c_void_p, c.c_uint64, c.POINTER(Read)]
        lib.kvl_drain.argtypes = lib.kvl_close.argtypes = [c.c_void_p, c.c_uint64]
        self.lines = lines.Lines()
        self.config = json.dumps(config).encode()
        self.ctx, self.producer, err = c.c_void_p(), c.c_void_p(), c.create_string_buffer(512)
        if lib.kvl_open(self.config, c.c_size_t(len(self.config)), c.byref(self.ctx), err, c.c_size_t(512)) != 0:
            raise SystemExit(f"ours.py: {err.value.decode()}")
        self.ok(lib.kvl_producer_open(self.ctx, c.byref(self.producer)))
        self.cache = cache.Cache(layers, blocks)
        base, size = c.addressof(c.c_char.from_buffer(self.cache.memory)), self.cache.size
        regions = (Region * layers)(*[
            Region(base + i * size, size, cache.BLOCK_BYTES, cache.BLOCK_BYTES, blocks, 0, 0, 0, text(f"layer.{i}")) for i in range(layers)
        ])
        self.ok(lib.kvl_register(self.ctx, regions, c.c_size_t(c.sizeof(Region)), c.c_uint32(layers)))
        self.engines, self.leases, self.ids, self.tracks, self.names = {}, {}, {}, {}, {}
        self.stalled_until = 0.0

    def ok(self, status):
        if status != 0:
            raise RuntimeError(f"{self.lib.kvl_status_name(status).decode()}: {self.lib.kvl_last_error().decode()}")

    # ---- owner ----

    def do_handshake(self, rank=0):
        blob, n = c.create_string_buffer(1 << 20), c.c_size_t()
        self.ok(self.lib.kvl_handshake_get(self.ctx, c.c_uint32(rank), blob, c.c_size_t(len(blob)), c.byref(n)))
        return {"metadata": blob.raw[: n.value].hex()}

    def do_expect(self, id):
        lease = c.c_uint64()
        self.ok(self.lib.kvl_expect(self.producer, text(id), c.byref(lease)))
        self.leases[id] = lease.value
        self.ids[lease.value] = id

    def do_grant(self, id, blocks, fixed=0.0):
        """Fixed: a life in seconds that no heartbeat renews, for a second turn."""
        self.cache.fill(id, blocks)
        groups, lease = group(blocks), c.c_uint64()
        grant = Grant(size=c.sizeof(Grant), id=text(id), groups=c.pointer(groups), groups_n=1, tokens=16 * len(blocks),
                      expected=self.leases.get(id, 0), flags=int(fixed > 0), ttl_ns=int(fixed * 1e9))
        self.ok(self.lib.kvl_grant(self.producer, c.byref(grant), c.byref(lease)))
        self.leases[id] = lease.value
        self.ids[lease.value] = id
        out, n = c.create_string_buffer(1 << 16), c.c_size_t()
        self.ok(self.lib.kvl_params(self.ctx, lease, c.byref(grant), out, c.c_size_t(len(out)), c.byref(n)))
        return {"params": json.loads(out.value)}

    def do_revoke(self, id):
        self.ok(self.lib.kvl_revoke(self.producer, self.leases[id]))

    def do_pressure(self, blocks):
        self.ok(self.lib.kvl_pressure(self.producer, c.c_uint32(blocks)))

    # ---- reader ----

    def remote(self, params):
        params = json.dumps(params).encode()
        out, buf, need = Remote(size=c.sizeof(Remote)), c.create_string_buffer(1 << 16), c.c_size_t()
        self.ok(self.lib.kvl_params_read(params, c.c_size_t(len(params)), c.byref(out), buf, c.c_size_t(len(buf)), c.byref(need)))
        out.keep = buf
        return out

    def do_engine(self, params, side_channel=True, metadata=None):
        """Names the engine of these parameters. Its side channel is asked, or its map comes out of band, now or later."""
        engine_id = params["remote_engine_id"]
        desc = Desc(size=c.sizeof(Desc), ranks=params["tp_size"], engine_id=text(engine_id))
        if side_channel:
            desc.host, desc.port = text(params["remote_host"]), params["remote_port"]
        engine = c.c_uint64()
        self.ok(self.lib.kvl_engine_add(self.ctx, c.byref(desc), c.byref(engine)))
        self.engines[engine_id] = engine.value
        if metadata is not None:
            b = bytes.fromhex(metadata)
            self.ok(self.lib.kvl_engine_handshake(self.ctx, engine, 0, Bytes(b, len(b))))

    def do_track(self, id, params):
        remote, track = self.remote(params), c.c_uint64()
        self.ok(self.lib.kvl_track(self.producer, self.engines[params["remote_engine_id"]], c.byref(remote), text(id), 0, c.byref(track)))
        self.tracks[id] = track.value, params
        self.names[track.value] = id
        return {"native": remote.native}

    def do_read(self, id, blocks):
        track, params = self.tracks[id]
        self.cache.clear(blocks)
        local, remote = group(blocks), group(params["remote_block_ids"][0])
        read = Read(c.sizeof(Read), 1, c.pointer(local), c.pointer(remote))
        self.tracks[id] = track, dict(params, local=blocks)
        self.ok(self.lib.kvl_read(self.producer, track, c.byref(read)))

    def do_untrack(self, id):
        self.ok(self.lib.kvl_untrack(self.producer, self.tracks[id][0]))

    def do_reject(self, params):
        remote = self.remote(params)
        self.ok(self.lib.kvl_reject(self.producer, self.engines[params["remote_engine_id"]], c.byref(remote)))

    # ---- both ----

    def do_overwrite(self, id, blocks):
        self.cache.fill(id, blocks)

    def do_stall(self, seconds):
        """The forward loop does not pass."""
        self.stalled_until = time.monotonic() + seconds

    def do_stats(self):
        out, n = c.create_string_buffer(1 << 18), c.c_size_t()
        self.ok(self.lib.kvl_stats(self.ctx, out, c.c_size_t(len(out)), c.byref(n)))
        return {"stats": json.loads(out.value)}

    def do_drain(self, seconds):
        return {"status": self.lib.kvl_status_name(self.lib.kvl_drain(self.ctx, int(seconds * 1e9))).decode()}

    def step(self):
        status = self.lib.kvl_step(self.ctx)
        if status not in (0, -6):  # poisoned: the ends still come by kvl_poll
            self.ok(status)
        events = (Event * 64)()
        got = self.lib.kvl_poll(self.ctx, events, c.sizeof(Event), 64)
        if got < 0:
            self.ok(got)
        for e in events[:got]:
            self.on_event(e)

    def on_event(self, e):
        kind = KINDS.get(e.kind, str(e.kind))
        if kind in ("freed", "expect_lapsed"):
            self.lines.say(ev=kind, id=self.ids.get(e.handle), reason=REASONS.get(e.status), held=e.value1 / 1e9)
        elif kind in ("engine_up", "engine_down"):
            self.lines.say(ev=kind, engine_id=next((n for n, h in self.engines.items() if h == e.handle), None))
        elif kind in ("read_done", "read_failed"):
            id = self.names[e.handle]
            params = self.tracks[id][1]
            wrong = self.cache.wrong_blocks(params["remote_request_id"], params["local"]) if "local" in params else None
            self.lines.say(ev=kind, id=id, status=OUTCOMES.get(e.status), held=bool(e.flags & 1), wrong_blocks=wrong)
        else:
            self.lines.say(ev=kind, id=self.names.get(e.handle), left=e.value0 / 1e9)

    def run(self):
        self.lines.say(ev="ready", pid=os.getpid())
        while not self.lines.carry_out(self):
            if time.monotonic() >= self.stalled_until:
                self.step()
            time.sleep(PASS)
        self.lib.kvl_close(self.ctx, 10**9)
        self.lines.say(ev="bye")


if len(sys.argv) < 3:
    sys.exit(__doc__)
Engine(sys.argv[1], json.loads(sys.argv[2]), *(int(n) for n in sys.argv[3:5] or (2, 64))).run()
