"""The loop under pressure, with steps that overlap, with full tables, windows, two turns, sleep."""

import contextlib
import socket
import threading
import time
import unittest
import unittest.mock

import stage
from stage import PREFILL, SHORT, answer, nixl, prompt, until
from test_leases import Pair

import kvlease
from kvlease.vllm import owner, reader


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


class Turns(Pair):
    P = D = {"extra": {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 16, "decoder_kv_blocks_ttl": 60}, "own": {"all_peers_check": True}}

    def first(self, tokens, n):
        kv = self.prefill(tokens)
        id = self.decode(tokens, kv, n)
        self.check(id, tokens, n)
        return self.d.out[id].kv

    def again(self, tokens, kv):
        """The second turn at P, which then is read by D."""
        id = "p" + self.name()
        self.p.add(id, tokens, kv={**kv, **PREFILL})
        out = self.p.run(id, self.d)
        self.assertEqual(out.tokens, answer(tokens, 1))
        return out.kv

    def longer(self, seed, more=50):
        """The prompt of a second turn, and the parameters of the first."""
        tokens = prompt(100, seed)
        kv = self.first(tokens, 40)
        return tokens + answer(tokens, 40) + prompt(more, 6), kv

    def other(self, **options):
        """Another prefill engine, which has none of these blocks."""
        q = stage.Engine("q", caching=False, **self.P | options)
        self.addCleanup(q.close)
        return q

    def reading(self, q, id, tokens, kv):
        """A second turn at q whose read does not end until the transport is told so."""
        nixl.tell(f"hold {q.agent()} 1")
        q.add(id, tokens, kv={**kv, **PREFILL})
        until(lambda: q.ranks[0].stats()["read_data_posts"] > 0, q)

    def test_p_reads_what_d_has_kept(self):
        tokens = prompt(100)
        kv = self.first(tokens, 40)
        self.assertEqual((kv["do_remote_decode"], kv["remote_num_tokens"] > 130), (True, True))
        longer = tokens + answer(tokens, 40) + prompt(20, 5)
        before = self.p.ranks[0].stats()["read_bytes"]
        kv = self.again(longer, kv)
        self.assertGreater(self.p.ranks[0].stats()["read_bytes"], before)
        id = self.decode(longer, kv, 3)
        self.check(id, longer, 3)
        self.release()

    def test_a_turn_that_is_shorter_than_what_d_has_is_matched_by_position(self):
        tokens = prompt(100, 3)
        kv = self.first(tokens, 90)
        while self.p.turn() or not self.p.scheduler.reset_prefix_cache():
            pass
        shorter = tokens + answer(tokens, 90)[:10]
        self.again(shorter, kv)
        self.release()

    def test_a_second_turn_without_its_blocks_is_computed(self):
        tokens = prompt(100, 2)
        kv = self.first(tokens, 40)
        self.again(tokens + prompt(50, 6), {**kv, "remote_port": None})
        self.release()

    def test_a_second_turn_whose_read_fails_is_computed_if_the_policy_says_so_and_failed_else(self):
        for policy in ("recompute", "fail"):
            with self.subTest(policy):
                q = self.other(policy=policy)
                longer, kv = self.longer(4 + len(policy))
                self.reading(q, "a", longer, kv)
                self.release()
                self.d.rest(self.p)
                nixl.tell(f"hold {q.agent()} 0")
                out = q.run("a", self.d)
                self.assertEqual((out.tokens, out.reason), (answer(longer, 1), "length") if policy == "recompute" else ([], "error"))
                if policy == "recompute":
                    self.assertIsNotNone(out.kv)

    def test_a_second_turn_that_is_gone_before_it_is_read_is_computed_whatever_the_policy(self):
        for policy in ("recompute", "fail"):
            with self.subTest(policy):
                q = self.other(policy=policy)
                longer, kv = self.longer(24 + len(policy))
                self.release()
                self.d.rest(self.p)
                q.add("a", longer, kv={**kv, **PREFILL})
                until(lambda: q.side.poll() is not None and q.side._reader.lost("a"))
                out = q.run("a", self.d)
                self.assertEqual((out.tokens, out.reason), (answer(longer, 1), "length"))

    def test_a_second_turn_whose_decoder_cannot_be_reached_is_computed_whatever_the_policy(self):
        silent = socket.create_server(("127.0.0.1", 0))  # accepts, and says nothing
        self.addCleanup(silent.close)
        self.enterContext(unittest.mock.patch.object(reader, "SETTLE", 0.2))
        for policy in ("recompute", "fail"):
            for port in (silent.getsockname()[1], stage.free_port()):
                for own in ({}, {"drive": "inline"}):
                    with self.subTest(policy, port=port, own=own):
                        q = self.other(policy=policy, own=own)
                        tokens = prompt(150)
                        made_up = {"remote_engine_id": "nobody", "remote_request_id": "x", "remote_host": "127.0.0.1", "remote_port": port,
                                   "remote_block_ids": [[1, 2, 3, 4]], "remote_num_tokens": 120, "tp_size": 1}
                        q.add("a", tokens, kv={**made_up, **PREFILL})
                        q.add("b", prompt(90), 2)  # is not held up by it
                        q.run("b")
                        out = q.run("a")
                        self.assertEqual((out.tokens, out.reason), (answer(tokens, 1), "length"))
                        self.assertIsNotNone(out.kv)

    def test_a_second_turn_whose_decoder_goes_out_of_reach_in_the_middle_of_its_read_ends_as_the_policy_says(self):
        self.enterContext(unittest.mock.patch.object(reader, "SETTLE", 0.2))
        for policy in ("recompute", "fail"):
            with self.subTest(policy):
                q = self.other(policy=policy)
                longer, kv = self.longer(14 + len(policy))
                self.reading(q, "a", longer, kv)
                handle, = q.side._reader.engines._ids
                q.side._reader.engine_down(handle)
                out = q.run("a")
                self.assertEqual((out.tokens, out.reason), (answer(longer, 1), "length") if policy == "recompute" else ([], "error"))
                self.assertEqual(q.left()["aside"], 1)
                nixl.tell(f"hold {q.agent()} 0")
                until(lambda: q.side.poll() or not q.left().get("aside"))
                self.release()

    def test_a_prefill_of_a_second_turn_that_is_preempted_is_computed(self):
        q = self.other(blocks=24, tokens=64)
        longer, kv = self.longer(9, 32 * 12)
        q.add("a", longer, kv={**kv, **PREFILL})
        q.add("b", prompt(32 * 14, 7), 40)
        self.assertEqual(q.run("a", self.d).tokens, answer(longer, 1))
        self.assertEqual(q.run("b", self.d).tokens, answer(prompt(32 * 14, 7), 40))
        self.release()

    def release(self):
        self.end()
        for lease in self.d_leases:
            with contextlib.suppress(kvlease.Stale):
                self.d_producer.revoke(lease)

    def setUp(self):
        super().setUp()
        self.d_leases = []
        owner, test = self.d.side._owner, self
        if not hasattr(type(self), "d_producer"):
            type(self).d_producer = owner._producer
        real = type(self).d_producer

        class Spy:
            def __getattr__(self, name):
                return getattr(real, name)

            def grant(self, *args):
                test.d_leases.append(real.grant(*args))
                return test.d_leases[-1]

        owner._producer = Spy()


class Sleep(Pair):
    P = {"own": {"all_peers_check": True, "death_wire": True}}
    D = {"own": {"death_wire": True}}

    def sleep(self, engine):
        for r in engine.ranks:
            r.connector.unregister_kv_caches()

    def wake(self, engine):
        for r in engine.ranks:
            r.connector.restore_kv_caches()
        engine.publish()

    def test_engines_that_slept_serve_again(self):
        for who in (self.p, self.d):
            with self.subTest(who.name):
                tokens = prompt(100)
                self.check(self.decode(tokens, self.prefill(tokens)), tokens)
                before = who.agent()
                self.sleep(who)
                self.sleep(who)
                self.wake(who)
                self.wake(who)
                self.assertNotEqual(who.agent(), before)
                self.assertNotIn("kvlease_rank", stage.msgspec.msgpack.decode(who.side._ctx.handshake_get(0)))
                tokens = prompt(100, 7)
                self.check(self.decode(tokens, self.prefill(tokens)), tokens)

    def test_leases_of_before_the_sleep_are_void(self):
        d = stage.Engine("d2", policy="recompute", **SHORT)
        self.addCleanup(d.close)
        tokens = prompt(100, 3)
        kv = self.prefill(tokens)
        self.sleep(self.p)
        self.wake(self.p)
        self.p.rest()
        self.assertEqual(self.p.left(), {})
        d.add("a", tokens, 3, kv)
        self.assertEqual(d.run("a", self.p).tokens, answer(tokens, 3))

    def test_a_sleep_waits_for_a_read_that_was_aborted(self):
        tokens = prompt(100, 4)
        id = self.begin(tokens, self.prefill(tokens))
        self.d.abort(id)
        agent, ended = self.d.agent(), threading.Event()
        threading.Timer(0.3, lambda: (ended.set(), nixl.tell(f"hold {agent} 0"))).start()
        self.sleep(self.d)
        self.assertTrue(ended.is_set())
        self.wake(self.d)

    def test_an_idle_engine_can_reset_its_prefix_cache_once_its_leases_have_ended(self):
        tokens = prompt(100, 5)
        kv = self.prefill(tokens)
        while self.p.turn():
            pass
        self.assertFalse(self.p.scheduler.reset_prefix_cache())
        self.check(self.decode(tokens, kv), tokens)
        until(lambda: self.p.side._ctx.stats()["held"] == 0)
        until(self.p.scheduler.reset_prefix_cache)


if __name__ == "__main__":
    unittest.main()
