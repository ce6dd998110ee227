"""Stock P: the owner of the blocks, as vLLM 0.33.0's pull connector is one. One rank.

What it holds of a request: _in_batch from its first step on, _leases (id -> deadline) once it has finished, _counts once
readers have reported. It believes every sender, forgets what has ended, and a message that it cannot read ends the engine.
"""

import signal
import time

import engine
import sidechannel
import wire


class Prefill(engine.Engine):
    def __init__(self, args):
        super().__init__(args)
        self._in_batch, self._leases, self._counts = set(), {}, {}
        self._blocks = {}  # id -> blocks that are pinned
        self._completions = {}  # id -> messages that arrived, for the driver
        self._pending = []  # ids to lease at the next step
        self._lose = {"beats": 0, "completions": 0}
        self._late = 0
        self._miss = 0
        payloads = {(0, args.tp_rank): wire.handshake_payload(self.hash, self.metadata())}
        self.listener = sidechannel.Listener(args.host, payloads)
        if args.port:
            self.listener.bind_again(args.host, args.port)
        self.listener.start()

    def ready(self):
        return {"port": self.listener.port}

    # ---- commands ----

    def do_prefill(self, id, blocks, tokens=None, ttl=None):
        """The request has finished: its blocks are leased in the next step, its parameters leave now. With a ttl, in vLLM's
        seconds, this is a decode engine that keeps them for the next turn."""
        taken = {b: other for other, held in self._blocks.items() for b in held}
        for b in blocks:
            if b in taken:
                raise ValueError(f"block {b} is pinned for {taken[b]}")
        self.cache.fill(id, blocks)
        self._blocks[id] = blocks
        self._in_batch.add(id)
        end = time.perf_counter() + (self.duration if ttl is None else ttl * self.args.second)
        self._pending.append((id, end))
        return {"params": wire.response_params(
            engine_id=self.args.engine_id, request_id=id, blocks=[blocks], host=self.args.host, port=self.listener.port,
            tp_size=self.args.tp_size, tokens=16 * len(blocks) if tokens is None else tokens, generation=1,
            expiry=None if ttl is None else end, owner_is_decode=ttl is not None,
        )}

    def do_overwrite(self, id, blocks):
        """Gives blocks that are free to another request."""
        for held in self._blocks.values():
            if set(held) & set(blocks):
                raise ValueError("one of them is pinned")
        self.cache.fill(id, blocks)

    def do_lose(self, what, count):
        """The next count messages of a kind, beats or completions, get lost."""
        self._lose[what] = count

    def do_pause(self, missed_polls):
        """Stops the process between two steps, until SIGCONT. The first polls after it find nothing, as was measured in half
        of the cases over TCP. Stopped from outside, it could be inside a poll, which would then find all that came."""
        self._miss = missed_polls
        self.lines.say(ev="pausing")
        signal.raise_signal(signal.SIGSTOP)

    def do_side_channel(self, deaf=False, delay=0.0):
        self.listener.deaf, self.listener.delay = deaf, delay

    def do_stats(self):
        return {"leases": sorted(self._leases), "completions": self._completions, "late": self._late,
                "left": {id: end - time.perf_counter() for id, end in self._leases.items()}}

    # ---- a step ----

    def step(self):
        for id, deadline in self._pending:
            if id in self._in_batch:  # a completion may have come first
                self._leases[id] = deadline
        self._pending.clear()
        for messages in self._poll():
            for message in messages:
                self._on_message(message.decode())
        now = time.perf_counter()
        for id in [id for id, deadline in self._leases.items() if now >= deadline]:
            self._free(id, "expired")

    def _poll(self):
        if self._miss > 0:
            self._miss -= 1
            return []
        return self.agent.get_new_notifs().values()

    def _on_message(self, message):
        if message.startswith(wire.HEARTBEAT):
            return self._on_heartbeat(message[len(wire.HEARTBEAT) :].split(","))
        if self._lost("completions"):
            return
        id, readers = message.rsplit(":", 1)
        if id not in self._leases and id not in self._in_batch:
            self._late += 1
            self.lines.say(ev="late", id=id)
            return
        self._completions[id] = self._completions.get(id, 0) + 1
        self._counts[id] = self._counts.get(id, 0) + 1
        if self._counts[id] == int(readers):
            self._free(id, "completed")

    def _on_heartbeat(self, ids):
        if self._lost("beats"):
            return
        now = time.perf_counter()
        known = [id for id in ids if id in self._leases]
        for id in known:
            self._leases[id] = max(self._leases[id], now + self.extension)
        self.lines.say(ev="beat", ids=ids, known=known)

    def _lost(self, what):
        if self._lose[what] == 0:
            return False
        self._lose[what] -= 1
        self.lines.say(ev="lost", what=what)
        return True

    def _free(self, id, why):
        self._in_batch.discard(id)
        self._leases.pop(id, None)
        reports = self._counts.pop(id, 0)
        blocks = self._blocks.pop(id, None)
        self.lines.say(ev="freed", id=id, reason=why, reports=reports, blocks=blocks)


if __name__ == "__main__":
    p = engine.arguments()
    p.add_argument("--port", type=int, default=0, help="of the side channel; 0: any")
    Prefill(p.parse_args()).run()
