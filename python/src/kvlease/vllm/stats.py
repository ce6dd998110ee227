"""Statistics: vLLM's own vllm:nixl_* go on, filled from the library's events and counters; ours are beside them, as kvlease_*."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    import kvlease

OURS = "kvlease"
EVERY = 5.0  # s between two looks at a context's counters: one takes some 0.2 ms


class Metric(NamedTuple):
    """`keys` of kvl_stats, added up; with `label` it is filled from events instead, one value for each of `values`."""

    name: str
    kind: str  # counter; gauge: sum over the ranks; max, min: gauge, of the ranks
    keys: tuple[str, ...]
    text: str
    scale: float = 1.0
    label: str = ""
    values: tuple[str, ...] = ()


REASONS = ("completed", "released", "revoked", "expired", "poisoned", "duplicate", "closed", "lost")
READS = ("ok", "stale", "unproven", "failed", "timeout", "cancelled", "lost")

HOST = (
    Metric("kvlease_leases_held", "gauge", ("held",), "Leases that hold blocks of this engine."),
    Metric("kvlease_blocks_held", "gauge", ("held_blocks",), "Blocks under these leases."),
    Metric("kvlease_requests_tracked", "gauge", ("group_tracked",), "Requests of this engine whose blocks lie elsewhere."),
    Metric("kvlease_engines_failing", "gauge", ("group_failing",), "Known engines without a connection or unheard for an interval, or from which the last three reads have failed."),
    Metric("kvlease_healthy", "min", ("healthy",), "0: broken, or no known engine can be reached since one lease duration, and requests need one of them."),
    Metric("kvlease_leases_freed", "counter", (), "Leases that ended, by reason.", label="reason", values=REASONS),
    Metric("kvlease_reads", "counter", (), "Reads that ended, by outcome.", label="outcome", values=READS),
    Metric("kvlease_leases_refused", "counter", (), "Finished requests that got no lease."),
    Metric("kvlease_params_refused", "counter", (), "Requests whose kv_transfer_params could not be used."),
    Metric("kvlease_handshake_failures", "counter", ("side_client_failures",), "Handshakes that failed."),
)
RANK = (
    Metric("kvlease_heartbeats_sent", "counter", ("beat_beats",), "Requests named in heartbeats that left, once per beat."),
    Metric("kvlease_heartbeat_messages_sent", "counter", ("beat_beat_batches",), "Messages that carried them."),
    Metric("kvlease_heartbeat_bytes_sent", "counter", ("beat_beat_bytes",), "Bytes of these messages."),
    Metric("kvlease_heartbeats_applied", "counter", ("beats_applied",), "Renewals of leases of this rank, and words kept for leases that are expected."),
    Metric("kvlease_heartbeats_unknown", "counter", ("lease_unknown_renew", "lease_late_renew"), "Renewals of leases that are not held."),
    Metric("kvlease_late_stock_reads", "counter", ("lease_late_done",), "Completions of stock readers after the lease had ended: each may have read blocks of another request."),
    Metric("kvlease_late_native_reads", "counter", ("lease_late_done_native",), "Completions of readers of ours after the lease had ended: their fence has shown it to them."),
    Metric("kvlease_late_stock_repeats", "counter", ("lease_late_done_repeated",), "Completions by the only, stock, reader of a lease that it had completed before."),
    Metric("kvlease_ready_events_fired", "counter", ("ready_fired",), "Leases whose device event (ready_event) has fired."),
    Metric("kvlease_ready_events_failed", "counter", ("ready_failed",), "Leases that are never offered, since their device event could not be asked."),
    Metric("kvlease_malformed_messages", "counter", ("malformed_native", "malformed_stock", "unknown_kinds"), "Notifications that mean nothing, or are of a kind that only newer versions know."),
    Metric("kvlease_send_failures", "counter", ("beat_send_failed",), "Notifications that the transport refused."),
    Metric("kvlease_heals", "counter", ("beat_heals",), "Connections that broke and were tried anew."),
    Metric("kvlease_reads_aside", "gauge", ("reads_blocks_held",), "Reads that are over and whose local blocks are not given back, since bytes may still land in them."),
    Metric("kvlease_step_max_seconds", "max", ("pump_step_max_ns",), "Longest step of the library's thread.", 1e-9),
)  # fmt: skip
METRICS = HOST + RANK


class Stats(NixlKVConnectorStats):
    """vLLM's lists, and under `kvlease` {name: value} and {name: {label value: count}}. Counters are what came since the last one.

    To another process ours go as a list, too (to_dict): inside a MultiConnector vLLM joins what it gets there with its own class, which
    knows lists only."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Stats:
        return cls(data={**data, OURS: joined(data)})

    def to_dict(self) -> dict[str, Any]:
        return {**self.data, OURS: [self.data[OURS]]}

    def reset(self) -> None:
        super().reset()
        self.data[OURS] = {}

    def is_empty(self) -> bool:
        return super().is_empty() and not self.data[OURS]

    def aggregate(self, other: Stats) -> Stats:
        lists = {k: v for k, v in other.data.items() if k != OURS}
        for key, values in lists.items():
            self.data[key].extend(values)
        merge(self.data[OURS], other.data[OURS])
        return self


KINDS = {m.name: m.kind for m in METRICS}


def merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    """Add what another context, or the same one later within one of vLLM's intervals, has said."""
    for name, value in other.items():
        if name not in into:
            into[name] = dict(value) if isinstance(value, dict) else value
        elif isinstance(value, dict):
            for label, n in value.items():
                into[name][label] = into[name].get(label, 0) + n
        elif KINDS[name] == "max":
            into[name] = max(into[name], value)
        elif KINDS[name] == "min":
            into[name] = min(into[name], value)
        else:
            into[name] += value


def joined(data: dict[str, Any]) -> dict[str, Any]:
    """What is ours of a dictionary that to_dict has made, or of several that vLLM has joined."""
    out: dict[str, Any] = {}
    for part in data.get(OURS, ()):
        merge(out, part)
    return out


class Source:
    """What one context has to say, every few seconds."""

    def __init__(self, ctx: kvlease.Context, metrics: tuple[Metric, ...]):
        self._ctx, self._metrics = ctx, metrics
        self._before: dict[str, float] = {}
        self._next = 0.0
        self._stats = Stats()
        self._written = False  # something may stand in them: to ask each list in each pass costs more than all else here
        self.also: Callable[[], None] | None = None  # what else is done every few seconds

    @property
    def stats(self) -> Stats:
        """To be written into."""
        self._written = True
        return self._stats

    def count(self, name: str, label: str = "", n: int = 1) -> None:
        ours = self.stats.data[OURS]
        if label:
            at = ours.setdefault(name, {})
            at[label] = at.get(label, 0) + n
        else:
            ours[name] = ours.get(name, 0) + n

    def take(self) -> Stats | None:
        """What came since the last call; None if nothing."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            self._look()
            if self.also is not None:
                self.also()
        if not self._written:
            return None
        self._written = False
        if self._stats.is_empty():
            return None
        out, self._stats = self._stats, Stats()
        return out

    def _look(self) -> None:
        all = self._ctx.stats()
        ours = self.stats.data[OURS]
        for m in self._metrics:
            if not m.keys:
                continue
            value = sum(sum(v) if isinstance(v := all.get(k, 0), list) else v for k in m.keys) * m.scale
            if m.kind == "counter":
                if new := value - self._before.get(m.name, 0):
                    ours[m.name] = ours.get(m.name, 0) + new
                self._before[m.name] = value
            else:
                ours[m.name] = value
        for name, list_ in (
            ("kvlease_send_failures", "num_failed_notifications"),
            ("kvlease_handshake_failures", "num_failed_handshakes"),
            ("kvlease_late_stock_reads", "num_notifications_after_expiry"),
        ):
            self.stats.data[list_].extend([1] * int(ours.get(name, 0)))


class PromMetrics(NixlPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._ours: dict[str, tuple[Metric, Any]] = {}
        for m in METRICS:
            cls = self._counter_cls if m.kind == "counter" else self._gauge_cls
            labels = [*labelnames, m.label] if m.label else labelnames
            self._ours[m.name] = m, cls(name=m.name, documentation=m.text, labelnames=labels)
            for values in per_engine_labelvalues.values():
                for extra in m.values or (None,):
                    child = self._child(m.name, values, extra)  # there from the start, at 0
                    if m.kind == "min":  # nothing is wrong yet: contexts report with passes, and an idle engine makes none
                        child.set(1)

    def _child(self, name: str, values: list[object], extra: str | None) -> Any:
        return self._ours[name][1].labels(*values, *([extra] if extra is not None else []))

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        super().observe(transfer_stats_data, engine_idx)
        values = self.per_engine_labelvalues[engine_idx]
        for name, value in joined(transfer_stats_data).items():
            for extra, n in value.items() if isinstance(value, dict) else ((None, value),):
                child = self._child(name, values, extra)
                child.inc(n) if self._ours[name][0].kind == "counter" else child.set(n)
