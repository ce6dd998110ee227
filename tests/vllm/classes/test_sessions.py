"""Streaming input: a session is one request that gets more prompt after each answer, and keeps its blocks in between. vLLM tells the
connector of its first part and of its end."""

import unittest
import unittest.mock

import stage
from stage import PREFILL, answer, nixl, prompt, until
from test_leases import Pair
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request


class Talk(stage.Out):
    """What the client of a session has got: an answer to each part."""

    def __init__(self):
        super().__init__()
        self.answers = []

    def take(self, output):
        super().take(output)
        if output.finish_reason is not None:
            self.answers.append((self.tokens, self.reason))
            self.tokens = []


def say(engine, id, tokens, n=3, kv=None, last=False):
    """A part of a session has come to the core, or its end: as vLLM's front end makes them."""
    sampling = SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True, detokenize=False, extra_args=kv and {"kv_transfer_params": dict(kv)})
    engine.out.setdefault(id, Talk())
    engine.scheduler.add_request(Request(id, list(tokens), sampling, None, block_hasher=engine.hasher, resumable=not last))


def end(engine, id, kv=None):
    say(engine, id, [0], kv=kv, last=True)


def talk(parts, n=3):
    """What a single engine answers to each part. The last token of an answer was never computed, and is forgotten."""
    tokens, out = [], []
    for part in parts:
        tokens = tokens + part
        out.append((answer(tokens, n), "length"))
        tokens = tokens + out[-1][0][:-1]
    return out


PARTS = [prompt(100, 3), prompt(40, 4), prompt(70, 5)]


class Sessions(Pair):
    P, D = {"own": {"all_peers_check": True}}, {"policy": "recompute"}

    def answers(self, engine, id, many):
        """The first answers, once there are so many; the session goes on."""
        until(lambda: len(engine.out[id].answers) >= many, self.p, self.d)
        return engine.out[id].answers

    def pause(self, *engines):
        """Nothing is left to do: sessions wait for their clients."""
        for e in engines:
            until(lambda: not e.turn(), *engines)
            self.assertFalse(e.scheduler.has_unfinished_requests())

    def drained(self, engine):
        until(lambda: engine.side.poll() or not engine.left().get("leases"), self.p, self.d)

    def test_a_prefill_in_parts_is_handed_over_as_a_whole_by_one_lease(self):
        id = "p" + self.name()
        for part in PARTS:
            say(self.p, id, part, 3, PREFILL)
        end(self.p, id, PREFILL)  # while the first part is not answered: no answer ends the session before its last
        out = self.p.out[id]
        until(lambda: len(out.answers) == 3, self.p)
        self.assertEqual(out.answers, talk(PARTS))
        self.assertEqual(len(self.leases), 1)
        whole = list(PARTS[0])
        for part, (got, _) in zip([*PARTS[1:], []], out.answers):
            whole += got[:-1] + part
        self.assertEqual(out.kv["remote_num_tokens"], len(whole))
        self.check(self.decode(whole, out.kv), whole)

    def test_a_prefill_of_a_model_whose_prompts_are_cut_loses_no_token_between_its_parts(self):
        for e in (self.p, self.d):  # state-space models, drafters that look ahead: the decode computes the last tokens itself
            self.enterContext(unittest.mock.patch.object(e.side, "_prefill_backoff", lambda: 2))
        for n in (30, 33, 63, 64, 65, 66, 67):  # ends of blocks
            parts, id = [prompt(100, n), prompt(n, n + 1)], "p" + self.name()
            for part in parts:
                say(self.p, id, part, 3, PREFILL)
            end(self.p, id, PREFILL)
            out = self.p.out[id]
            until(lambda: len(out.answers) == 2, self.p)
            self.assertEqual(out.answers, talk(parts))
            whole = parts[0] + out.answers[0][0][:-1] + parts[1]
            self.check(self.decode(whole, out.kv), whole)

    def test_a_prefill_whose_client_goes_before_the_next_part_hands_nothing_over(self):
        for how in ("end", "abort"):
            with self.subTest(how):
                id = "p" + self.name()
                say(self.p, id, PARTS[0], 3, PREFILL)
                self.assertEqual(self.answers(self.p, id, 1), talk(PARTS[:1]))
                self.pause(self.p)
                self.assertEqual(self.p.left()["expected"], 1)
                end(self.p, id, PREFILL) if how == "end" else self.p.abort(id)
                self.p.rest()
                self.assertEqual((self.leases, self.p.out[id].kv), ({}, None))

    def test_a_prefill_that_waits_for_longer_than_it_is_expected_is_handed_over(self):
        p = stage.Engine("slow", **{**self.P, "own": {**self.P["own"], "expect_max": 0.1}})
        self.addCleanup(p.close)
        say(p, "a", PARTS[0], 3, PREFILL)
        until(lambda: p.out["a"].answers, p)
        until(lambda: p.side.poll() is not None and p.side._ctx.stats()["group_expected"] == 0)
        say(p, "a", PARTS[1], 3, PREFILL)
        end(p, "a", PREFILL)
        out = p.out["a"]
        until(lambda: len(out.answers) == 2, p)
        whole = PARTS[0] + out.answers[0][0][:-1] + PARTS[1] + out.answers[1][0][:-1]
        self.assertEqual((out.answers, self.d.run(self.decode(whole, out.kv), p).tokens), (talk(PARTS[:2]), answer(whole, 4)))
        p.rest(self.d)

    def test_the_first_part_is_read_and_the_others_are_computed(self):
        kv = self.prefill(PARTS[0])
        before = self.d.ranks[0].stats()["read_data_posts"]
        id = "d" + self.name()
        say(self.d, id, PARTS[0], 3, kv)
        self.assertEqual(self.answers(self.d, id, 1), talk(PARTS[:1]))
        self.drained(self.p)
        self.pause(self.p, self.d)
        for n in (2, 3):
            say(self.d, id, PARTS[n - 1], 3, kv)
            self.assertEqual(self.answers(self.d, id, n), talk(PARTS[:n]))
        self.assertEqual(self.d.ranks[0].stats()["read_data_posts"] - before, 1)
        end(self.d, id, kv)

    def test_a_waiting_session_keeps_its_own_blocks_and_no_one_elses(self):
        kv = self.prefill(PARTS[0])
        id = "d" + self.name()
        say(self.d, id, PARTS[0], 3, kv)
        self.answers(self.d, id, 1)
        self.drained(self.p)
        self.pause(self.p, self.d)
        self.p.rest()
        self.overwrite()
        self.overwrite(self.d)
        say(self.d, id, PARTS[1], 3, kv)
        self.assertEqual(self.answers(self.d, id, 2), talk(PARTS[:2]))
        end(self.d, id, kv)

    def test_parameters_of_a_later_part_are_not_read(self):
        id = "d" + self.name()
        kv = self.prefill(PARTS[0])
        say(self.d, id, PARTS[0], 3, kv)
        say(self.d, id, PARTS[1], 3, other := self.prefill(PARTS[1]))
        say(self.d, id, PARTS[2], 3, {**other, "remote_block_ids": "nonsense"})
        end(self.d, id)
        self.assertEqual(self.answers(self.d, id, 3), talk(PARTS))
        self.d.rest(self.p)
        self.assertEqual(self.p.left().get("leases"), 1)  # of the second part: ends by time
        self.end()

    def test_a_session_that_ends_at_each_stage_of_a_decode(self):
        for stop in (self.d.abort, lambda id: end(self.d, id)):
            for stage_ in ("queued", "reading", "first answer", "second part"):
                with self.subTest(stage_, stop=stop):
                    kv, id = self.prefill(PARTS[0]), "d" + self.name()
                    if stage_ == "reading":
                        nixl.tell(f"hold {self.d.agent()} 1")
                        posts = self.d.ranks[0].stats()["read_data_posts"]
                    say(self.d, id, PARTS[0], 3, kv)
                    if stage_ == "reading":
                        until(lambda: self.d.ranks[0].stats()["read_data_posts"] > posts, self.d)
                        say(self.d, id, PARTS[1], 3, kv)
                    elif stage_ != "queued":
                        self.answers(self.d, id, 1)
                    if stage_ == "second part":
                        say(self.d, id, PARTS[1], 40, kv)
                        self.d.turn()
                    stop(id)
                    say(self.d, id, PARTS[2], 3)  # its client has not heard of it: another request, or never looked at
                    nixl.tell(f"hold {self.d.agent()} 0")
                    self.d.abort(id)
                    self.d.rest(self.p)
                    self.drained(self.p)

    def test_a_session_whose_lease_is_gone_goes_on_computed(self):
        for parts in (1, 2):
            with self.subTest(parts):
                kv, id = self.prefill(PARTS[0]), "d" + self.name()
                self.end_lease()
                for part in PARTS[:parts]:
                    say(self.d, id, part, 3, kv)
                self.assertEqual(self.answers(self.d, id, parts), talk(PARTS[:parts]))
                say(self.d, id, PARTS[2], 3, kv)
                self.assertEqual(self.answers(self.d, id, parts + 1), talk([*PARTS[:parts], PARTS[2]]))
                end(self.d, id)

    def test_a_session_whose_read_fails_goes_on_computed(self):
        tokens = PARTS[0]
        kv, id = self.prefill(tokens), "d" + self.name()
        nixl.tell(f"hold {self.d.agent()} 1")
        posts = self.d.ranks[0].stats()["read_data_posts"]
        say(self.d, id, tokens, 3, kv)
        say(self.d, id, PARTS[1], 3, kv)
        until(lambda: self.d.ranks[0].stats()["read_data_posts"] > posts, self.d)
        self.end_lease()
        nixl.tell(f"hold {self.d.agent()} 0")
        self.assertEqual(self.answers(self.d, id, 2), talk(PARTS[:2]))
        end(self.d, id)


class Asynchronous(Sessions):
    P = {**Sessions.P, "asynchronous": True}
    D = {"asynchronous": True, "policy": "recompute"}


class Inline(Sessions):
    P = {"own": {"all_peers_check": True, "drive": "inline"}}
    D = {"own": {"drive": "inline"}, "policy": "recompute"}


class Failing(Sessions):
    """Under the policy fail the engine ends a session, which its client hears of later."""

    D = {"policy": "fail"}

    test_a_session_whose_lease_is_gone_goes_on_computed = None
    test_a_session_whose_read_fails_goes_on_computed = None

    def test_a_session_whose_read_fails_ends_and_what_comes_late_holds_nothing(self):
        for late in ("part", "end"):
            with self.subTest(late):
                kv, id = self.prefill(PARTS[0]), "d" + self.name()
                nixl.tell(f"hold {self.d.agent()} 1")
                posts = self.d.ranks[0].stats()["read_data_posts"]
                say(self.d, id, PARTS[0], 3, kv)
                until(lambda: self.d.ranks[0].stats()["read_data_posts"] > posts, self.d)
                self.end_lease()
                nixl.tell(f"hold {self.d.agent()} 0")
                self.assertEqual(self.answers(self.d, id, 1), [([], "error")])
                say(self.d, id, PARTS[1], 3, kv) if late == "part" else end(self.d, id, kv)
                self.assertEqual(self.answers(self.d, id, 2)[1], ([], "error"))


class Windows(Sessions):
    """Two groups of blocks, one with a sliding window."""

    P = {**Sessions.P, "window": 64}
    D = {**Sessions.D, "window": 64}

    # They fill the cache with one prompt, and here each of its blocks is there twice.
    test_a_session_whose_lease_is_gone_goes_on_computed = None
    test_a_session_whose_read_fails_goes_on_computed = None
    test_a_waiting_session_keeps_its_own_blocks_and_no_one_elses = None


class Turns(unittest.TestCase):
    """A session as a second turn, and one that is kept for it."""

    SETTINGS = {"extra": {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 16, "decoder_kv_blocks_ttl": 60}, "caching": False}

    def test_both_engines_have_sessions(self):
        nixl.tell("reset")
        p, d = stage.Engine("p", **self.SETTINGS), stage.Engine("d", **self.SETTINGS)
        self.addCleanup(p.close)
        self.addCleanup(d.close)
        p.add("first", PARTS[0], kv=dict(PREFILL))
        kv = p.run("first").kv
        for part in PARTS[:2]:
            say(d, "session", part, 3, kv)
        end(d, "session", kv)
        out = d.out["session"]
        until(lambda: len(out.answers) == 2, p, d)
        self.assertEqual(out.answers, talk(PARTS[:2]))
        whole = PARTS[0] + out.answers[0][0][:-1] + PARTS[1] + out.answers[1][0]
        self.assertEqual((out.kv["do_remote_decode"], out.kv["remote_num_tokens"]), (True, len(whole) - 1))
        before = p.ranks[0].stats()["read_data_posts"]
        for part in (whole, PARTS[2]):
            say(p, "again", part, 3, {**out.kv, **PREFILL})
        end(p, "again")
        again = p.out["again"]
        until(lambda: len(again.answers) == 2, p, d)
        self.assertEqual(again.answers, talk([whole, PARTS[2]]))
        self.assertEqual(p.ranks[0].stats()["read_data_posts"] - before, 1)
        whole += again.answers[0][0][:-1] + PARTS[2] + again.answers[1][0][:-1]
        d.add("last", whole, 3, again.kv)
        self.assertEqual(d.run("last", p).tokens, answer(whole, 3))


if __name__ == "__main__":
    unittest.main()
