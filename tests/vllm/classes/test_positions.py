"""Which blocks of the owner are read into which of ours, and when: windows, chunks, second turns, steps under way."""

import unittest
from unittest import mock

import stage
from stage import PREFILL, answer, prompt, until
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

from kvlease.vllm.host import regions_of_groups

TURNS = {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 16, "decoder_kv_blocks_ttl": 60}
CHUNK = 64


class Chunk(int):
    """In place of a window: what a token looks at begins with its chunk."""

    def __rsub__(self, tokens):
        return (tokens - 1) // int(self) * int(self)


def chunked(config, window=0):
    """The last layer looks at its chunk only."""
    heads = stage.HEADS // config.parallel_config.tensor_parallel_size
    common = dict(block_size=config.cache_config.block_size, num_kv_heads=heads, head_size=stage.HEAD, dtype=stage.torch.float32)
    names = [f"model.layers.{i}.self_attn.attn" for i in range(stage.LAYERS)]
    groups = [KVCacheGroupSpec(names[:1], FullAttentionSpec(**common)), KVCacheGroupSpec(names[1:], ChunkedLocalAttentionSpec(attention_chunk_size=CHUNK, **common))]
    return KVCacheConfig(num_blocks=config.cache_config.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


class Engines(unittest.TestCase):
    def engine(self, name, **settings):
        e = stage.Engine(name, **settings)
        self.addCleanup(e.close)
        return e

    def two(self, p, d, tokens, n, id):
        """Prefill at P, decode at D. Returns what D says of its blocks."""
        p.add("p" + id, tokens, kv=dict(PREFILL))
        d.add("d" + id, tokens, n, p.run("p" + id, d).kv)
        out = d.run("d" + id, p)
        self.assertEqual(out.tokens, answer(tokens, n))
        return out.kv


class Counts(unittest.TestCase):
    def test_every_group_has_its_regions_also_where_layers_of_all_groups_share_them(self):
        for ids, want in (([-1, -1], [2, 2]), ([0, 0], [2, 0]), ([0, 1, 1], [1, 2]), ([0, -1], [2, 1])):
            payload = mock.Mock(agent_metadata_bytes=stage.msgspec.msgpack.encode({"region_group_ids": ids}))
            self.assertEqual(regions_of_groups(payload, 2), want)


class Cut(Engines):
    """Models of which vLLM cuts a prefill's prompt, since the decode has to compute its last tokens: state-space layers, drafters that
    look ahead."""

    def test_what_the_prefill_leaves_out_is_computed_by_the_decode(self):
        for window in (0, 64):
            p, d = self.engine("p", window=window), self.engine("d", window=window)
            for back in (1, 2, 40):
                with mock.patch.object(p.side, "_prefill_backoff", lambda back=back: back), mock.patch.object(d.side, "_prefill_backoff", lambda back=back: back):
                    for n in (1, 2, 32, 33, 34, 65, 129, 300):
                        with self.subTest(window=window, back=back, tokens=n):
                            tokens = prompt(n, n + back)
                            p.add(f"p{back}.{n}", tokens, kv=dict(PREFILL))
                            kv = p.run(f"p{back}.{n}", d).kv
                            self.assertEqual(kv["remote_num_tokens"], n - back if n > back else n)
                            d.add(f"d{back}.{n}", tokens, 3, kv)
                            self.assertEqual((d.run(f"d{back}.{n}", p).tokens, d.out[f"d{back}.{n}"].reason), (answer(tokens, 3), "length"))
            p.rest(d)
            d.rest(p)


class Chunks(Engines):
    def test_blocks_of_chunks_that_are_over_are_not_read_in_place_of_those_that_count(self):
        with mock.patch.object(stage, "cache_configuration", chunked):
            p, d = self.engine("p"), self.engine("d")
        for e in (p, d):
            e.windows[1] = Chunk(CHUNK)
        for n in (20, 65, 100, 129, 191, 300):  # of whole chunks vLLM itself keeps nothing for the last token
            with self.subTest(tokens=n):
                self.two(p, d, prompt(n, n), 4, str(n))


class Turns(Engines):
    def test_a_window_that_lies_at_the_end_of_more_tokens_is_not_read(self):
        for policy in ("recompute", "fail"):
            p, d = self.engine("p", window=64, extra=TURNS, caching=False, policy=policy), self.engine("d", window=64, extra=TURNS)
            for cut in (10, 40, 90):
                with self.subTest(policy=policy, cut=cut):
                    tokens = prompt(100, cut)
                    kv = self.two(p, d, tokens, 90, str(cut))
                    again, read = tokens + answer(tokens, 90)[:cut], p.ranks[0].stats()["read_bytes"]
                    p.add(f"s{cut}", again, kv={**kv, **PREFILL})
                    out = p.run(f"s{cut}", d)
                    self.assertEqual((out.tokens, out.reason), (answer(again, 1), "length"))
                    self.assertEqual(p.ranks[0].stats()["read_bytes"] > read, cut == 90)

    def test_a_prompt_that_is_shorter_than_the_owners_is_not_answered_from_its_window(self):
        p, d = self.engine("p", window=64), self.engine("d", window=64)
        p.add("p", prompt(200), kv=dict(PREFILL))
        d.add("d", prompt(200)[:120], 3, p.run("p").kv)
        self.assertEqual((d.run("d", p).tokens, d.out["d"].reason), ([], "error"))

    def test_a_window_is_found_by_the_list_of_a_whole_group_if_nothing_says_how_many_tokens_there_are(self):
        for n in (120, 200):
            p, d = self.engine("p", window=64), self.engine("d", window=64)
            p.add("p", prompt(200), kv=dict(PREFILL))
            kv = p.run("p").kv
            del kv["remote_num_tokens"]
            d.add("d", prompt(200)[:n], 3, kv)
            self.assertEqual((d.run("d", p).tokens, d.out["d"].reason), (answer(prompt(200), 3), "length") if n == 200 else ([], "error"))

    def test_a_producer_reads_only_when_no_step_under_way_writes_into_its_blocks(self):
        for role in ("kv_producer", "kv_both"):  # for the second vLLM itself keeps blocks back
            p = self.engine("p", role=role, extra=TURNS, asynchronous=True, caching=False, blocks=9)
            d = self.engine("d", extra=TURNS, caching=False)
            for k in range(6):
                with self.subTest(role=role, turns=6 + k):
                    tokens = prompt(100, 20 + k)
                    kv = self.two(p, d, tokens, 40, str(k))
                    p.rest(d)
                    p.add(f"x{k}", prompt(90, 70 + k), 60)
                    for _ in range(6 + k):
                        p.turn()
                    if len(p.pending) < 2:
                        p.schedule()
                    longer = tokens + answer(tokens, 40) + prompt(20, 5)
                    p.add(f"s{k}", longer, kv={**kv, **PREFILL})
                    p.abort(f"x{k}")  # its blocks are free, and a step of it is under way
                    out = p.run(f"s{k}", d)
                    self.assertEqual(out.tokens, answer(longer, 1))
                    d.add(f"e{k}", longer, 1, out.kv)  # so that P's few blocks are free again
                    d.run(f"e{k}", p)
                    p.rest(d)
            self.assertGreater(p.ranks[0].stats()["read_bytes"], 0)

    def test_requests_that_share_the_object_of_their_parameters_are_each_read(self):
        p, d = self.engine("p"), self.engine("d", caching=False)
        p.add("p", prompt(100), kv=dict(PREFILL))
        kv = p.run("p").kv
        for id in ("a", "b"):  # as of n = 2 without a process of its own for the core
            d.add(id, prompt(100), 30, kv)
        until(lambda: all(len(d.out[id].tokens) > 3 for id in ("a", "b")), d)
        self.assertEqual((d.left().get("pulls"), kv["do_remote_prefill"]), (None, True))
        for id in ("a", "b"):
            self.assertEqual(d.run(id, p).tokens, answer(prompt(100), 30))
        block = 2 * 2 * 32 * 2 * 32 * 4  # layers, heads, tokens, keys and values, bytes
        self.assertEqual(d.ranks[0].stats()["read_bytes"], 2 * 4 * block)


if __name__ == "__main__":
    unittest.main()
