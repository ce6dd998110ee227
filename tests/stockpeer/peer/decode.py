"""Stock D: the reader of the blocks, as vLLM 0.33.0's pull connector is one. One process is one rank with its scheduler.

It tracks requests from their arrival, beats for them once per interval, drops the connection that a heartbeat made at an
engine's first read and makes it anew, reads without looking at any clock, and reports when it polls a read that has ended.
"""

import concurrent.futures
import time

import numpy
import engine
import sidechannel
import wire


SECOND_TURN_MARGIN = 5  # of vLLM's seconds


class Peer:
    """A connected engine: agent names and descriptor lists by rank."""

    def __init__(self):
        self.agents, self.lists, self.metadata = {}, {}, {}


class Decode(engine.Engine):
    def __init__(self, args):
        super().__init__(args)
        self._tracked = {}  # engine -> (ids of the owner, in order, once each; host, port, tp size)
        self._engine_of = {}  # local id -> (engine, owner's id)
        self._last_beat = 0.0
        self._executor = concurrent.futures.ThreadPoolExecutor(1)  # all handshakes, one after the other
        self._futures, self._peers = {}, {}
        self._generations = {}
        self._queue, self._waiting = [], []  # reads to start; reads that wait for a handshake
        self._reads = {}  # local id -> what is in flight
        self._lose = {"beats": 0, "completions": 0}
        self._own_lists = {}
        self._offsets = {}

    # ---- commands ----

    def do_track(self, id, params):
        """The request enters the scheduler."""
        needed = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size")
        if not params.get("do_remote_prefill") or any(params.get(key) is None for key in needed):
            raise ValueError("nothing to track")
        engine_id, owner_id = params["remote_engine_id"], params["remote_request_id"]
        place = params["remote_host"], params["remote_port"], params["tp_size"]
        ids, *_ = self._tracked.setdefault(engine_id, ({}, *place))
        ids[owner_id] = None
        self._engine_of[id] = engine_id, owner_id

    def do_read(self, id, params, blocks):
        """The request is scheduled with these local blocks; none: it was aborted, or has all of it already."""
        self.cache.clear(blocks)
        self._queue.append((id, params, blocks))

    def do_abort(self, id, params):
        """The request ends before its blocks were read: the owner gets a bare completion."""
        self._stop_tracking(id)
        self._queue.append((id, params, []))

    def do_send(self, engine_id, messages, rank=0):
        """Raw notifications to a connected engine."""
        for m in messages:
            self.agent.send_notif(self._peers[engine_id].agents[rank], notif_msg=bytes.fromhex(m))

    def do_lose(self, what, count):
        """The next count messages of a kind, beats or completions, are not sent. Not possible for those that ride on a read."""
        self._lose[what] = count

    def do_stats(self):
        return {"tracked": {e: list(ids) for e, (ids, *_) in self._tracked.items()}, "connected": sorted(self._peers),
                "offsets": self._offsets}

    # ---- a step ----

    def step(self):
        ready, self._waiting = self._waiting, []
        for read in ready:
            self._start(*read)
        queue, self._queue = self._queue, []
        for id, params, blocks in queue:
            if params.get("remote_registration_generation", 0) > self._generations.get(params["remote_engine_id"], 0):
                self._generations[params["remote_engine_id"]] = params["remote_registration_generation"]
                self._disconnect(params["remote_engine_id"])
            self._start(id, params, blocks)
        now = time.perf_counter()
        if self._tracked and now - self._last_beat >= self.interval:
            self._last_beat = now
            self._beat()
        self._poll()

    def _beat(self):
        for engine_id, (ids, host, port, tp_size) in self._tracked.items():
            peer = self._connect(engine_id, host, port, tp_size)
            if peer is None:
                continue  # this beat is used up
            for rank, agent in peer.agents.items():
                self._notify(agent, wire.heartbeat(ids), "beats")
            self.lines.say(ev="beat_sent", engine_id=engine_id, ids=list(ids))

    def _notify(self, agent, message, what):
        if self._lose[what] > 0:
            self._lose[what] -= 1
            return
        try:
            self.agent.send_notif(agent, notif_msg=message)
        except Exception as e:
            self.lines.say(ev="notify_failed", error=type(e).__name__)

    def _stop_tracking(self, id):
        engine_id, owner_id = self._engine_of.pop(id, (None, None))
        if engine_id in self._tracked:
            self._tracked[engine_id][0].pop(owner_id, None)  # not counted: the first of several local requests ends it
            if not self._tracked[engine_id][0]:
                del self._tracked[engine_id]

    # ---- connections ----

    def _targets(self, owner_tp):
        """Ranks of the owner that this rank reads from and reports to."""
        own, rank = self.args.tp_size, self.args.tp_rank
        if own >= owner_tp:
            return [rank // (own // owner_tp)]
        each = owner_tp // own
        return list(range(rank * each, (rank + 1) * each))

    def _connect(self, engine_id, host, port, owner_tp):
        """The connected engine, or None: a handshake is under way, or has just been started."""
        if engine_id in self._peers:
            return self._peers[engine_id]
        future = self._futures.get(engine_id)
        if future is None:
            self._futures[engine_id] = self._executor.submit(self._shake_hands, engine_id, host, port, owner_tp)
        elif future.done():
            del self._futures[engine_id]
            try:
                self._peers[engine_id] = future.result()
            except Exception as e:
                self.lines.say(ev="handshake_failed", engine_id=engine_id, error=f"{type(e).__name__}: {e}")
                return None
            self.lines.say(ev="connected", engine_id=engine_id)
            return self._peers[engine_id]
        return None

    def _shake_hands(self, engine_id, host, port, owner_tp):
        ranks = self._targets(owner_tp)
        maps, self._offsets[engine_id] = sidechannel.shake_hands(host, port, engine_id, self.hash, ranks)
        peer = Peer()
        for rank, m in maps.items():
            name = self.agent.add_remote_agent(m["agent_metadata"])
            peer.agents[rank], peer.metadata[rank] = name, m
            take = min(m["block_lens"][0], self.cache.block_len)
            offset = self.args.tp_rank % (self.args.tp_size // owner_tp) * take if self.args.tp_size > owner_tp else 0
            counts = m["region_num_blocks"] or [m["num_blocks"]] * len(m["block_lens"])
            rows = [(base + offset, take, m["device_id"], stride, n)
                    for base, stride, n in zip(m["kv_caches_base_addr"], m["block_strides"], counts)]
            peer.lists[rank] = self.agent.prep_xfer_dlist(name, numpy.array(rows, dtype=numpy.uint64), mem_type="DRAM")
        return peer

    def _disconnect(self, engine_id):
        peer = self._peers.pop(engine_id, None)
        for rank, agent in peer.agents.items() if peer else ():
            peer.lists[rank].release()
            self.agent.remove_remote_agent(agent)

    # ---- reads ----

    def _own_list(self, piece, pieces):
        """Descriptors of the piece of every local block that one owner rank fills."""
        key = piece, pieces
        if key not in self._own_lists:
            c = self.cache
            size = c.block_len // pieces
            rows = [(self.base + i * c.size + piece * size, size, 0, c.block_len, c.blocks) for i in range(c.layers)]
            self._own_lists[key] = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", numpy.array(rows, dtype=numpy.uint64), mem_type="DRAM")
        return self._own_lists[key]

    def _start(self, id, params, blocks):
        engine_id, owner_tp = params["remote_engine_id"], params["tp_size"]
        peer = self._connect(engine_id, params["remote_host"], params["remote_port"], owner_tp)
        if peer is None:
            self._waiting.append((id, params, blocks))
            return
        report = wire.completion(params["remote_request_id"], wire.readers_of(self.args.tp_size, owner_tp))
        if not blocks:
            for agent in peer.agents.values():
                self._notify(agent, report, "completions")
            self.lines.say(ev="released", id=id)
            return
        expiry = params.get("remote_blocks_expiry_time")
        if expiry is not None:
            left = expiry - self._offsets.get(engine_id, 0.0) - time.perf_counter()
            if left <= SECOND_TURN_MARGIN * self.args.second:  # nothing is sent: the owner waits for its end
                self.lines.say(ev="declined", id=id, left=left)
                return
        theirs = wire.tail(params["remote_block_ids"][0], len(blocks))
        here = numpy.array(wire.descriptors(blocks, [self.cache.blocks] * self.cache.layers), dtype=numpy.int64)
        handles = []
        for piece, rank in enumerate(sorted(peer.agents)):
            m = peer.metadata[rank]
            counts = m["region_num_blocks"] or [m["num_blocks"]] * len(m["block_lens"])
            there = numpy.array(wire.descriptors(theirs, counts), dtype=numpy.int64)
            own = self._own_list(piece, len(peer.agents))
            handle = self.agent.make_prepped_xfer("READ", own, here, peer.lists[rank], there, notif_msg=report)
            self.agent.transfer(handle)
            handles.append(handle)
        self._reads[id] = handles, params, blocks

    def _poll(self):
        for id, (handles, params, blocks) in list(self._reads.items()):
            states = [self.agent.check_xfer_state(h) for h in handles]
            if "PROC" in states:
                continue
            for h in handles:
                self.agent.release_xfer_handle(h)
            del self._reads[id]
            self._stop_tracking(id)
            if all(s == "DONE" for s in states):
                first = len(params["remote_block_ids"][0]) - len(blocks)
                wrong = self.cache.wrong_blocks(params["remote_request_id"], blocks, first)
                self.lines.say(ev="read_done", id=id, wrong_blocks=wrong)
            else:
                self.lines.say(ev="read_failed", id=id)


if __name__ == "__main__":
    Decode(engine.arguments().parse_args()).run()
