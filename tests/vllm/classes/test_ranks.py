"""Engines of several workers: over one node's streams, and with messages that travel with vLLM's steps."""

import copy
import pickle
import time
import unittest
from types import SimpleNamespace

import stage
from stage import PREFILL, answer, nixl, prompt, until

from kvlease.vllm import settings
from kvlease.vllm.meta import Metadata, Stepped


def serve(test, p, d, n=4, length=100, seed=1):
    tokens = prompt(length, seed)
    id = f"x{time.monotonic_ns()}"
    p.add(id, tokens, kv=dict(PREFILL))
    kv = p.run(id).kv
    test.assertIsNotNone(kv)
    d.add(id, tokens, n, kv)
    test.assertEqual(d.run(id, p).tokens, answer(tokens, n))


class Sizes(unittest.TestCase):
    def test_prefill_and_decode_of_different_tensor_parallel_sizes(self):
        for carrier in ("process", "delta"):
            for tp_p, tp_d in ((2, 2), (2, 1), (1, 2)):
                for drive in ("pump", "inline"):
                    with self.subTest(carrier=carrier, p=tp_p, d=tp_d, drive=drive):
                        nixl.tell("reset")
                        own = {"carrier": carrier, "drive": drive}
                        p, d = stage.Engine("p", tp=tp_p, own=own), stage.Engine("d", tp=tp_d, own=own)
                        try:
                            for seed in range(3):
                                serve(self, p, d, seed=seed)
                            d.rest(p)
                            p.rest(d)
                        finally:
                            d.close()
                            p.close()


class Carried(unittest.TestCase):
    """Carrier delta: what ranks on other nodes need."""

    def setUp(self):
        own = {"carrier": "delta"}
        self.p, self.d = stage.Engine("p", tp=2, own=own), stage.Engine("d", tp=2, own=own)
        self.addCleanup(self.p.close)
        self.addCleanup(self.d.close)
        self.freed, count = [], self.p.side._source.count
        self.p.side._source.count = lambda name, label="", n=1: (self.freed.append(label) if name == "kvlease_leases_freed" else None, count(name, label, n))

    def quiet(self, *engines):
        """Turns engines until none wants to turn."""
        until(lambda: not any([e.turn() for e in engines]), *engines)

    def test_the_loop_turns_until_the_ranks_have_told_their_maps_and_then_stands_still(self):
        self.quiet(self.p)
        self.assertEqual(len(self.p.side._ctx.handshake_get(1)) > 100, True)
        made = self.p.made
        for _ in range(20):
            self.assertFalse(self.p.turn())
        self.assertEqual(self.p.made, made)

    def test_the_loop_turns_while_leases_are_held_since_their_ends_travel_with_its_steps(self):
        self.p.add("a", prompt(70), kv=dict(PREFILL))
        kv = self.p.run("a").kv
        for _ in range(50):
            self.assertTrue(self.p.turn())
            time.sleep(0.001)
        self.d.add("a", prompt(70), 4, kv)
        self.assertEqual(self.d.run("a", self.p).tokens, answer(prompt(70), 4))
        self.quiet(self.p, self.d)
        self.assertEqual((self.p.left(), self.d.left()), ({}, {}))

    def test_an_untrack_reaches_the_ranks_although_no_request_is_left(self):
        self.p.add("a", prompt(70), kv=dict(PREFILL))
        kv = self.p.run("a").kv
        self.d.add("a", prompt(70), 4, kv)
        self.d.abort("a")
        until(lambda: not (self.p.left() or [r for r in self.d.ranks if r.stats()["tracker_tracked"]]), self.p, self.d)
        self.assertEqual(self.freed, ["released"])  # not expired

    def test_a_step_message_that_is_lost_is_healed(self):
        serve(self, self.p, self.d)
        for engine in (self.p, self.d):
            take, lost = engine.side._carried.take, [3]

            def lossy(take=take, lost=lost):
                messages = take()
                if any(messages) and lost[0]:
                    lost[0] -= 1
                    return tuple(b"" for _ in messages)
                return messages

            engine.side._carried.take = lossy
        for seed in range(4):
            serve(self, self.p, self.d, seed=seed)
        self.quiet(self.p, self.d)
        self.assertEqual((self.p.left(), self.d.left()), ({}, {}))

    def test_an_idle_engine_serves_again(self):
        serve(self, self.p, self.d)
        self.quiet(self.p, self.d)
        time.sleep(1.5)  # longer than step_max
        serve(self, self.p, self.d, seed=2)
        self.quiet(self.p, self.d)


class Messages(unittest.TestCase):
    def test_they_are_pickled_as_vllm_does_it(self):
        m = pickle.loads(pickle.dumps(Metadata(7, ("a",), (b"x", b""))))
        self.assertEqual((m.step, m.failed, m.messages), (7, ("a",), (b"x", b"")))
        s = pickle.loads(pickle.dumps(Stepped(7, ((1, b"y"),))))
        self.assertEqual((s.step, s.messages), (7, ((1, b"y"),)))

    def test_those_of_all_ranks_are_joined(self):
        s = Stepped(7, ((0, b"x"),)).aggregate(Stepped(7, ((1, b"y"),)))
        self.assertEqual((s.step, s.messages), (7, ((0, b"x"), (1, b"y"))))

    def test_an_output_with_nothing_but_the_step_is_not_empty(self):
        self.assertTrue(Stepped(0))

    def test_the_carrier_follows_from_where_workers_may_be(self):
        config = stage.configuration("x", own={"carrier": None})
        for nodes, backend, world, want in ((1, "mp", 2, "shm"), (2, "mp", 16, "delta"), (1, "ray", 2, "delta"), (1, "ray", 1, "shm")):
            with self.subTest(nodes=nodes, backend=backend, world=world):
                c = copy.copy(config)
                c.parallel_config = SimpleNamespace(
                    nnodes_within_dp=nodes, distributed_executor_backend=backend, world_size=world, tensor_parallel_size=world, pipeline_parallel_size=1
                )
                self.assertEqual(settings.Settings(c).carrier, want)


if __name__ == "__main__":
    unittest.main()
