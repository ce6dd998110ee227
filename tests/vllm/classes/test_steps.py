"""The loop inline, with steps that overlap, under pressure, with full tables, windows and speculation."""

import unittest
import unittest.mock

import stage
from stage import PREFILL, SHORT, answer, prompt, until
from test_leases import Pair

import kvlease
from kvlease.vllm import owner


class Inline(Pair):
    P = D = {"own": {"drive": "inline"}}

    def test_everything_happens_in_the_engines_steps(self):
        for seed in range(3):
            tokens = prompt(100, seed)
            kv = self.prefill(tokens)
            for _ in range(10):
                self.assertTrue(self.p.turn(), "the loop turns while leases are held")
            self.check(self.decode(tokens, kv), tokens)
        self.d.rest(self.p)
        self.p.rest(self.d)
        self.assertFalse(self.p.turn())

    def test_an_abort_at_every_turn(self):
        for turns in range(6):
            with self.subTest(turns=turns):
                tokens = prompt(100, 50 + turns)
                id = self.decode(tokens, self.prefill(tokens), 3)
                for _ in range(turns):
                    self.d.turn()
                self.d.abort(id)
                self.d.rest(self.p)
                self.p.rest(self.d)


class Overlapping(Pair):
    """Async scheduling: two steps under way."""

    P = D = {"asynchronous": True}

    def test_many_requests_at_once(self):
        jobs = []
        for seed in range(12):
            tokens = prompt(40 + 17 * seed, seed)
            jobs.append((self.decode(tokens, self.prefill(tokens), 9), tokens))
        for id, tokens in jobs:
            self.check(id, tokens, 9)

    def test_blocks_of_a_lease_that_ends_at_once_stay_until_the_steps_before_its_grant_are_made(self):
        owner, pool = self.p.side._owner, self.p.pool
        id = self.name()
        self.p.add(id, prompt(100), kv=dict(PREFILL))
        while not owner._held:
            self.p.turn()
        (user, held), = owner._held.items()
        self.p.side._producer.cancel(self.leases[user])
        until(lambda: self.p.side.poll() is not None and (owner._back or not owner._held))
        if held.step > self.p.side._seen:  # a step is under way that was handed out before
            self.assertTrue(all(b.ref_cnt for b in held.blocks))
        self.p.rest()
        self.assertEqual(pool.get_num_free_blocks(), self.p.blocks - 1)

    def test_an_abort_at_every_turn(self):
        for turns in range(8):
            with self.subTest(turns=turns):
                tokens = prompt(100, 80 + turns)
                id = self.decode(tokens, self.prefill(tokens), 6)
                other = prompt(90, 80 + turns)
                second = self.decode(other, self.prefill(other), 6)
                for _ in range(turns):
                    self.d.turn()
                self.d.abort(id)
                self.check(second, other, 6)

    def test_failures_and_answers_mix(self):
        for seed in range(6):
            tokens = prompt(100, 100 + seed)
            kv = self.prefill(tokens)
            id = self.decode(tokens, kv if seed % 2 else {**kv, "remote_block_ids": [[1]]}, 5)
            self.d.run(id, self.p)
            self.assertEqual(self.d.out[id].reason, "length" if seed % 2 else "error")
            self.assertEqual(self.d.out[id].tokens, answer(tokens, 5) if seed % 2 else [])
        self.end()


class Pressure(unittest.TestCase):
    def engine(self, name, **settings):
        e = stage.Engine(name, **settings)
        self.addCleanup(e.close)
        return e

    def test_a_request_that_finds_no_block_is_not_kept_waiting_for_ever_by_leases_that_nobody_ends(self):
        p = self.engine("p", blocks=14, tokens=32, caching=False)
        for i in range(2):
            p.add(f"held{i}", prompt(32 * 3, i), kv=dict(PREFILL))
            p.run(f"held{i}")
        until(lambda: p.left()["leases"] == 2)
        p.add("a", prompt(32 * 3, 5), 65)
        p.add("b", prompt(32 * 3, 6), 65)
        until(lambda: p.out["a"].over and p.out["b"].over, p)
        self.assertEqual(p.left(), {"leases": 2, "held": 2, "blocks": 6, "refs": 6})
        self.assertEqual((p.out["a"].tokens, p.out["b"].tokens), (answer(prompt(32 * 3, 5), 65), answer(prompt(32 * 3, 6), 65)))

    def test_blocks_of_leases_that_can_be_taken_back_go_to_a_running_request_before_it_is_preempted(self):
        p = self.engine("p", blocks=12, caching=False, own={"all_peers_check": True})
        for i in range(2):
            p.add(f"held{i}", prompt(32 * 3, i), kv=dict(PREFILL))
            p.run(f"held{i}")
        p.add("a", prompt(32 * 4, 5), 100)
        patience, preempted = unittest.mock.patch.object(owner, "PATIENCE", 60), []  # a busy machine needs more than the engine would give
        self.enterContext(patience)
        before = p.scheduler._preempt_request
        p.scheduler._preempt_request = lambda request, *a, **k: (preempted.append(request.request_id), before(request, *a, **k))
        self.assertEqual(p.run("a").tokens, answer(prompt(32 * 4, 5), 100))
        self.assertEqual(preempted, [])

    def test_a_preempted_prefill_is_granted_and_read_all_the_same(self):
        p, d = self.engine("p", blocks=14, tokens=64, caching=False), self.engine("d")
        prompts = {f"r{i}": prompt(32 * 5, i) for i in range(3)}
        for id, tokens in prompts.items():
            p.add(id, tokens, kv=dict(PREFILL))
        for id, tokens in prompts.items():
            kv = p.run(id, d).kv
            d.add(id, tokens, 3, kv)
            self.assertEqual(d.run(id, p).tokens, answer(tokens, 3))

    def test_a_preempted_decode_is_computed_again(self):
        p, d = self.engine("p"), self.engine("d", blocks=12, caching=False)
        prompts = {f"r{i}": prompt(32 * 3, i) for i in range(3)}
        for id, tokens in prompts.items():
            p.add(id, tokens, kv=dict(PREFILL))
            d.add(id, tokens, 70, p.run(id).kv)
        for id, tokens in prompts.items():
            self.assertEqual(d.run(id, p).tokens, answer(tokens, 70))
        d.rest(p)
        p.rest(d)

    def test_full_tables_cost_only_those_that_find_no_room(self):
        for name, p_own, d_own in (
            ("requests_max", {"requests_max": 2}, {}),
            ("tracked_max", {}, {"tracked_max": 2}),
            ("reads_max", {}, {"reads_max": 1}),
            ("engines_max", {}, {"engines_max": 1}),
        ):
            with self.subTest(name):
                p = stage.Engine("p", extra=SHORT["extra"], own={**SHORT["own"], **p_own})
                d = stage.Engine("d", extra=SHORT["extra"], own={**SHORT["own"], **d_own}, policy="recompute")
                try:
                    prompts = {f"r{i}": prompt(70 + i, i) for i in range(5)}
                    for id, tokens in prompts.items():
                        p.add(id, tokens, kv=dict(PREFILL))
                    for id, tokens in prompts.items():
                        d.add(id, tokens, 3, p.run(id).kv)
                    for id, tokens in prompts.items():
                        self.assertEqual(d.run(id, p).tokens, answer(tokens, 3))
                    d.rest(p)
                    p.rest(d)
                finally:
                    d.close()
                    p.close()

    def test_reads_that_find_no_room_in_the_ring_are_tried_again(self):
        p, d = self.engine("p"), self.engine("d")
        read, full = d.side._reader._producer, [3]

        class Ring:
            def __getattr__(self, name):
                return getattr(read, name)

            def read(self, *args):
                if full[0]:
                    full[0] -= 1
                    raise kvlease.Full("no room")
                return read.read(*args)

        d.side._reader._producer = Ring()
        p.add("a", prompt(70), kv=dict(PREFILL))
        d.add("a", prompt(70), 3, p.run("a").kv)
        self.assertEqual(d.run("a", p).tokens, answer(prompt(70), 3))
        full[0] = 1000
        p.add("b", prompt(80), kv=dict(PREFILL))
        d.add("b", prompt(80), 3, p.run("b").kv)
        for _ in range(5):
            d.turn()
        d.abort("b")
        d.rest(p)
        p.rest(d)

    def test_engines_that_nobody_needs_make_room_for_others(self):
        p, d = self.engine("p"), self.engine("d", policy="recompute", own={"engines_max": 4})
        refused, count = [], d.side._source.count
        d.side._source.count = lambda name, *a: (refused.append(name) if name == "kvlease_params_refused" else None, count(name, *a))
        for i in range(12):
            p.add(f"r{i}", prompt(70, i), kv=dict(PREFILL))
            kv = p.run(f"r{i}").kv
            d.add(f"x{i}", prompt(70, i), 2, {**kv, "remote_engine_id": f"made up {i}", "remote_port": 1})
            d.abort(f"x{i}")
            d.add(f"r{i}", prompt(70, i), 2, kv)
            self.assertEqual(d.run(f"r{i}", p).tokens, answer(prompt(70, i), 2))
        self.assertLessEqual(len(d.side._reader.engines), 4)
        self.assertEqual(refused, [])


class Windows(unittest.TestCase):
    """Two groups, one with a sliding window."""

    def test_a_request_of_two_groups(self):
        for tp in (1, 2):
            with self.subTest(tp=tp):
                p, d = stage.Engine("p", window=64, tp=tp), stage.Engine("d", window=64, tp=tp)
                try:
                    for n in (20, 64, 100, 300):
                        tokens = prompt(n, n)
                        id = f"r{n}"
                        p.add(id, tokens, kv=dict(PREFILL))
                        kv = p.run(id).kv
                        self.assertEqual(len(kv["remote_block_ids"]), 2)
                        d.add(id, tokens, 4, kv)
                        self.assertEqual(d.run(id, p).tokens, answer(tokens, 4))
                    d.rest(p)
                    p.rest(d)
                finally:
                    d.close()
                    p.close()


class Speculation(unittest.TestCase):
    """Blocks that are kept ready for speculative tokens lie behind those of the prompt."""

    def test_they_are_neither_handed_out_nor_read_into(self):
        for window in (0, 64):
            for who in ("p", "d", "pd"):
                with self.subTest(window=window, who=who):
                    p, d = stage.Engine("p", window=window), stage.Engine("d", window=window)
                    try:
                        for e in (p, d):
                            if e.name in who:
                                e.scheduler.num_lookahead_tokens = 70  # more than two blocks
                        for n in (20, 31, 32, 33, 100, 300):
                            tokens, id = prompt(n, n), f"r{n}"
                            p.add(id, tokens, kv=dict(PREFILL))
                            kv = p.run(id).kv
                            self.assertEqual(len(kv["remote_block_ids"][0]), -(-n // 32))
                            d.add(id, tokens, 4, kv)
                            self.assertEqual(d.run(id, p).tokens, answer(tokens, 4))
                        d.rest(p)
                        p.rest(d)
                    finally:
                        d.close()
                        p.close()


if __name__ == "__main__":
    unittest.main()
