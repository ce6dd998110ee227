"""Prefill's half and decode's half of one request, at every stage at which it can end."""

import contextlib
import socket
import threading
import time
import unittest

import stage
from stage import BRIEF, PREFILL, SHORT, answer, nixl, prompt, until

import kvlease


class Pair(unittest.TestCase):
    """A prefill and a decode engine for all tests of a class; each test leaves them as it found them."""

    P, D = {}, {}

    @classmethod
    def setUpClass(cls):
        nixl.tell("reset")
        cls.p, cls.d = stage.Engine("p", **cls.P), stage.Engine("d", **cls.D)
        cls.count = 0

    @classmethod
    def tearDownClass(cls):
        cls.d.close()
        cls.p.close()

    def tearDown(self):
        self.d.rest(self.p)
        self.p.rest(self.d)

    def name(self):
        type(self).count += 1
        return f"r{self.count}"

    def prefill(self, tokens, **more):
        """P has computed a prompt. Returns its parameters."""
        id = "p" + self.name()
        self.p.add(id, tokens, kv={**PREFILL, **more})
        return self.p.run(id).kv

    def decode(self, tokens, kv, n=4):
        """D has a request for it in its queue. Returns its id."""
        id = "d" + self.name()
        self.d.add(id, tokens, n, kv)
        return id

    def begin(self, tokens, kv):
        """D reads for a request, and its transfers do not end."""
        nixl.tell(f"hold {self.d.agent()} 1")
        posts = self.d.ranks[0].stats()["read_data_posts"]
        id = self.decode(tokens, kv)
        until(lambda: self.d.ranks[0].stats()["read_data_posts"] > posts, self.d)
        return id

    def check(self, id, tokens, n=4):
        """It is answered as by one engine."""
        self.assertEqual((self.d.run(id, self.p).tokens, self.d.out[id].reason), (answer(tokens, n), "length"))

    def end_lease(self):
        """P takes all blocks back whatever anybody reads, and gives them to another prompt."""
        self.end()
        self.p.rest()
        self.overwrite()

    def end(self):
        """P holds nothing any more, if nobody reads."""
        for user in list(self.p.side._owner._held):
            with contextlib.suppress(kvlease.Stale):
                self.p.side._producer.revoke(self.leases[user])

    def overwrite(self, engine=None):
        """All free blocks of P, or of another engine, hold another prompt."""
        id, engine = "x" + self.name(), engine or self.p
        tokens = prompt(engine.free() * 32 - 1, seed=1000 + self.count)
        engine.add(id, tokens)
        self.assertEqual(engine.run(id).tokens, answer(tokens, 1))

    def setUp(self):
        self.leases = {}
        owner = self.p.side._owner
        grant, test = type(owner._producer).grant, self

        class Spy:  # leases by user, to end them from outside
            def __getattr__(self, name):
                return getattr(test.p.side._producer, name)

            def grant(self, id, groups, tokens, ttl, expected, user, fixed):
                test.leases[user] = grant(test.p.side._producer, id, groups, tokens, ttl, expected, user, fixed)
                return test.leases[user]

        if not hasattr(self.p.side, "_producer"):
            self.p.side._producer = owner._producer
        owner._producer = Spy()


class Whole(Pair):
    def test_what_p_computed_is_read_and_answered_as_by_one_engine(self):
        for n in (1, 31, 32, 33, 200):
            with self.subTest(tokens=n):
                tokens = prompt(n, seed=n)
                self.check(self.decode(tokens, self.prefill(tokens)), tokens)

    def test_an_idle_engine_does_not_turn_for_its_leases(self):
        kv = self.prefill(prompt(70))
        while self.p.turn():
            pass
        self.assertFalse(self.p.scheduler.has_requests())
        self.assertEqual(self.p.left()["blocks"], 3)
        id = self.decode(prompt(70), kv)
        self.check(id, prompt(70))
        until(lambda: self.p.side.poll() or not self.p.left())
        self.assertEqual(self.p.left(), {}, "D's completion alone gives the blocks back")

    def test_the_parameters_are_vllms_with_our_key(self):
        kv = self.prefill(prompt(70))
        self.assertEqual(
            {k: kv[k] for k in ("do_remote_prefill", "do_remote_decode", "remote_host", "remote_port", "remote_num_tokens", "tp_size")},
            {"do_remote_prefill": True, "do_remote_decode": False, "remote_host": "127.0.0.1", "remote_port": self.p.port, "remote_num_tokens": 70, "tp_size": 1},
        )
        self.assertEqual(kvlease.params_read(kv).native, True)
        self.decode(prompt(70), kv)

    def test_one_handshake_serves_heartbeats_and_reads(self):
        for seed in range(3):
            tokens = prompt(100, seed)
            self.check(self.decode(tokens, self.prefill(tokens)), tokens)
        self.assertEqual(self.d.side._ctx.stats()["side_client_fetched"], 1)  # in the whole class

    def test_a_request_without_parameters_takes_no_part(self):
        tokens = prompt(90)
        id = self.name()
        self.d.add(id, tokens, 3)
        self.assertEqual((self.d.run(id).tokens, self.d.out[id].kv), (answer(tokens, 3), None))


class Slow:
    """Stands between D and a listener, and passes nothing on until it is told to."""

    def __init__(self, test, port):
        self.socket, self.to, self.goes, self.asked = socket.create_server(("127.0.0.1", 0)), port, threading.Event(), threading.Event()
        self.port = self.socket.getsockname()[1]
        test.addCleanup(self.socket.close)
        test.addCleanup(self.goes.set)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self.socket.accept()
                self.asked.set()
                threading.Thread(target=self.carry, args=(ours,), daemon=True).start()

    def carry(self, ours):
        self.goes.wait()
        with contextlib.suppress(OSError), ours, socket.create_connection(("127.0.0.1", self.to)) as theirs:
            back = threading.Thread(target=copy, args=(theirs, ours), daemon=True)
            back.start()
            copy(ours, theirs)
            back.join()


def copy(a, b):
    with contextlib.suppress(OSError):
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)


class Handshakes(Pair):
    P = D = {"extra": {"kv_lease_duration": 6000.0}}

    def test_a_heartbeat_that_was_due_while_the_handshake_ran_leaves_once_it_is_over(self):
        slow = Slow(self, self.p.port)
        tokens = prompt(70)
        id = self.decode(tokens, {**self.prefill(tokens), "remote_port": slow.port})
        self.assertTrue(slow.asked.wait(60))
        slow.goes.set()
        until(lambda: self.p.ranks[0].stats()["beats_applied"])  # the next is due in 1000 s
        self.check(id, tokens)


class Aborts(Pair):
    P = {"tokens": 32}

    def test_a_prefill_that_is_aborted_between_chunks_holds_nothing(self):
        id = self.name()
        self.p.add(id, prompt(100), kv=dict(PREFILL))
        self.p.turn()
        self.assertEqual(self.p.left()["expected"], 1)
        self.p.abort(id)
        self.p.rest()
        self.assertEqual(self.p.out[id].kv, None)

    def test_the_release_of_a_request_that_was_never_scheduled_needs_no_step_of_d(self):
        kv = self.prefill(prompt(70))
        id = self.decode(prompt(70), kv)
        self.d.abort(id)
        until(lambda: self.p.side.poll() or not self.p.left())
        self.assertEqual(self.p.left(), {})

    def test_a_request_that_is_aborted_while_it_reads_keeps_its_blocks_until_the_transfer_has_ended(self):
        kv = self.prefill(prompt(70))
        id = self.begin(prompt(70), kv)
        self.d.abort(id)
        until(lambda: id not in self.d.scheduler.requests, self.d)
        self.overwrite(self.d)
        self.assertEqual((self.d.left()["blocks"], self.d.left()["aside"]), (3, 1))
        nixl.tell(f"hold {self.d.agent()} 0")
        self.d.rest(self.p)

    def test_an_abort_after_the_read_changes_nothing_for_others(self):
        tokens = prompt(70)
        first, second = self.prefill(tokens), self.prefill(prompt(80, 2))
        id, other = self.decode(tokens, first, 50), self.decode(prompt(80, 2), second)
        until(lambda: self.d.out[id].tokens, self.d)
        self.d.abort(id)
        self.check(other, prompt(80, 2))

    def test_an_abort_at_once_as_vllm_cleans_up_what_it_refuses(self):
        kv = self.prefill(prompt(70))
        id = self.name()
        self.d.add(id, prompt(70), 1, kv)
        self.d.abort(id)
        self.d.rest(self.p)
        self.p.rest()


class Failures:
    """What is tried under both policies; `lost` says how a request ends whose load has failed."""

    def test_a_lease_that_ends_while_the_request_waits(self):
        tokens = prompt(70)
        id = self.decode(tokens, self.prefill(tokens))
        until(lambda: self.d.side._ctx.stats()["group_tracked"] == 1 and self.d.side.poll() is not None)
        self.end_lease()
        until(lambda: self.d.side.poll() is not None and self.d.side._reader.lost(id))
        self.lost(id, tokens)

    def test_a_lease_that_ends_while_the_data_is_read(self):
        tokens = prompt(70)
        id = self.begin(tokens, self.prefill(tokens))
        self.end_lease()
        nixl.tell(f"hold {self.d.agent()} 0")
        self.lost(id, tokens)

    def test_a_transfer_that_fails(self):
        tokens = prompt(70)
        kv = self.prefill(tokens)
        until(lambda: self.d.side.poll() is not None)
        for n in range(1, 20):  # reads of rows are among them
            nixl.tell(f"fail create_xfer_req {n} -2")
        self.addCleanup(nixl.tell, "reset")
        self.lost(self.decode(tokens, kv), tokens)

    def test_parameters_that_are_used_a_second_time(self):
        tokens = prompt(70)
        kv = self.prefill(tokens)
        self.check(self.decode(tokens, dict(kv)), tokens)
        self.d.rest(self.p)
        self.p.rest()
        self.overwrite()
        self.assertTrue(self.d.scheduler.reset_prefix_cache())
        self.lost(self.decode(tokens, dict(kv)), tokens)

    def test_an_engine_that_is_gone(self):
        tokens = prompt(70)
        other = stage.Engine("q", **SHORT)
        other.add("q1", tokens, kv=dict(PREFILL))
        kv = other.run("q1").kv
        other.close()
        d = stage.Engine("d2", policy=self.D["policy"], **SHORT)
        self.addCleanup(d.close)
        d.add("a", tokens, 4, kv)
        self.assertEqual((d.run("a").reason, d.out["a"].tokens), ("error", []) if self.D["policy"] == "fail" else ("length", answer(tokens, 4)))

    def test_an_abort_of_a_request_whose_load_has_failed(self):
        tokens = prompt(70)
        kv = {**self.prefill(tokens), "remote_port": "x"}
        id = self.decode(tokens, kv)
        self.d.schedule()  # it is handed out as failed, if it waits for a load
        self.d.abort(id)
        self.d.answer()
        self.d.rest()
        self.p.side._producer.revoke(self.leases.popitem()[1])

    def test_a_read_that_times_out_ends_its_request_and_its_blocks_stay_aside_until_the_transfer_has_ended(self):
        for aborted in (False, True):
            with self.subTest(aborted=aborted):
                d = stage.Engine("slow", policy=self.D["policy"], extra=BRIEF, own={"read_timeout": 1.0, "quarantine_error_wait": 600})
                self.addCleanup(d.close)
                tokens = prompt(70)
                d.add("t", tokens, 4, self.prefill(tokens))
                nixl.tell(f"hold {d.agent()} 1")
                if aborted:
                    until(lambda: d.ranks[0].stats()["read_data_posts"] > 0, d)
                    d.abort("t")
                    until(lambda: not d.scheduler.requests, d)
                else:
                    out = d.run("t")
                    self.assertEqual((out.reason, out.tokens), ("error", []) if self.D["policy"] == "fail" else ("length", answer(tokens, 4)))
                self.overwrite(d)
                self.assertEqual((d.left()["blocks"], d.left()["aside"]), (3, 1))
                nixl.tell(f"hold {d.agent()} 0")
                d.rest(self.p)
                self.end()


class Fail(Failures, Pair):
    P = {"own": {"all_peers_check": True}}
    D = {"policy": "fail", "extra": BRIEF}

    def lost(self, id, tokens):
        self.assertEqual((self.d.run(id, self.p).reason, self.d.out[id].tokens), ("error", []))


class Recompute(Failures, Pair):
    P = {"own": {"all_peers_check": True}}
    D = {"policy": "recompute", "extra": BRIEF}

    def lost(self, id, tokens):
        self.check(id, tokens)


class FailOverlapping(Fail):
    """Async scheduling: another step is under way whenever a read is cut short."""

    P = {**Fail.P, "asynchronous": True}
    D = {**Fail.D, "asynchronous": True}


class RecomputeOverlapping(Recompute):
    P = {**Recompute.P, "asynchronous": True}
    D = {**Recompute.D, "asynchronous": True}


class Sharing(Pair):
    def test_two_requests_with_one_lease_both_read_it(self):
        tokens = prompt(70)
        kv = self.prefill(tokens)
        first, second = self.decode(tokens, dict(kv)), self.decode(tokens, dict(kv))
        self.check(first, tokens)
        self.check(second, tokens)

    def test_the_first_of_two_that_ends_does_not_end_the_others_lease(self):
        tokens = prompt(70)
        kv = self.prefill(tokens)
        first, second = self.decode(tokens, dict(kv)), self.decode(tokens, dict(kv))
        until(lambda: self.p.left().get("leases") == 1)
        self.d.abort(first)
        time.sleep(0.05)
        self.p.side.poll()
        self.assertEqual(self.p.left().get("leases"), 1)
        self.check(second, tokens)

    def test_two_engines_that_read_one_lease_are_both_right(self):
        tokens = prompt(70)
        kv = self.prefill(tokens)
        other = stage.Engine("d2", policy="recompute")
        self.addCleanup(other.close)
        first = self.decode(tokens, dict(kv))
        other.add("o", tokens, 4, dict(kv))
        self.check(first, tokens)
        self.assertEqual(other.run("o", self.p).tokens, answer(tokens, 4))
        other.rest(self.p)

    def test_what_is_here_already_is_not_read(self):
        tokens = prompt(33 * 6)
        self.check(self.decode(tokens[:32 * 4], self.prefill(tokens[:32 * 4])), tokens[:32 * 4])
        before = self.d.ranks[0].stats()["read_bytes"]
        self.check(self.decode(tokens, self.prefill(tokens)), tokens)
        block = 2 * 2 * 32 * 2 * 32 * 4  # layers, heads, tokens, keys and values, bytes
        self.assertEqual(self.d.ranks[0].stats()["read_bytes"] - before, 3 * block, "the last three blocks of seven")

    def test_a_request_of_which_all_is_here_ends_its_lease_and_its_heartbeats_at_once(self):
        tokens = prompt(32 * 4)
        self.check(self.decode(tokens, self.prefill(tokens)), tokens)
        kv = self.prefill(tokens + [3])
        id = self.decode(tokens + [3], kv, 60)
        until(lambda: len(self.d.out[id].tokens) > 3, self.d)
        until(lambda: self.p.side.poll() or not self.p.left())
        self.assertFalse(self.d.out[id].over)
        self.assertEqual(self.d.left().get("tracked"), None)
        self.check(id, tokens + [3], 60)


if __name__ == "__main__":
    unittest.main()
