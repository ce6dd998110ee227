"""Opening the host context: its handshake maps are vLLM's own, with the metadata of the library's agents in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

import kvlease
from kvlease.vllm import carried

if TYPE_CHECKING:
    from kvlease.vllm.settings import Settings

# Under this key a worker puts into its handshake map how often it has registered its memory, and the first message of its stream if
# that travels with steps. The scheduler's side takes it out again.
RANK_KEY = "kvlease_rank"
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


class Maps:
    """Puts the metadata of the library's agents into vLLM's maps, by (stage, rank), and serves those. All ranks have registered; at a
    wake-up they have done so again. The payloads are changed, too."""

    def __init__(self, ctx: kvlease.Context, tp_size: int):
        self._ctx, self._tp_size = ctx, tp_size
        self.waiting: dict[tuple[int, int], tuple[Any, dict[str, Any]]] = {}  # by key: maps that are not served yet
        self._registered: dict[int, int] = {}  # by rank: the registration whose map is served
        self._gone: set[int] = set()  # ranks whose map the library has dropped since

    def begin(self, metadata: dict[tuple[int, int], Any]) -> None:
        """What the workers have made."""
        for key, payload in metadata.items():
            theirs = msgspec.msgpack.decode(payload.agent_metadata_bytes)
            registration, message = theirs.pop(RANK_KEY)
            rank = self._number(key)
            carried.put(self._ctx, rank, message)
            if self._registered.get(rank) != registration:
                self.waiting[key] = payload, theirs
                self._registered[rank] = registration

    def unregistered(self, rank: int) -> None:
        """KVL_EV_RANK_DOWN."""
        self._gone.add(rank)

    def publish(self) -> dict[tuple[int, int], Any]:
        """Serve the maps of those ranks that have told theirs by now, and answer their payloads."""
        out = {}
        for key, (payload, theirs) in list(self.waiting.items()):
            rank = self._number(key)
            if self._registered[rank] > 1 and rank not in self._gone:
                continue  # the library still has the map of before
            try:
                ours = self._ctx.handshake_get(rank)
            except kvlease.Invalid:
                continue
            theirs["agent_metadata"] = msgspec.msgpack.decode(ours)["agent_metadata"]
            payload.agent_metadata_bytes = msgspec.msgpack.encode(theirs)
            self._ctx.handshake_set(rank, payload.agent_metadata_bytes)
            self._gone.discard(rank)
            out[key] = payload
            del self.waiting[key]
        return out

    @property
    def missing(self) -> list[int]:
        """Ranks whose map is not there yet."""
        return [self._number(key) for key in self.waiting]

    def _number(self, key: tuple[int, int]) -> int:
        return key[0] * self._tp_size + key[1]


def regions_of_groups(payload: Any, number: int) -> list[int]:
    """How many regions the block ids of each of so many transfer groups address. In a region of group -1 all do."""
    groups = msgspec.msgpack.decode(payload.agent_metadata_bytes)["region_group_ids"]
    shared = groups.count(-1)
    return [groups.count(g) + shared for g in range(number)]
