"""What a pass costs in Python does not depend on how many leases there are. Operations are counted, not time."""

import sys
import unittest

import stage
from stage import PREFILL, KVConnectorOutput, nixl, prompt, until
from vllm.v1.core.sched.output import SchedulerOutput

FEW, MANY = 10, 1000
EMPTY = SchedulerOutput.make_empty()


class Tally:
    """Passes of one engine as its loop makes them, and what they take."""

    def __init__(self, engine):
        self.scheduler, self.connector, self.worker = engine.scheduler, engine.connector, engine.ranks[0].connector
        self.told = KVConnectorOutput()

    def a_pass(self):
        meta = self.connector.build_connector_meta(EMPTY)
        c, self.told = self.worker, KVConnectorOutput()
        c.bind_connector_metadata(meta)
        c.start_load_kv(None)
        c.wait_for_save()
        results = c.get_transfer_results(set())
        self.told.finished_sending, self.told.finished_recving = results.finished_sending, results.finished_recving
        c.get_block_ids_with_load_errors()
        c.get_kv_connector_stats()
        self.told.kv_connector_worker_meta = c.build_connector_worker_meta()
        c.clear_connector_metadata()
        self.scheduler._update_from_kv_xfer_finished(self.told)
        self.connector.get_kv_connector_stats()

    def counted(self):
        """Calls and lines of one pass."""
        calls, lines = [], []

        def on_call(frame, what, argument):
            if what in ("call", "c_call"):
                calls.append(frame.f_code.co_name if what == "call" else argument.__name__)
            return on_call

        def on_line(frame, what, argument):
            if what == "line":
                lines.append((frame.f_code.co_name, frame.f_lineno))
            return on_line

        sys.settrace(on_line)
        sys.setprofile(on_call)
        try:
            self.a_pass()
        finally:
            sys.setprofile(None)
            sys.settrace(None)
        return calls, lines

    def least(self):
        """Of some passes the one with the fewest operations: what statistics do every few seconds, and events, come on top."""
        for _ in range(3):
            self.a_pass()
        return min((self.counted() for _ in range(20)), key=lambda counted: len(counted[1]))


class Passes(unittest.TestCase):
    def engine(self, name):
        e = stage.Engine(name, blocks=MANY + 64, seqs=256, tokens=8192, caching=False, extra={"kv_lease_duration": 600})
        self.addCleanup(e.close)
        return e

    def test_a_pass_takes_the_same_calls_and_lines_with_10_and_1000_leases(self):
        nixl.tell("reset")
        p, d = self.engine("p"), self.engine("d")
        tallies, seen = {"P": Tally(p), "D": Tally(d)}, {}
        held = 0
        for size in (FEW, MANY):
            ids = [f"r{n}" for n in range(held, size)]
            for id in ids:
                p.add(id, prompt(20, seed=held), kv=dict(PREFILL))
            until(lambda: all(p.out[id].over for id in ids), p)
            for id in ids:  # it waits in D's queue, since D makes no step
                d.add(id, prompt(20), 1, p.out[id].kv)
            held = size
            until(lambda: p.side._ctx.stats()["held"] == size and d.side._ctx.stats()["group_tracked"] == size)
            seen[size] = {side: tally.least() for side, tally in tallies.items()}
        for side in ("P", "D"):
            few, many = seen[FEW][side], seen[MANY][side]
            self.assertEqual(many[0], few[0], f"calls of a pass of {side}")
            self.assertEqual(many[1], few[1], f"lines of a pass of {side}")
            self.assertLess(len(few[1]), 120, f"lines of a pass of {side}")

    def test_a_pass_of_d_takes_the_same_calls_and_lines_with_2_and_60_peers(self):
        nixl.tell("reset")
        d, seen, peers = self.engine("d"), {}, 0
        tally, port = Tally(d), stage.free_port()
        for size in (2, 60):
            for n in range(peers, size):
                d.add(f"r{n}", prompt(20), 1, {
                    "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": f"peer {n}", "remote_request_id": f"r{n}",
                    "remote_host": "127.0.0.1", "remote_port": port, "remote_block_ids": [[1]], "remote_num_tokens": 20, "tp_size": 1})
            peers = size
            until(lambda: d.side._ctx.stats()["group_tracked"] == size)
            self.assertEqual(len(d.side._reader.engines), size)
            seen[size] = tally.least()
        self.assertEqual(seen[60], seen[2])

