"""The object that vLLM's worker gets in place of its NIXL agent.

The rank's one agent belongs to the library. What vLLM still asks of an agent is answered here, and nothing done: kvl_register
registers the memory, after vLLM has found the regions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

# Stands in the handshake map until the library's agent is known; the scheduler's side puts its metadata there.
AGENT_METADATA = b"kvlease"


class StandIn:
    """Methods of NIXL's Python agent that vLLM's pull worker calls before its first read, and at shutdown."""

    def __init__(self, name: str, config: Any):
        self.name = name

    def get_reg_descs(self, ranges: Any, mem_type: str) -> Any:
        return ranges

    def register_memory(self, descs: Any, backends: Any = None) -> None:
        pass

    def deregister_memory(self, descs: Any) -> None:
        pass

    def release_dlist_handle(self, handle: int) -> None:
        pass

    def get_agent_metadata(self) -> bytes:
        return AGENT_METADATA

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"kvlease has the NIXL agent of this rank: vLLM must not call {name}; please report this")


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """While vLLM's worker is made: its agent is a StandIn."""
    before = base_worker.NixlWrapper, base_worker.nixl_agent_config
    base_worker.NixlWrapper, base_worker.nixl_agent_config = StandIn, None
    try:
        yield
    finally:
        base_worker.NixlWrapper, base_worker.nixl_agent_config = before
