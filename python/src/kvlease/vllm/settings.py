"""From vLLM's settings to those of kvl_open. Every setting that cannot work is refused at start, with its name and the remedy."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# NIXL_CONNECTOR_VERSION of vLLM's connectors whose behaviour this one was written and tested for: 14 is vLLM 0.32, 15 is 0.33.
CONNECTOR_VERSIONS = (14, 15)

# Keys of kv_connector_extra_config that kvl_open knows by the same name.
SAME_NAME = ("kv_lease_duration", "decoder_kv_blocks_ttl", "enforce_handshake_compat")

# Keys that vLLM's own classes or this one count with, and what their values are.
NUMBERS = {"kv_lease_duration": "seconds", "decoder_kv_blocks_ttl": "seconds", "engine_ttl": "seconds, 0 for ever", "kv_recompute_threshold": "tokens"}

# Keys that the connector sets itself: what they say follows from the engine.
OURS = frozenset(
    ("role", "engine_id", "tp_size", "tp_rank", "pp_size", "pp_rank", "num_kv_heads", "side_channel_listen", "side_channel_host",
     "side_channel_port", "compatibility_hash", "kv_cache_layout", "attn_backend_name", "block_size", "device_id", *SAME_NAME)
)  # fmt: skip


class Settings:
    """What of a vLLM configuration concerns the connector.

    `kv_connector_extra_config` may hold a `kvlease` object with any key of kvl_open (README), and `drive`: `pump` (default), or
    `inline`: everything happens in the engine's steps.
    """

    def __init__(self, vllm_config: VllmConfig):
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None and transfer.engine_id is not None
        extra = transfer.kv_connector_extra_config or {}
        own = extra.get("kvlease", {})
        if not isinstance(own, dict):
            raise ValueError(f"kv_connector_extra_config: kvlease must be an object, is {type(own).__name__}")
        if taken := sorted(OURS & own.keys()):
            raise ValueError(f"kv_connector_extra_config: kvlease: {', '.join(taken)}: set by the connector, from vLLM's own settings: leave it out")
        check_values(extra, own)
        self.engine_id: str = transfer.engine_id
        self.parallel = vllm_config.parallel_config
        self.model = vllm_config.model_config
        self.own = own
        self.drive: str = own.get("drive", "pump")
        self.ranks: int = self.parallel.tensor_parallel_size * self.parallel.pipeline_parallel_size
        self.carrier: str = own.get("carrier") or ("delta" if several_nodes(self.parallel) else "shm")
        # The host context is stepped by the engine's steps: in inline mode, and where its streams travel with them.
        self.host_steps = self.drive == "inline" or self.carrier == "delta"
        self.engine_ttl = float(extra.get("engine_ttl", 3600.0))
        self.recompute: bool = transfer.kv_load_failure_policy == "recompute"
        self.lease_duration = own.get("kv_lease_duration", extra.get("kv_lease_duration", 30.0))  # s; what kvl_open refuses opens no context
        self.same = {k: extra[k] for k in SAME_NAME if k in extra}
        self._refuse(transfer, extra)

    def _refuse(self, transfer: Any, extra: dict[str, Any]) -> None:
        """Raise for what vLLM has and this connector has not."""
        if extra.get("backends", ["UCX"]) != ["UCX"]:
            raise ValueError(f"kv_connector_extra_config: backends is {extra['backends']}: kvlease has UCX only; leave the key out")
        for key in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(self.parallel, key, 1) > 1:
                raise NotImplementedError(f"{key} is {getattr(self.parallel, key)}: kvlease takes 1")
        if getattr(transfer, "enable_permute_local_kv", False):
            raise NotImplementedError("enable_permute_local_kv: kvlease reads blocks as they are; set it to false")

    def context(self, role: str, **more: Any) -> dict[str, Any]:
        """Configuration of one context."""
        model = self.model
        out: dict[str, Any] = {
            "role": role,
            "engine_id": self.engine_id,
            "tp_size": self.parallel.tensor_parallel_size,
            "pp_size": self.parallel.pipeline_parallel_size,
            "num_kv_heads": 1 if model.use_mla else model.get_total_num_kv_heads(),
            "drive": "pump",
            "log_level": "info",
            **self.same,
            **more,
            **self.own,
            "log": "host",  # to vLLM's log (logs.py)
            "carrier": self.carrier,
        }
        if role == "host" and self.host_steps:
            out["drive"] = "inline"
        if role == "rank" and "nixl_path" not in self.own and not os.environ.get("KVLEASE_NIXL"):
            out["nixl_path"] = nixl_library()
        return out


def check_values(extra: dict[str, Any], own: dict[str, Any]) -> None:
    """Raise, with the key's name, for values of which nothing else would say whose they are."""
    for key, unit in NUMBERS.items():
        if key in extra and not is_number(extra[key]):
            raise ValueError(f"kv_connector_extra_config: {key} is {extra[key]!r}: it must be a number of {unit}; or leave it out for its default")
    if not isinstance(flag := extra.get("bidirectional_kv_xfer", False), bool):
        raise ValueError(f"kv_connector_extra_config: bidirectional_kv_xfer is {flag!r}: it must be true or false")
    for where, values in (("", {k: extra[k] for k in SAME_NAME if k in extra}), ("kvlease: ", own)):
        for key, value in values.items():
            try:
                json.dumps({key: value}, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as e:
                raise ValueError(f"kv_connector_extra_config: {where}{key!r} is {value!r}, which JSON does not have: {e}") from None


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def several_nodes(parallel: Any) -> bool:
    """May a worker be on another node than the scheduler? Ray decides that by itself."""
    return parallel.nnodes_within_dp > 1 or (parallel.distributed_executor_backend == "ray" and parallel.world_size > 1)


def nixl_library() -> str:
    """libnixl_capi.so of the wheel that vLLM's own connector would use: two NIXLs in one process do not go together. "" lets the
    library search."""
    for name in ("nixl-cu13", "nixl-cu12", "nixl"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for f in files:
            if f.name == "libnixl_capi.so":
                return str(f.locate())
    return ""


def check_version() -> None:
    """Raise unless vLLM's own connector is one that this one was written for."""
    from vllm import __version__
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

    if metadata.NIXL_CONNECTOR_VERSION not in CONNECTOR_VERSIONS:
        raise RuntimeError(
            f"vLLM {__version__} has NIXL connector version {metadata.NIXL_CONNECTOR_VERSION}; this kvlease works with "
            f"{' and '.join(map(str, CONNECTOR_VERSIONS))}: use a kvlease for it, or vLLM's own connector (leave kv_connector_module_path out)"
        )
