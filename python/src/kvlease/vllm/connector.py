"""The class that vLLM loads, in the scheduler's process and in each worker's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector

from kvlease.vllm import settings
from kvlease.vllm.stats import PromMetrics, Stats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig


class NixlConnector(NixlBaseConnector):
    """Pull connector: the scheduler's process has the host context, each worker the context of its rank."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig):
        settings.check_version()
        super().__init__(vllm_config, role, kv_cache_config)
        s = settings.Settings(vllm_config)
        if role == KVConnectorRole.SCHEDULER:
            from kvlease.vllm.scheduler import Scheduler

            self.connector_scheduler = scheduler = Scheduler(vllm_config, s, kv_cache_config)
            direct = {n: getattr(scheduler, n) for n in ("build_connector_meta", "update_connector_output", "get_kv_connector_stats")}
        else:
            from kvlease.vllm.worker import Worker

            self.connector_worker = worker = Worker(vllm_config, s, kv_cache_config)
            direct = {n: getattr(worker, n) for n in ("get_transfer_results", "build_connector_worker_meta", "get_kv_connector_stats")}
        self.__dict__.update(direct)  # called in every pass: without a call in between

    # Scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self.connector_scheduler.bind_kv_cache_manager(kv_cache_manager)

    def has_pending_block_frees(self) -> bool:
        return self.connector_scheduler.has_pending_block_frees()

    def reset_cache(self) -> bool | None:
        self.connector_scheduler.poll()
        return None

    # Worker

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.connector_worker.start_load_kv(self._connector_metadata)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()  # failures are told by request

    def wait_for_save(self) -> None:
        pass

    def get_handshake_metadata(self) -> Any:
        return self.connector_worker.handshake_payload()

    def unregister_kv_caches(self) -> None:
        self.connector_worker.unregister_kv_caches()

    def restore_kv_caches(self) -> None:
        self.connector_worker.restore_kv_caches()

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        return True

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats.from_dict(data) if data is not None else Stats()

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> PromMetrics:
        return PromMetrics(*args)
