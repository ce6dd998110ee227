"""What clients and routers can put into kv_transfer_params: one request fails or is computed, and nothing else happens."""

import unittest
import unittest.mock

from stage import BRIEF, answer, prompt, until
from test_leases import Pair

import kvlease
from kvlease.vllm import reader

NEEDED = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")
DEEP = []
for _ in range(100_000):
    DEEP = [DEEP]


class Loop(dict):
    """Contains itself."""

    def __init__(self, kv):
        super().__init__(kv)
        self["x"] = self


# What is changed in good parameters of a prompt of 70 tokens, three blocks.
WRONG = {
    **{f"no {key}": lambda kv, key=key: kv.pop(key) for key in NEEDED},
    **{f"{key} is null": lambda kv, key=key: kv.update({key: None}) for key in NEEDED},
    **{
        f"{key} is {name}": lambda kv, key=key, value=value: kv.update({key: value})
        for key in (*NEEDED, "tp_size", "pp_size", "remote_num_tokens", "kvlease")
        for name, value in {
            "an object": {"a": 1}, "a list": [1, "x", None], "true": True, "NaN": float("nan"), "infinite": float("inf"), "negative": -1, "huge": 2**64 - 1, "half": 1.5,
            "a lone surrogate": "\ud800", "with a zero": "a\0b", "empty": "", "long": "x" * 5000, "deep": DEEP,
        }.items()
        if (key, name) != ("remote_host", "long")  # is a name
    },
    "a list for the engine": lambda kv: kv.update(remote_engine_id=[]),
    "no groups": lambda kv: kv.update(remote_block_ids=[]),
    "empty groups": lambda kv: kv.update(remote_block_ids=[[], []]),
    "a group too many": lambda kv: kv.update(remote_block_ids=[[1, 2, 3], [1, 2, 3]]),
    "fewer blocks than are needed": lambda kv: kv.update(remote_block_ids=[[1]]),
    "blocks as text": lambda kv: kv.update(remote_block_ids="123"),
    "blocks as one list": lambda kv: kv.update(remote_block_ids=[1, 2, 3]),
    "blocks that P has not": lambda kv: kv.update(remote_block_ids=[[1, 2, 10**6]]),
    "negative blocks": lambda kv: kv.update(remote_block_ids=[[1, 2, -3]]),
    "bool blocks": lambda kv: kv.update(remote_block_ids=[[True, True, True]]),
    "float blocks": lambda kv: kv.update(remote_block_ids=[[1.0, 2.0, 3.5]]),
    "blocks of 33 bits": lambda kv: kv.update(remote_block_ids=[[1, 2, 1 << 32]]),
    "its own engine": lambda kv: kv.update(remote_engine_id="OWN"),
    "another engine": lambda kv: kv.update(remote_engine_id="nobody"),
    "another request": lambda kv: kv.update(remote_request_id="nobody"),
    "a tensor parallel size of three": lambda kv: kv.update(tp_size=3),
    "a pipeline of nine": lambda kv: kv.update(pp_size=9),
    "a foreign key": lambda kv: kv["kvlease"].update(key="0123456789abcdef"),
    "a slot that is not": lambda kv: kv["kvlease"].update(slot=1 << 31),
    "another boot": lambda kv: kv["kvlease"].update(epoch="0123456789abcdef"),
    "an object that is no JSON": lambda kv: kv.update(x={1, 2}),
    "keys that are no text": lambda kv: kv.update({(1, 2): 3}),
    "deep nesting": lambda kv: kv.update(x=DEEP),
}
# With these the blocks are found all the same.
HARMLESS = {"a foreign key", "another request", "remote_request_id is with a zero", "remote_host is with a zero"}


class Wrong:
    """Under both policies."""

    def one(self, change):
        tokens = prompt(70, self.count)  # of which D has nothing
        kv = self.prefill(tokens)
        kv = {**kv, "kvlease": dict(kv["kvlease"])}
        other = change(kv)
        kv = other if isinstance(other, Loop) else kv
        if kv.get("remote_engine_id") == "OWN":
            kv["remote_engine_id"] = self.d.config.kv_transfer_config.engine_id
        id = self.decode(tokens, kv)
        other = prompt(50, self.count)
        self.check(self.decode(other, self.prefill(other)), other)
        out = self.d.run(id, self.p)
        self.assertIn((out.reason, out.tokens), [("length", answer(tokens, 4)), *self.also])
        return out

    def test_each_kind_of_wrong_parameters_costs_one_request_only(self):
        for name, change in list(WRONG.items())[:: self.every]:
            with self.subTest(name):
                out = self.one(change)
                if out.reason == "length" and self.d.config.kv_transfer_config.kv_load_failure_policy == "fail":
                    self.right.append(name)
                self.end()
        self.assertLessEqual(set(self.right), HARMLESS)

    def test_parameters_that_contain_themselves(self):
        self.one(Loop)
        self.end()

    def test_lists_longer_than_the_engine_has_blocks_are_not_looked_into(self):
        long = [1] * 513
        for ids in ([long], (long,), [[1]] * 2, long):
            with self.subTest(len(ids)):
                tokens = prompt(70, self.count)
                kv = self.prefill(tokens)
                read = unittest.mock.patch.object(kvlease, "params_read", side_effect=AssertionError("read"))
                with read, self.assertLogs(reader.logger, "WARNING") as logs:
                    id = self.decode(tokens, {**kv, "remote_block_ids": ids})
                self.assertIn("remote_block_ids", logs.output[0])
                out = self.d.run(id, self.p)
                self.assertIn((out.reason, out.tokens), [("length", answer(tokens, 4))] if self.d.config.kv_transfer_config.kv_load_failure_policy == "recompute" else [("error", [])])
                self.end()

    def test_parameters_that_are_no_object(self):
        for kv in ("text", ["do_remote_prefill"], 7, True, b"x"):
            with self.subTest(kv=kv):
                tokens = prompt(70)
                for engine in (self.p, self.d):
                    id = self.name()
                    engine.add(id, tokens, 2, kv)
                    self.assertEqual((engine.run(id).tokens, engine.out[id].kv), (answer(tokens, 2), None))

    def test_flags_of_all_kinds(self):
        for decode in (True, None, "x", []):
            for prefill in (True, None, "x", []):
                with self.subTest(decode=decode, prefill=prefill):
                    tokens = prompt(70)
                    kv = {**self.prefill(tokens), "do_remote_decode": decode, "do_remote_prefill": prefill}
                    for engine in (self.d, self.p):
                        id = self.name()
                        engine.add(id, tokens, 2, dict(kv))
                        until(lambda: engine.out[id].over, self.p, self.d)
                        self.assertIn((engine.out[id].reason, engine.out[id].tokens), [("length", answer(tokens, 2)), *self.also])
                    self.end()


class Fail(Wrong, Pair):
    P = {"policy": "fail", "own": {"all_peers_check": True}, "blocks": 512}
    D = {"policy": "fail", "own": {"all_peers_check": True}, "extra": BRIEF, "blocks": 512}
    also, right, every = (("error", []),), [], 1


class Recompute(Wrong, Pair):
    P = {"policy": "recompute", "own": {"all_peers_check": True}, "blocks": 512}
    D = {"policy": "recompute", "own": {"all_peers_check": True}, "extra": BRIEF, "blocks": 512}
    also, right, every = (), [], 3


if __name__ == "__main__":
    unittest.main()
