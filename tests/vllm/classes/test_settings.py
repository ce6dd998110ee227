"""What is refused, with which words; versions; statistics; contexts that come and go."""

import inspect
import re
import time
import unittest
from types import SimpleNamespace

import prometheus_client
import stage
from stage import PREFILL, answer, nixl, prompt, until
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector, MultiKVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata
from vllm.v1.metrics.loggers import PrometheusStatLogger

import kvlease
from kvlease.vllm import NixlConnector, logs, settings, standin, stats
from kvlease.vllm.engines import Engines
from kvlease.vllm.worker import Worker

CLOSE = 5.0  # s that the connector gives a context to close


class Refusals(unittest.TestCase):
    def refused(self, error, text, **settings):
        with self.assertRaisesRegex(error, text):
            stage.Engine("x", **settings).close()

    def test_settings_of_the_extra_config(self):
        for error, text, extra in (
            (ValueError, "kvlease must be an object, is list", {"kvlease": []}),
            (ValueError, "backends is .*'LIBFABRIC'.*UCX only", {"backends": ["LIBFABRIC"]}),
        ):
            with self.subTest(extra=extra), self.assertRaisesRegex(error, text):
                config = stage.configuration("x")
                config.kv_transfer_config.kv_connector_extra_config.update(extra)
                settings.Settings(config)

    def test_keys_of_kvl_open(self):
        for error, text, own in (
            (ValueError, "kvlease: engine_id, role: set by the connector", {"role": "host", "engine_id": "x"}),
            (kvlease.ConfigError, 'unknown|key "nonsense"', {"nonsense": 1}),
            (kvlease.ConfigError, "drive", {"drive": "walk"}),
            (kvlease.ConfigError, "carrier", {"carrier": "pigeon"}),
        ):
            with self.subTest(own=own):
                self.refused(error, text, own=own)

    def test_durations_that_cannot_work(self):
        for value in (3, 1, 0, -30):
            with self.subTest(value=value):
                self.refused(kvlease.ConfigError, "kv_lease_duration", extra={"kv_lease_duration": value})

    def test_every_value_that_cannot_be_used_is_refused_with_the_name_of_its_key(self):
        nan, deep = float("nan"), []
        deep.append(deep)
        config = stage.configuration("x")
        for key, values in (
            ("kv_lease_duration", ("thirty", "30", None, True, nan, float("inf"), [30])),
            ("decoder_kv_blocks_ttl", ("x", None, nan)),
            ("engine_ttl", ("x", "", None, [], nan)),
            ("kv_recompute_threshold", ("x", None, nan, float("inf"), {})),
            ("bidirectional_kv_xfer", ("false", 0, None, nan)),
            ("enforce_handshake_compat", (nan,)),
        ):
            for value in values:
                with self.subTest(key=key, value=value), self.assertRaisesRegex(ValueError, f"kv_connector_extra_config: .*{key}"):
                    config.kv_transfer_config.kv_connector_extra_config = {key: value}
                    settings.Settings(config)
        for value in (nan, {1, 2}, deep, [nan]):
            with self.subTest(value=value), self.assertRaisesRegex(ValueError, "kvlease: 'stock_linger'"):
                config.kv_transfer_config.kv_connector_extra_config = {"kvlease": {"stock_linger": value}}
                settings.Settings(config)

    def test_other_parallelism_and_permutation(self):
        for text, change in (
            ("decode_context_parallel_size is 2", lambda c: setattr(c.parallel_config, "decode_context_parallel_size", 2)),
            ("prefill_context_parallel_size is 2", lambda c: setattr(c.parallel_config, "prefill_context_parallel_size", 2)),
            ("enable_permute_local_kv", lambda c: setattr(c.kv_transfer_config, "enable_permute_local_kv", True)),
        ):
            with self.subTest(text):
                config = stage.configuration("x")
                change(config)
                with self.assertRaisesRegex(NotImplementedError, text):
                    settings.Settings(config)

    def test_caches_whose_blocks_are_not_read(self):
        good = dict(
            _has_mamba=False, _is_csa_linear=False, use_host_buffer=False, _has_packed_cache=False, kv_cache_layout="BLHNC", block_size=48,
            _physical_blocks_per_logical_kv_block=1, kv_cache_config=SimpleNamespace(transfer_groups=[SimpleNamespace(host_resident=False)]),
        )
        Worker._refuse(SimpleNamespace(**good))
        for text, change in (
            ("Mamba", {"_has_mamba": True}),
            ("CSA-linear", {"_is_csa_linear": True}),
            ('kv_buffer_device "cpu"', {"use_host_buffer": True}),
            ("partly in host memory", {"kv_cache_config": SimpleNamespace(transfer_groups=[SimpleNamespace(host_resident=True)])}),
            ("layout BLHNC", {"_has_packed_cache": True}),
            ("draft model", {"_head_sharded_draft_kv_heads": 4}),
            ("set --block-size 48", {"_physical_blocks_per_logical_kv_block": 2}),
        ):
            with self.subTest(text), self.assertRaisesRegex(NotImplementedError, f"{text}.*use vLLM's own connector"):
                Worker._refuse(SimpleNamespace(**{**good, **change}))

    def test_another_version_of_vllms_connector(self):
        settings.check_version()
        self.assertIn(metadata.NIXL_CONNECTOR_VERSION, settings.CONNECTOR_VERSIONS)
        self.addCleanup(setattr, metadata, "NIXL_CONNECTOR_VERSION", metadata.NIXL_CONNECTOR_VERSION)
        metadata.NIXL_CONNECTOR_VERSION = 99
        with self.assertRaisesRegex(RuntimeError, "version 99; this kvlease works with 14 and 15"):
            stage.Engine("x")

    def test_a_kernel_that_uses_a_part_of_a_block(self):
        worker, refused = stage.base_worker.NixlBaseConnectorWorker, []
        before = worker._sync_block_size_with_kernel
        self.addCleanup(setattr, worker, "_sync_block_size_with_kernel", before)
        worker._sync_block_size_with_kernel = lambda self: setattr(self, "_physical_blocks_per_logical_kv_block", 2)
        self.refused(NotImplementedError, "--block-size")
        del refused

    def test_what_vllm_must_not_call_says_so(self):
        with self.assertRaisesRegex(AttributeError, "kvlease has the NIXL agent of this rank: vLLM must not call make_prepped_xfer"):
            standin.StandIn("x", None).make_prepped_xfer

    def test_the_agent_of_vllm_is_back_after_a_worker_was_made_or_refused(self):
        before = stage.base_worker.NixlWrapper, stage.base_worker.nixl_agent_config
        stage.Engine("x").close()
        with self.assertRaises(ValueError):
            stage.Engine("x", own={"role": "rank"})
        self.assertEqual((stage.base_worker.NixlWrapper, stage.base_worker.nixl_agent_config), before)

    def test_the_connector_has_every_method_of_vllms_interface(self):
        base = stage.KVConnectorFactory.create_connector  # noqa: F841
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA

        self.assertTrue(issubclass(NixlConnector, (KVConnectorBase_V1,)) and issubclass(NixlConnector, SupportsHMA))
        self.assertEqual(NixlConnector.__abstractmethods__, frozenset())
        for name, method in inspect.getmembers(KVConnectorBase_V1, inspect.isfunction):
            ours = getattr(NixlConnector, name)
            theirs, mine = list(inspect.signature(method).parameters), list(inspect.signature(ours).parameters)
            if not name.startswith("_") and ours.__module__.startswith("kvlease"):
                self.assertEqual(len(theirs), len(mine), name)


class Statistics(unittest.TestCase):
    def test_every_key_is_one_of_kvl_stats(self):
        e = stage.Engine("x")
        self.addCleanup(e.close)
        for ctx, metrics in ((e.side._ctx.stats(), stats.HOST), (e.ranks[0].stats(), stats.RANK)):
            self.assertEqual([k for m in metrics for k in m.keys if k not in ctx], [])

    def test_names_are_prefixed_and_told_once(self):
        names = [m.name for m in stats.METRICS]
        self.assertEqual(len(set(names)), len(names))
        self.assertTrue(all(re.fullmatch(r"kvlease_[a-z_]+", n) for n in names))

    def test_reasons_and_outcomes_are_those_of_the_library(self):
        self.assertEqual((kvlease.FREED_COMPLETED, kvlease.READ_OK), (1, 0))  # with the first of them all are there
        freed = {getattr(kvlease, k): k for k in dir(kvlease) if k.startswith("FREED_")}
        self.assertEqual(["FREED_" + r.upper() for r in stats.REASONS], [freed[i + 1] for i in range(len(freed))])
        reads = {getattr(kvlease, k): k for k in dir(kvlease) if k.startswith("READ_")}
        self.assertEqual(["READ_" + r.upper() for r in stats.READS], [reads[i] for i in range(len(reads))])

    def test_what_came_is_added_up_as_its_kind_says(self):
        a, b = stats.Stats(), stats.Stats()
        a.data["kvlease"] = {"kvlease_leases_held": 3, "kvlease_step_max_seconds": 0.5, "kvlease_healthy": 1, "kvlease_reads": {"ok": 1}}
        b.data["kvlease"] = {"kvlease_leases_held": 4, "kvlease_step_max_seconds": 0.2, "kvlease_healthy": 0, "kvlease_reads": {"ok": 2, "stale": 1}}
        b.data["transfer_duration"].append(0.5)
        a.aggregate(b)
        self.assertEqual(a.data["kvlease"], {"kvlease_leases_held": 7, "kvlease_step_max_seconds": 0.5, "kvlease_healthy": 0, "kvlease_reads": {"ok": 3, "stale": 1}})
        self.assertEqual(a.data["transfer_duration"], [0.5])
        self.assertEqual(b.data["kvlease"]["kvlease_reads"], {"ok": 2, "stale": 1})

    def test_inside_a_multi_connector_vllm_joins_them_with_its_own_class(self):
        whole = None
        for n in (3, 4):
            part = stats.Stats()
            part.data["kvlease"] = {"kvlease_leases_held": n, "kvlease_healthy": n - 3, "kvlease_reads": {"ok": n}}
            part.record_kv_expired_req()
            sent = MultiKVConnectorStats(data={NixlConnector.__name__: part}).to_dict()
            got = MultiConnector.build_kv_connector_stats(stage.msgspec.msgpack.decode(stage.msgspec.msgpack.encode(sent)))
            whole = got if whole is None else whole.aggregate(got)
        whole.reduce()
        data = whole[NixlConnector.__name__].data
        self.assertEqual(data["num_kv_expired_reqs"], [1, 1])
        self.assertEqual(NixlConnector.build_kv_connector_stats(data).data["kvlease"], {"kvlease_leases_held": 7, "kvlease_healthy": 0, "kvlease_reads": {"ok": 7}})

    def test_they_reach_prometheus(self):
        for collector in list(prometheus_client.REGISTRY._collector_to_names):
            prometheus_client.REGISTRY.unregister(collector)
        p, d = stage.Engine("p"), stage.Engine("d")
        self.addCleanup(p.close)
        self.addCleanup(d.close)
        labels, values = ["model_name", "engine"], {0: ["tiny", "0"]}
        prom = NixlConnector.build_prom_metrics(p.config, metric_types(), labels, values)
        seen = lambda name, **more: prometheus_client.REGISTRY.get_sample_value(name, {"model_name": "tiny", "engine": "0", **more})  # noqa: E731
        self.assertEqual(seen("kvlease_reads_total", outcome="ok"), 0, "there from the start")
        self.assertEqual((seen("kvlease_healthy"), seen("kvlease_leases_held")), (1, 0), "nothing is wrong with an engine that has made no pass yet")
        for engine in (p, d):
            for ctx in (engine.side, engine.ranks[0].connector.connector_worker):
                ctx._source._next = 0
        p.add("a", prompt(70), kv=dict(PREFILL))
        d.add("a", prompt(70), 3, p.run("a").kv)
        self.assertEqual(d.run("a", p).tokens, answer(prompt(70), 3))
        total = NixlConnector.build_kv_connector_stats()
        for engine in (p, d):
            engine.rest(p, d)
            if told := getattr(engine, "stats", None):  # of an earlier pass: a second value of the same gauges, so by itself
                prom.observe(told)
            for side in (engine.side, engine.ranks[0].connector.connector_worker):
                side._source._next = 0
                if (part := side.get_kv_connector_stats()) is not None:
                    total = total.aggregate(part)
        total.reduce()
        prom.observe(total.to_dict())
        self.assertEqual((seen("kvlease_leases_freed_total", reason="completed"), seen("kvlease_leases_freed_total", reason="expired")), (1, 0))
        self.assertEqual(seen("kvlease_reads_total", outcome="ok"), 1)
        self.assertEqual((seen("kvlease_healthy"), seen("kvlease_leases_held"), seen("vllm:nixl_num_failed_transfers_total")), (1, 0, 0))
        part = stats.Stats()
        part.data["kvlease"] = {"kvlease_healthy": 0}
        prom.observe(part.to_dict())
        self.assertEqual(seen("kvlease_healthy"), 0)

    def test_what_a_context_says_goes_to_the_log_with_its_level(self):
        class Context:
            def log(self):
                return [
                    {"level": "warning", "kind": "lease_expired", "engine": "d-0", "request": "r", "what": "it expired", "remedy": "see why", "left_out": 3},
                    {"level": "info", "kind": "rank_up", "what": "rank 0 is there", "remedy": "none"},
                ]

        with self.assertLogs(logs.logger, "INFO") as said:
            logs.hand_over(Context())
        self.assertEqual([(r.levelname, r.getMessage()) for r in said.records], [
            ("WARNING", "kvlease lease_expired: engine d-0, request r: it expired; to do: see why (3 more were left out)"),
            ("INFO", "kvlease rank_up: rank 0 is there"),
        ])

    def test_counters_tell_what_came_since_the_last_time(self):
        class Context:
            def __init__(self):
                self.n = 0

            def stats(self):
                self.n += 5
                return {"a": self.n, "b": [1, 2]}

        source = stats.Source(Context(), (stats.Metric("kvlease_leases_freed", "counter", ("a",), ""), stats.Metric("kvlease_blocks_held", "gauge", ("b",), "")))
        self.assertEqual(source.take().data["kvlease"], {"kvlease_leases_freed": 5, "kvlease_blocks_held": 3})
        self.assertIsNone(source.take())
        source._next, looks = 0, []
        source.also = lambda: looks.append(1)
        self.assertEqual(source.take().data["kvlease"], {"kvlease_leases_freed": 5, "kvlease_blocks_held": 3})
        source.take()
        self.assertEqual(looks, [1], "once a look")


def metric_types():
    """As vLLM's Prometheus logger hands them in."""
    from prometheus_client import Counter, Gauge, Histogram

    types = {Counter: PrometheusStatLogger._counter_cls, Gauge: PrometheusStatLogger._gauge_cls, Histogram: PrometheusStatLogger._histogram_cls}
    return types


class Lives(unittest.TestCase):
    def test_two_connectors_in_one_process(self):
        a, b = stage.Engine("a"), stage.Engine("b")
        try:
            for first, second in ((a, b), (b, a)):
                first.add("x" + first.name, prompt(70), kv=dict(PREFILL))
                second.add("y" + first.name, prompt(70), 3, first.run("x" + first.name).kv)
                self.assertEqual(second.run("y" + first.name, first).tokens, answer(prompt(70), 3))
        finally:
            a.close()
            b.close()

    def test_an_engine_goes_with_requests_and_leases_and_more_than_once(self):
        for own in ({}, {"drive": "inline"}, {"carrier": "delta"}):
            with self.subTest(own=own):  # a close that waits does so each time, a busy machine does not
                self.assertTrue(any(self.goes(own) < CLOSE for _ in range(5)), "nobody waits for the time that a close may take")

    def goes(self, own):
        """Seconds that two engines need to go, with leases held and a request under way."""
        p, d = stage.Engine("p", tp=2, own=own), stage.Engine("d", own=own)
        p.add("a", prompt(70), kv=dict(PREFILL))
        kv = p.run("a").kv
        p.add("b", prompt(80), kv=dict(PREFILL))
        p.run("b")
        d.add("a", prompt(70), 30, kv)
        until(lambda: d.out["a"].tokens, d, p)
        began = time.monotonic()
        for e in (p, d):
            e.close()
            self.assertTrue(e.side._ctx.closed and all(r.connector.connector_worker._ctx.closed for r in e.ranks))
            e.closed = False
            e.close()
        return time.monotonic() - began

    def test_a_scheduler_that_goes_before_its_workers_does_not_hinder_them(self):
        e = stage.Engine("x", tp=2)
        e.connector.shutdown()
        for r in e.ranks:
            r.connector.shutdown()
        self.assertTrue(all(r.connector.connector_worker._ctx.closed for r in e.ranks))
        e.connector.shutdown()
        self.assertTrue(e.side._ctx.closed)

    def test_an_engine_that_goes_leaves_no_thread_and_no_descriptor(self):
        import os
        import threading

        stage.Engine("x").close()
        before = len(os.listdir("/proc/self/fd")), threading.active_count()
        for _ in range(5):
            stage.Engine("x").close()
        self.assertLessEqual(len(os.listdir("/proc/self/fd")) - before[0], 2)
        self.assertLessEqual(threading.active_count(), before[1])

    def test_a_worker_that_is_alone_can_go(self):
        config = stage.configuration("x")
        with stage.parallel(0, 1), stage.kept_affinity():
            c = NixlConnector(config, stage.KVConnectorRole.WORKER, stage.cache_configuration(config))
        c.shutdown()
        c = NixlConnector(config, stage.KVConnectorRole.SCHEDULER, stage.cache_configuration(config))
        self.assertEqual((c.has_pending_push_work(), c.reset_cache(), c.get_kv_connector_stats()), (False, None, None))
        c.shutdown()

    def test_hooks_on_a_broken_context_raise_nothing(self):
        p, d = stage.Engine("p"), stage.Engine("d", policy="recompute")
        self.addCleanup(p.close)
        self.addCleanup(d.close)
        p.add("a", prompt(70), kv=dict(PREFILL))
        kv = p.run("a").kv

        class Broken:
            def __getattr__(self, name):
                def call(*args):
                    raise kvlease.Poisoned("broken")

                return call

        d.add("held", prompt(64), 3, dict(kv))
        for e in (p, d):
            e.side._owner._producer = e.side._reader._producer = Broken()
        for id, e, more in (("b", d, kv), ("c", p, PREFILL)):
            e.add(id, prompt(70), 3, dict(more))
            self.assertEqual(e.run(id, p).tokens[:1], answer(prompt(70), 1))


class Known(unittest.TestCase):
    """Engines by themselves."""

    class Context:
        def __init__(self, most):
            self.most, self.known, self.made, self.removed = most, {}, 0, []

        def engine_add(self, id, ranks, host, port, stages):
            if id not in self.known:
                if len(self.known) == self.most:
                    raise kvlease.Full("engines_max")
                self.made += 1
                self.known[id] = self.made
            return self.known[id]

        def engine_remove(self, handle):
            self.removed.append(handle)
            self.known = {k: v for k, v in self.known.items() if v != handle}

    def remote(self, id):
        return SimpleNamespace(engine_id=id, tp_size=1, host="h", port=1, pp_size=1)

    def test_one_that_is_in_use_stays(self):
        c = self.Context(2)
        e = Engines(c, 3600, 30)
        e.use(self.remote("a"))
        e.use(self.remote("b"))
        with self.assertRaises(kvlease.Full):
            e.use(self.remote("c"))
        e.leave("b")
        e.use(self.remote("c"))
        self.assertEqual((c.removed, sorted(c.known)), ([2], ["a", "c"]))

    def test_one_is_named_to_the_library_again_only_at_another_address(self):
        c = self.Context(9)
        e, named = Engines(c, 3600, 30), []
        add = c.engine_add
        c.engine_add = lambda *where: (named.append(where), add(*where))[1]
        there, elsewhere = self.remote("a"), SimpleNamespace(**{**vars(self.remote("a")), "port": 2})
        handles = {e.use(where) for where in (there, there, elsewhere, elsewhere, there)}
        self.assertEqual((len(handles), [port for _, _, _, port, _ in named]), (1, [1, 2, 1]))

    def test_those_whose_time_is_over_go(self):
        c = self.Context(9)
        e = Engines(c, 3600, 30)
        handles = {id: e.use(self.remote(id)) for id in "abc"}
        for id in "abc":
            e.leave(id)
        e.answered(handles["a"])
        e.use(self.remote("b"))
        e._next = 0
        for id in "ac":
            e._known[id].left = time.monotonic() - 160
        e.sweep()
        self.assertEqual(sorted(c.known), ["a", "b", "c"], "c is missed for two minutes and a lease duration: forgotten before, its trouble would never last")
        e._next = 0
        e._known["c"].left = time.monotonic() - 190
        e.sweep()
        self.assertEqual(sorted(c.known), ["a", "b"], "a has answered once, b is in use")
        e._known["a"].left = time.monotonic() - 4000
        e._next = 0
        e.sweep()
        self.assertEqual(sorted(c.known), ["b"])

    def test_they_go_although_no_request_comes_that_needs_another(self):
        d = stage.Engine("d")
        self.addCleanup(d.close)
        engines = d.side._reader.engines
        engines.use(self.remote("gone"))
        engines.leave("gone")
        engines._known["gone"].left = time.monotonic() - 200  # it has never answered
        engines._next = d.side._source._next = 0
        d.add("alone", prompt(20))
        d.run("alone")
        self.assertEqual(len(engines), 0)

    def test_without_a_ttl_only_those_go_that_never_answered(self):
        c = self.Context(9)
        e = Engines(c, 0, 30)
        for id in "ab":
            handle = e.use(self.remote(id))
            e.leave(id)
            e._known[id].left = 0.0
        e.answered(handle)
        e._next = 0
        e.sweep()
        self.assertEqual(sorted(c.known), ["b"])


if __name__ == "__main__":
    unittest.main()
