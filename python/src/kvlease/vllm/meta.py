"""What crosses between scheduler and workers with vLLM's step messages: only changes, since the rest has the library's own stream."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


class Metadata(KVConnectorMetadata):
    """To the workers. `failed`: requests whose load has failed and whose blocks are back; the workers report them, because vLLM
    takes failures from workers only."""

    __slots__ = ("failed",)

    def __init__(self, failed: tuple[str, ...] = ()):
        self.failed = failed


class Stepped(KVConnectorWorkerMetadata):
    """From the workers: nothing but that a step was made. vLLM calls update_connector_output only for outputs that are not empty."""

    __slots__ = ()

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        return self
