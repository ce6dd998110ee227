"""Opening the host context: its handshake maps are vLLM's own, with the metadata of the library's agents in them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

import kvlease

if TYPE_CHECKING:
    from kvlease.vllm.settings import Settings

ATTACH_TIMEOUT = 30.0  # s until all ranks are attached; they are registered, so it is a matter of ms


def open_host(settings: Settings, payload: Any, host: str, port: int) -> kvlease.Context:
    """payload: what vLLM's worker of any rank made. Serves handshakes at host and port from now on."""
    first = msgspec.msgpack.decode(payload.agent_metadata_bytes)
    return kvlease.Context(
        settings.context(
            "host",
            side_channel_listen=True,
            side_channel_host=host,
            side_channel_port=port,
            compatibility_hash=payload.compatibility_hash,
            block_size=first["block_size"],
            kv_cache_layout=first["kv_cache_layout"],
            attn_backend_name=first["attn_backend_name"],
        )
    )


def publish(ctx: kvlease.Context, tp_size: int, metadata: dict[tuple[int, int], Any]) -> None:
    """Put the metadata of the library's agents into vLLM's maps, by (stage, rank), and serve those. All ranks have registered; at a
    wake-up they have done so again. The payloads are changed, too."""
    for (stage, rank), payload in metadata.items():
        number = stage * tp_size + rank
        theirs = msgspec.msgpack.decode(payload.agent_metadata_bytes)
        theirs["agent_metadata"] = msgspec.msgpack.decode(attached(ctx, number))["agent_metadata"]
        payload.agent_metadata_bytes = msgspec.msgpack.encode(theirs)
        ctx.handshake_set(number, payload.agent_metadata_bytes)


def attached(ctx: kvlease.Context, rank: int) -> bytes:
    """The library's map of a rank, once it is there. In inline mode nobody else steps meanwhile."""
    until = time.monotonic() + ATTACH_TIMEOUT
    while True:
        try:
            return ctx.handshake_get(rank)
        except kvlease.Invalid as e:
            if time.monotonic() > until:
                raise RuntimeError(f"kvlease: rank {rank} is not there after {ATTACH_TIMEOUT:.0f} s: {e}") from e
        ctx.step()
        time.sleep(0.005)


def regions_of_groups(payload: Any) -> list[int]:
    """How many regions the block ids of each transfer group address."""
    groups = msgspec.msgpack.decode(payload.agent_metadata_bytes)["region_group_ids"]
    shared = groups.count(-1)
    return [groups.count(g) + shared for g in range(max(groups, default=0) + 1)]
