"""An engine whose contexts are broken goes on, and answers without them."""

import unittest

import stage
from stage import BRIEF, PREFILL, answer, nixl, prompt, until

from kvlease.vllm.meta import Stepped


class Broken(unittest.TestCase):
    def setUp(self):
        nixl.tell("reset")

    def engine(self, name, policy="recompute", **settings):
        e = stage.Engine(name, policy=policy, extra=BRIEF, **settings)
        self.addCleanup(e.close)
        return e

    def served(self, p, d, id, n):
        """By way of both; the prompt has n tokens."""
        p.add(id, prompt(n), kv=dict(PREFILL))
        d.add(id, prompt(n), 3, p.run(id, d).kv)
        self.assertEqual(d.run(id, p).tokens, answer(prompt(n), 3))

    def test_requests_are_computed_where_a_context_is_broken(self):
        for who in ("p", "d"):
            for part in ("host", "rank"):
                for own in ({}, {"drive": "inline"}):
                    with self.subTest(engine=who, part=part, own=own):
                        engines = {name: self.engine(name, own=own) for name in "pd"}
                        p, d, broken = engines["p"], engines["d"], engines[who]
                        self.served(p, d, "a", 70)
                        fence(broken, part)
                        for n in (80, 90):  # the first is on its way before anybody knows
                            self.served(p, d, f"b{n}", n)

    def test_reads_under_way_end_their_requests_and_keep_their_blocks_aside(self):
        for part in ("host", "rank"):
            for policy in ("recompute", "fail"):
                for own in ({}, {"drive": "inline"}):
                    with self.subTest(part=part, policy=policy, own=own):
                        p, d = self.engine("p"), self.engine("d", policy, own=own)
                        jobs = {f"r{i}": prompt(70, i) for i in range(4)}
                        kv = {}
                        for id, tokens in jobs.items():
                            p.add(id, tokens, kv=dict(PREFILL))
                            kv[id] = p.run(id, d).kv
                        nixl.tell(f"hold {d.agent()} 1")
                        for id in ("r0", "r1", "r2"):
                            d.add(id, jobs[id], 3, kv[id])
                        until(lambda: d.ranks[0].stats()["read_data_posts"] >= 3, d)
                        d.abort("r1")
                        fence(d, part)
                        d.add("r3", jobs["r3"], 3, kv["r3"])
                        for id in ("r0", "r2", "r3"):
                            out = d.run(id)
                            self.assertEqual((out.tokens, out.reason), (answer(jobs[id], 3), "length") if policy == "recompute" else ([], "error"))
                        until(lambda: not d.scheduler.requests, d)
                        self.assertGreaterEqual(d.left()["blocks"], 9)
                        fill = prompt(d.free() * 32 - 1, 9)
                        d.add("fill", fill)
                        self.assertEqual(d.run("fill").tokens, answer(fill, 1))
                        until(lambda: not d.turn(), d)

    def test_one_broken_rank_of_several_is_told(self):
        self.assertTrue(Stepped(7, ()).aggregate(Stepped(7, (), True)).broken)
        self.assertFalse(Stepped(7, ()).aggregate(Stepped(7, ())).broken)


def fence(engine, part):
    """Breaks the context of the scheduler's side, or that of its only rank."""
    (engine.side if part == "host" else engine.ranks[0].connector.connector_worker)._ctx.fence_all()


if __name__ == "__main__":
    unittest.main()
