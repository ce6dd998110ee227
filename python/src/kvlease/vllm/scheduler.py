"""Scheduler side: the host context of the engine."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec

import kvlease
from kvlease.vllm import logs
from kvlease.vllm.blocks import Aside, Blocks
from kvlease.vllm.carried import Carried
from kvlease.vllm.host import ATTACH_TIMEOUT, Maps, open_host, regions_of_groups
from kvlease.vllm.meta import Metadata, Stepped
from kvlease.vllm.owner import Owner
from kvlease.vllm.reader import Group, Reader
from kvlease.vllm.stats import HOST, Source, Stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from kvlease.vllm.settings import Settings

logger = logs.logger_of(__name__)


class Scheduler(NixlPullConnectorScheduler):
    """vLLM's pull scheduler decides what is sent, read and kept, as ever; what it notes for its workers is taken out of its lists
    here and said to the library. Reads start at once, but where steps overlap and vLLM does not keep freed blocks back until no step
    writes into them (defer_block_free): it does so for consumers only, and a producer reads in a second turn."""

    def __init__(self, vllm_config: VllmConfig, settings: Settings, kv_cache_config: KVCacheConfig):
        super().__init__(vllm_config, settings.engine_id, kv_cache_config)
        self._settings = settings
        self._ctx: kvlease.Context | None = None  # the next five come with it
        self._maps: Maps
        self._carried: Carried | None = None
        self._owner: Owner
        self._reader: Reader
        self._source: Source
        self._turn: Callable[[], object]  # what a poll begins with
        self._blocks = Blocks()
        self._aside = Aside(self._blocks)
        self._reads_wait = vllm_config.max_concurrent_batches > 1 and not vllm_config.kv_transfer_config.is_kv_consumer
        self._made = 0  # steps handed out
        self._seen = 0  # the last of them that was answered

    def set_xfer_handshake_metadata(self, metadata: dict[tuple[int, int], Any]) -> None:
        """All ranks have registered, at start or at a wake-up: serve their handshakes. Ranks whose stream travels with steps tell their
        map in the next ones."""
        if self._ctx is None:
            self._open(next(iter(metadata.values())))
        self._maps.begin(metadata)
        until = time.monotonic() + ATTACH_TIMEOUT
        while True:
            self.poll()
            if self._carried is not None or not (missing := self._maps.missing):
                return
            if time.monotonic() > until:
                raise RuntimeError(f"kvlease: rank {', '.join(map(str, missing))} is not there after {ATTACH_TIMEOUT:.0f} s")
            time.sleep(0.005)

    def _open(self, any_rank: Any) -> None:
        settings = self._settings
        self._ctx = open_host(settings, any_rank, self.side_channel_host, self.side_channel_port)
        self._turn = self._ctx.step if settings.host_steps else self._ctx.beat
        self._maps = Maps(self._ctx, settings.parallel.tensor_parallel_size)
        self._source = Source(self._ctx, HOST)
        self._carried = Carried(self._ctx, settings.ranks) if settings.carrier == "delta" else None
        producer = self._ctx.producer()
        self._owner = Owner(self._ctx, producer, self._source, None if settings.host_steps else self._blocks)
        transfer = self.kv_cache_config.transfer_groups
        groups = [
            Group(regions, g.kv_cache_spec.block_size, not isinstance(g.kv_cache_spec, FullAttentionSpec), clipped > 0)
            for g, regions, clipped in zip(transfer, regions_of_groups(any_rank, len(transfer)), self.blocks_per_sw, strict=True)
        ]
        self._skips = any(g.skips for g in groups)
        self._reader = Reader(self._ctx, producer, self._source, self._aside, groups, self.kv_cache_config.num_blocks, settings)
        self._source.also = self._reader.engines.sweep
        logs.teller.watch(self._ctx)
        # vLLM's own listener is not started, since it has one: a thread that has ended.
        self._nixl_handshake_listener_t = threading.Thread(target=int)
        self._nixl_handshake_listener_t.start()

    def bind_kv_cache_manager(self, manager: KVCacheManager) -> None:
        self._blocks.manager = manager
        reset = manager.reset_prefix_cache

        def reset_prefix_cache() -> bool:
            self.poll()  # an idle loop takes no blocks back, and the cache can be reset only if none is in use
            return reset()

        manager.reset_prefix_cache = reset_prefix_cache

    # Requests

    def on_new_request(self, request: Request) -> None:
        self.poll()
        params = request.kv_transfer_params
        if not params:
            return
        if not isinstance(params, dict):
            logger.warning("kvlease: request %s: kv_transfer_params is %s, not an object: not used", request.request_id, type(params).__name__)
            self._source.count("kvlease_params_refused")
            request.kv_transfer_params = None
            return
        params = request.kv_transfer_params = dict(params)  # what is noted there is of this request; a front end in this process shares it
        if params.get("do_remote_decode") and not request.resumable:  # a session's next part would stand where its last tokens were
            self._truncate_request_for_prefill(request)
        if params.get("do_remote_prefill") or self._second_turn(params):
            self._reader.track(request)

    def _second_turn(self, params: dict[str, Any]) -> bool:
        """There is something to read from the decoder; after one try there is not: vLLM would wait for a load that nobody starts."""
        return bool(
            self.is_bidirectional_kv_xfer_enabled
            and params.get("do_remote_decode")
            and params.get("remote_block_ids")
            and not params.get("_remote_blocks_processed")
        )

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        params = request.kv_transfer_params
        if not params:
            return 0, False
        if self._reader.lost(request.request_id):  # then nothing in params is to be believed
            missing = request.num_prompt_tokens - num_computed_tokens
            if params.get("do_remote_prefill") and not self._settings.recompute and missing > 0:
                return missing, True  # a load that fails: this is how vLLM fails a request
            return 0, False
        if not params.get("do_remote_prefill") and not self._second_turn(params):
            return 0, False
        if self._skips and not params.get("do_remote_prefill") and request.num_prompt_tokens < (params.get("remote_num_tokens") or 0):
            return 0, False  # what the decoder has kept of a window lies at the end of more tokens than these
        tokens, later = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if tokens and self._reader.out_of_reach(request.request_id):
            return None, False  # it stays in the queue; whatever the policy, it is computed if that goes on
        return tokens, later

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        params = request.kv_transfer_params
        if not params:
            return
        if self._reader.lost(request.request_id):
            self._reader.give_up(request.request_id, num_external_tokens > 0)
            params["do_remote_prefill"] = False
            params["_remote_blocks_processed"] = True
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        for request_id in self._reqs_in_batch:
            self._owner.expect(request_id)
        self._reqs_in_batch.clear()

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        delay, params = super().request_finished(request, block_ids)
        request_id = request.request_id
        self._reqs_need_recv.pop(request_id, None)
        if self._reqs_need_send.pop(request_id, None) is not None:
            return self._owner.grant(request_id, params, self._made)
        self._reqs_not_processed.discard(request_id)
        self._owner.cancel(request_id)
        return delay, params

    def _stop_heartbeat(self, req_id: str) -> None:
        self._reader.stop(req_id)

    # Steps

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Metadata:
        reader = self._reader
        if self._reqs_need_recv:
            for request, local, _, awaited in self._reqs_need_recv.values():
                if awaited:
                    reader.read(request.request_id, local, request.num_computed_tokens, self._made if self._reads_wait else 0)
                else:
                    reader.release(request.request_id)
            self._reqs_need_recv.clear()
        reader.start(self._seen)
        if self._settings.host_steps:
            self.poll()  # what was said leaves with this step; elsewhere it has left
        self._made += 1
        failed: tuple[str, ...] = ()
        if reader.failed:
            failed, reader.failed = tuple(reader.failed), []
        return Metadata(self._made, failed, self._carried.take() if self._carried is not None else ())

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        stepped = connector_output.kv_connector_worker_meta
        if isinstance(stepped, Stepped):
            if stepped.step > self._seen:
                self._seen = stepped.step
            if self._carried is not None:
                self._carried.put(stepped.messages)
            if stepped.broken:
                self._reader.give_up_reading("a rank of this engine is broken")
            self._reader.start(self._seen)
        self.poll()
        if done := self._reader.done:
            connector_output.finished_recving = (connector_output.finished_recving or set()) | done
            self._reader.done = set()
        if sent := self._owner.finished_sending:
            connector_output.finished_sending = (connector_output.finished_sending or set()) | sent
            self._owner.finished_sending = set()

    def poll(self) -> bool:
        """Take what the library has to say. True: blocks came free."""
        ctx = self._ctx
        if ctx is None or ctx.closed:
            return False
        try:
            self._turn()
        except (kvlease.Poisoned, kvlease.Busy):  # broken: its events say so and end everything; or it is being closed
            pass
        while events := ctx.poll():
            self._take(events)
        if self._reader.doubtful:
            self._reader.doubt()
        if self._maps.waiting and (published := self._maps.publish()):
            super().set_xfer_handshake_metadata(published)  # counts registrations, which stock readers ask about
        return self._owner.give_back(self._seen) | self._aside.came()

    def _take(self, events: list[kvlease.Event]) -> None:
        for e in events:
            if e.kind == kvlease.EV_FREED:
                self._owner.freed(e)
            elif e.kind in READER_EVENTS:
                self._reader.event(e)
            else:
                self._report(e)

    def has_pending_block_frees(self) -> bool:
        return self.poll() or self._owner.pressure()

    def has_pending_push_work(self) -> bool:
        """The loop turns on although no request is there, where everything happens in its steps: streams have more to say, blocks that
        are aside may come back, or an engine that is about to answer is owed the news of a request that has ended."""
        if self._carried is not None and (self._carried.busy or self._maps.waiting):
            return True
        if not self._settings.host_steps or self._ctx is None:
            return False
        return self._reader.awaits_blocks() or time.monotonic() < self._reader.engines.unsettled

    def _report(self, e: kvlease.Event) -> None:
        if e.kind == kvlease.EV_POISONED:
            logger.critical("kvlease: broken, no reader accepts blocks of this engine any more: restart it")
            self._reader.give_up_reading("kvlease is broken in this engine")
        elif e.kind == kvlease.EV_ENGINE_UP:
            self._reader.engines.answered(e.handle)
        elif e.kind == kvlease.EV_ENGINE_DOWN:
            self._reader.engine_down(e.handle)
        elif e.kind == kvlease.EV_RANK_DOWN:
            self._maps.unregistered(e.handle)
            if e.status == 1:
                logger.critical("kvlease: the process of rank %d is gone: end this engine", e.handle)

    def get_kv_connector_stats(self) -> Stats | None:
        return self._source.take() if self._ctx is not None else None

    def shutdown(self) -> None:
        super().shutdown()
        if self._ctx is not None and not self._ctx.closed:
            try:
                if self._carried is not None:
                    self._carried.lose()
                logs.teller.leave(self._ctx)
                self._ctx.close(5.0)
            except kvlease.Error as e:
                logger.warning("kvlease: the host context does not close: %s", e)


READER_EVENTS = frozenset((kvlease.EV_READ_DONE, kvlease.EV_READ_FAILED, kvlease.EV_BLOCKS_BACK, kvlease.EV_LEASE_GONE))
