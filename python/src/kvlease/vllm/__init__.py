"""kvlease inside vLLM: a NIXL connector whose lease plane is kvlease's.

    --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_connector_module_path": "kvlease.vllm", ...}'

The class has the name of vLLM's own, since vLLM looks at the name in some places (block sizes, DCP). The module is imported in
every process of a server; the library is opened in the constructor only.
"""

from kvlease.vllm.connector import NixlConnector

__all__ = ["NixlConnector"]
