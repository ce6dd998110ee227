"""n > 1: vLLM makes one request of each sample, "0_x", "1_x" and so on, which share their parameters."""

import pickle
import time
import unittest

import stage
from stage import PREFILL, SHORT, answer, nixl, prompt, until
from test_leases import Pair
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.request import Request

BLOCK_BYTES = 2 * 2 * 32 * 2 * 32 * 4  # layers, heads, tokens, keys and values, bytes


def fan_out(engine, id, tokens, samples, n, kv, copied):
    """The samples of one request enter an engine, as vLLM's front end makes them. Copied: through a message, as to a core in another
    process; else they share one object of parameters. Their ids."""
    sampling = SamplingParams(n=samples, max_tokens=n, temperature=1.0, ignore_eos=True, detokenize=False, extra_args={"kv_transfer_params": kv})
    asked = EngineCoreRequest(id, list(tokens), None, sampling, None, 0.0, None, None, None, external_req_id=id)
    parent, ids = ParentRequest(asked), []
    for i in range(samples):
        child, child_sampling = parent.get_child_info(i)
        if copied:
            child_sampling = pickle.loads(pickle.dumps(child_sampling))
        engine.out[child] = stage.Out()
        engine.scheduler.add_request(Request(child, list(tokens), child_sampling, None, block_hasher=engine.hasher))
        ids.append(child)
    return ids


class Samples(Pair):
    P = {"own": {"all_peers_check": True}}
    D = {"policy": "recompute"}

    def test_each_sample_of_a_decode_is_right(self):
        for copied in (True, False):
            with self.subTest(copied=copied):
                tokens = prompt(100, 20 + copied)
                ids = fan_out(self.d, self.name(), tokens, 3, 5, self.prefill(tokens), copied)
                self.assertEqual([id.split("_")[0] for id in ids], ["0", "1", "2"])
                for id in ids:
                    self.check(id, tokens, 5)
                self.d.rest(self.p)
                self.p.rest(self.d)

    def test_samples_that_have_parameters_of_their_own_read_each(self):
        tokens = prompt(100, 25)
        before = self.d.ranks[0].stats()["read_bytes"]
        for id in fan_out(self.d, self.name(), tokens, 3, 5, self.prefill(tokens), True):
            self.check(id, tokens, 5)
        self.assertEqual(self.d.ranks[0].stats()["read_bytes"] - before, 3 * 4 * BLOCK_BYTES)

    def test_the_lease_stands_until_the_last_sample_has_read(self):
        tokens = prompt(100, 30)
        kv = self.prefill(tokens)
        nixl.tell(f"hold {self.d.agent()} 1")
        self.addCleanup(nixl.tell, f"hold {self.d.agent()} 0")
        first, second, third = fan_out(self.d, self.name(), tokens, 3, 5, kv, True)
        until(lambda: self.d.side._ctx.stats()["group_reading"] == 3, self.d)
        self.d.abort(first)
        for _ in range(20):
            self.d.turn()
            time.sleep(0.002)
        self.p.side.poll()
        self.assertEqual(self.p.left().get("leases"), 1)
        nixl.tell(f"hold {self.d.agent()} 0")
        self.check(second, tokens, 5)
        self.check(third, tokens, 5)

    def test_the_heartbeats_go_on_until_the_last_sample_has_left(self):
        tokens = prompt(100, 40)
        kv = self.prefill(tokens)
        first, second = fan_out(self.d, self.name(), tokens, 2, 5, kv, True)
        until(lambda: self.d.side.poll() is not None and self.d.side._ctx.stats()["group_tracked"] == 2)
        self.d.abort(first)
        end = time.monotonic() + 1.5 * stage.LEASE
        while time.monotonic() < end:
            self.p.side.poll()
            self.assertEqual(self.p.left().get("leases"), 1)
            time.sleep(0.05)
        self.check(second, tokens, 5)

    def test_the_lease_ends_when_the_last_sample_is_aborted(self):
        tokens = prompt(100, 50)
        ids = fan_out(self.d, self.name(), tokens, 3, 5, self.prefill(tokens), True)
        until(lambda: self.p.left().get("leases") == 1)
        for n, id in enumerate(ids):
            self.assertEqual(self.p.left().get("leases"), 1, f"{n} of 3 aborted")
            self.d.abort(id)
        until(lambda: self.p.side.poll() or not self.p.left())

    def test_each_sample_of_a_prefill_has_a_lease_and_those_that_nobody_names_end_by_time(self):
        p = stage.Engine("several", **SHORT)
        self.addCleanup(p.close)
        tokens = prompt(100, 60)
        ids = fan_out(p, "x", tokens, 3, 1, dict(PREFILL), True)
        given = [p.run(id).kv for id in ids]
        self.assertEqual([kv["remote_request_id"] for kv in given], ids)
        self.assertEqual(len({kv["kvlease"]["key"] if "key" in kv["kvlease"] else str(kv["kvlease"]) for kv in given}), 3)
        id = self.decode(tokens, given[1])
        self.assertEqual((self.d.run(id, p).tokens, self.d.out[id].reason), (answer(tokens, 4), "length"))
        p.rest(self.d)


if __name__ == "__main__":
    unittest.main()
