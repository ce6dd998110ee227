"""What crosses between scheduler and workers with vLLM's step messages: only changes, since the rest has the library's own stream."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


class Metadata(KVConnectorMetadata):
    """To the workers. `step`: number of this step. `failed`: requests whose load has failed and whose blocks are back; the workers
    report them, because vLLM takes failures from workers only. `messages`: of the host context, one for each rank, when its stream
    travels with the steps (carrier `delta`)."""

    __slots__ = ("failed", "messages", "step")

    def __init__(self, step: int = 0, failed: tuple[str, ...] = (), messages: tuple[bytes, ...] = ()):
        self.step, self.failed, self.messages = step, failed, messages


class Stepped(KVConnectorWorkerMetadata):
    """From the workers: the step that was made, what ranks say to the host context, and whether the context of one is broken. Never
    empty: vLLM calls update_connector_output only for outputs that are not."""

    __slots__ = ("broken", "messages", "step")

    def __init__(self, step: int, messages: tuple[tuple[int, bytes], ...] = (), broken: bool = False):
        self.step, self.messages, self.broken = step, messages, broken

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, Stepped)
        return Stepped(min(self.step, other.step), self.messages + other.messages, self.broken or other.broken)
