"""Worker side: the context of one rank. Leases, heartbeats, reads and their proof are the library's; a pass costs two calls."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.parallel_state import get_pp_group

import kvlease
from kvlease.vllm import carried, logs, standin
from kvlease.vllm.host import ATTACH_TIMEOUT, RANK_KEY
from kvlease.vllm.meta import Metadata, Stepped
from kvlease.vllm.stats import RANK, Source, Stats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from kvlease.vllm.settings import Settings

logger = logs.logger_of(__name__)

NOTHING = KVConnectorTransferResults(frozenset(), frozenset(), frozenset())  # type: ignore[arg-type]  # shared, so nobody may change it
QUIET_TIMEOUT = 150.0  # s that a sleep waits for reads in flight; the library gives a read up after 120


class Worker(NixlPullConnectorWorker):
    """vLLM's pull worker finds the regions of the KV cache and makes the handshake map; everything after that is ours."""

    def __init__(self, vllm_config: VllmConfig, settings: Settings, kv_cache_config: KVCacheConfig):
        cpus = os.sched_getaffinity(0)  # vLLM pins this thread to one core; the library's threads may use all
        with standin.installed():
            super().__init__(vllm_config, settings.engine_id, kv_cache_config)
        self._refuse()
        self._step = 0
        self._failed: tuple[str, ...] = ()
        self._broken = False
        self._inline = settings.drive == "inline"
        self._carried = settings.carrier == "delta"
        self._registered = 0  # times
        self._asleep = False
        self._ctx = kvlease.Context(
            settings.context(
                "rank",
                tp_rank=self.tp_rank,
                pp_rank=get_pp_group().rank_in_group,
                block_size=self.block_size,
                kv_cache_layout=self.kv_cache_layout,
                attn_backend_name=self.backend_name,
                cpus=",".join(map(str, sorted(cpus))),
            )
        )
        self._number = get_pp_group().rank_in_group * self.world_size + self.tp_rank
        self._source = Source(self._ctx, RANK)
        self._pass = self._ctx.step if self._inline else self._ctx.beat
        logs.teller.watch(self._ctx)

    def _refuse(self) -> None:
        """Raise for caches whose blocks the library does not read."""
        for wrong, why in (
            (self._has_mamba, "Mamba or other state-space layers"),
            (self._is_csa_linear, "CSA-linear layers"),
            (self.use_host_buffer, 'kv_buffer_device "cpu" for a cache in device memory'),
            (any(g.host_resident for g in self.kv_cache_config.transfer_groups), "a cache that lies partly in host memory"),
            (self._has_packed_cache, f"KV cache layout {self.kv_cache_layout}, which packs layers into one block row"),
            (getattr(self, "_head_sharded_draft_kv_heads", None) is not None, "a draft model whose KV heads are sharded under an MLA model"),
            (self._physical_blocks_per_logical_kv_block != 1, f"a block size of which the attention kernel uses a part ({self.block_size} tokens): set --block-size {self.block_size}"),
        ):  # fmt: skip
            if wrong:
                raise NotImplementedError(f"kvlease does not move {why}: use vLLM's own connector (leave kv_connector_module_path out)")

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        super().register_kv_caches(kv_caches)
        addrs = self.kv_caches_base_addr[self.engine_id][self.tp_rank]
        regions = [
            kvlease.Region(
                addr=addr,
                bytes=(self.region_num_blocks[i] - 1) * self.block_stride_per_layer[i] + self.block_len_per_layer[i],
                block_len=self.block_len_per_layer[i],
                block_stride=self.block_stride_per_layer[i],
                blocks=self.region_num_blocks[i],
                group=self.region_group_ids[i],
                device=self.device_id if self.region_mem_types[i] == "VRAM" else 0,
                mem=self.region_mem_types[i].lower(),
                name=self.region_names[i],
                replicated=bool(self._region_is_mla[i]),
            )
            for i, addr in enumerate(addrs)
        ]
        self._regions = regions
        self._register()

    def register_local_xfer_handler(self, block_size: int) -> tuple[int, np.ndarray]:
        """vLLM's list of descriptors of the whole cache: nobody reads by it."""
        return 0, np.empty((0, 5), dtype=np.uint64)

    def handshake_payload(self) -> NixlHandshakePayload:
        """For the scheduler's side: vLLM's map and what host.Maps asks for."""
        payload = self.xfer_handshake_metadata
        theirs = msgspec.msgpack.decode(payload.agent_metadata_bytes)
        theirs[RANK_KEY] = self._registered, self._first_message() if self._carried else b""
        return NixlHandshakePayload(payload.compatibility_hash, msgspec.msgpack.encode(theirs))

    def start_load_kv(self, metadata: Metadata) -> None:
        self._passes = True
        self._step, self._failed = metadata.step, metadata.failed
        ctx = self._ctx
        if metadata.messages:
            carried.put(ctx, self._number, metadata.messages[self._number])
        try:
            self._pass()
        except kvlease.Poisoned:  # its rows are closed, and its events end what can be ended: the engine goes on, without it
            self._broken = True
        except kvlease.Busy:  # it is being closed
            pass
        if events := ctx.poll():
            self._report(events)

    def build_connector_worker_meta(self) -> Stepped:
        return Stepped(self._step, ((self._number, self._ctx.delta_take(self._number)),) if self._carried else (), self._broken)

    def get_transfer_results(self, finished_req_ids: set[str] = frozenset()) -> KVConnectorTransferResults:  # type: ignore[assignment]
        if not self._failed:
            return NOTHING
        failed, self._failed = set(self._failed), ()
        return KVConnectorTransferResults(finished_sending=set(), finished_recving=set(failed), failed_recving=failed)

    def get_kv_connector_stats(self) -> Stats | None:
        return self._source.take()

    def unregister_kv_caches(self) -> None:
        """Sleep: no peer reaches this memory any more once this returns, and no read writes into it."""
        if self._asleep:
            return
        until = time.monotonic() + QUIET_TIMEOUT
        while True:
            try:
                self._ctx.unregister()
                break
            except kvlease.Busy:  # a read is in flight, of a request that was aborted
                if time.monotonic() > until:
                    raise
            if self._inline:
                self._ctx.step()
            time.sleep(0.005)
        self._asleep = True

    def restore_kv_caches(self) -> None:
        """Wake: the cache lies where it lay; for peers this is another engine."""
        if self._asleep:
            self._register()
            self._asleep = False

    def _register(self) -> None:
        self._ctx.register(self._regions)
        self._registered += 1
        self._passes = False
        if self._inline:
            threading.Thread(target=self._attach, name="kvlease_attach", daemon=True).start()

    def _attach(self) -> None:
        """Inline: step until the first pass, since the scheduler's process takes this rank before there is one."""
        until = time.monotonic() + ATTACH_TIMEOUT
        while not self._passes and time.monotonic() < until:
            try:
                self._ctx.step()
            except kvlease.Busy:
                pass
            except kvlease.Error:
                return
            time.sleep(0.005)

    def _first_message(self) -> bytes:
        """What the rank's stream begins with, from its first step after it has registered."""
        until = time.monotonic() + ATTACH_TIMEOUT
        while not (message := self._ctx.delta_take(self._number)) and time.monotonic() < until:
            time.sleep(0.005)
        return message

    def shutdown(self) -> None:
        ctx = getattr(self, "_ctx", None)
        if ctx is not None and not ctx.closed:
            try:
                logs.teller.leave(ctx)
                ctx.close(5.0)
            except kvlease.Error as e:
                logger.warning("kvlease: rank %d does not close: %s", self.tp_rank, e)
        super().shutdown()

    def _report(self, events: list[kvlease.Event]) -> None:
        for e in events:
            if e.kind == kvlease.EV_POISONED:
                logger.critical("kvlease: rank %d is broken, no reader accepts its blocks any more: restart the engine", self.tp_rank)
            elif e.kind == kvlease.EV_HOST_DOWN:
                logger.error("kvlease: rank %d: the scheduler's process is gone or does not take this rank", self.tp_rank)
