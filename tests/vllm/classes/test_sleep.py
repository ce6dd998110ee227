"""Engines that sleep and wake up, and the prefix cache of one that idles."""

import threading
import unittest

import stage
from stage import SHORT, answer, nixl, prompt, until
from test_leases import Pair


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
