"""vLLM's own NixlConnector, as kv_connector_module_path of a stock engine.

The classes are the wheel's. Only NIXL's progress thread waits 1 ms between polls: its Python wrapper says 0, which keeps a
core busy per engine and would make every figure here one of the machine's two cores. KVLEASE_STOCK_SPINS=1 leaves it so.
"""

import os

os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")  # as vLLM sets it before it loads NIXL
import nixl._api as nixl  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector  # noqa: E402

__all__ = ["NixlConnector"]

PROGRESS_DELAY_US = 1000


def calm(bindings):
    make = bindings.nixlAgent

    def agent(name, config):
        config.pthrDelay = PROGRESS_DELAY_US
        return make(name, config)

    bindings.nixlAgent = agent


if not os.environ.get("KVLEASE_STOCK_SPINS"):
    calm(nixl.nixlBind)
