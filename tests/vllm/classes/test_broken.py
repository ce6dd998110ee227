"""An engine whose contexts are broken goes on, and answers without them."""

import unittest

import stage
from stage import BRIEF, PREFILL, answer, prompt

from kvlease.vllm.meta import Stepped


class Broken(unittest.TestCase):
    def engine(self, name, **settings):
        e = stage.Engine(name, policy="recompute", extra=BRIEF, **settings)
        self.addCleanup(e.close)
        return e

    def test_requests_are_computed_where_a_context_is_broken(self):
        for who in ("p", "d"):
            for part in ("host", "rank"):
                for own in ({}, {"drive": "inline"}):
                    with self.subTest(engine=who, part=part, own=own):
                        engines = {name: self.engine(name, own=own) for name in "pd"}
                        p, d, broken = engines["p"], engines["d"], engines[who]
                        p.add("a", prompt(70), kv=dict(PREFILL))
                        d.add("a", prompt(70), 3, p.run("a", d).kv)
                        self.assertEqual(d.run("a", p).tokens, answer(prompt(70), 3))
                        (broken.side if part == "host" else broken.ranks[0].connector.connector_worker)._ctx.fence_all()
                        broken.add("x", prompt(50), 3)  # whatever turns the loop once
                        self.assertEqual(broken.run("x").tokens, answer(prompt(50), 3))
                        for n in (80, 90):
                            p.add(f"p{n}", prompt(n), kv=dict(PREFILL))
                            d.add(f"d{n}", prompt(n), 3, p.run(f"p{n}", d).kv)
                            self.assertEqual(d.run(f"d{n}", p).tokens, answer(prompt(n), 3))

    def test_one_broken_rank_of_several_is_told(self):
        self.assertTrue(Stepped(7, ()).aggregate(Stepped(7, (), True)).broken)
        self.assertFalse(Stepped(7, ()).aggregate(Stepped(7, ())).broken)


if __name__ == "__main__":
    unittest.main()
