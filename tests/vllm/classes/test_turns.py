"""A second turn: the prefill engine reads what the decoder has kept."""

import contextlib
import socket
import unittest
import unittest.mock

import stage
from stage import PREFILL, answer, nixl, prompt, until
from test_leases import Pair

import kvlease
from kvlease.vllm import reader


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


if __name__ == "__main__":
    unittest.main()
