"""vLLM's real scheduler, block pool and NIXL worker, without its engine: a stand-in of the core's loop, and of the model.

What the loop calls, and in which order, is what v1/engine/core.py and v1/worker/gpu/kv_connector.py do. The model writes into
each block what its tokens and all before them make of it, and takes the next token from all that it finds there: so a wrong block
is a wrong answer. The contexts of kvlease are real, in this one process, over the fake NIXL of cnixl's tests, which can be told to
fail and to wait.
"""

import atexit
import copy
import ctypes
import logging
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque

HERE = pathlib.Path(__file__).resolve().parent
DEPS = pathlib.Path(os.environ.get("KVLEASE_VLLM", HERE.parents[2] / ".deps" / "vllm"))

# Another vLLM than the environment's: its Python files over this one's torch.
if other := os.environ.get("KVLEASE_VLLM_PYTHON"):
    sys.path.insert(0, other)
    os.environ["PYTHONPATH"] = os.pathsep.join([other, *filter(None, [os.environ.get("PYTHONPATH")])])  # vLLM looks at models in a process of its own
os.environ.update({
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "CRITICAL"),
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
})

import msgspec  # noqa: E402
import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.config import KVTransferConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, SlidingWindowSpec  # noqa: E402
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

import kvlease  # noqa: E402
import kvlease.vllm.worker  # noqa: E402

VERSION = vllm.__version__.split("+")[0]
logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # a newer vLLM sets it when an engine is made
BLOCK, LAYERS, HEADS, HEAD = 32, 2, 2, 32
SMALL = 1 << 20  # of rolling values: three bits are left for layer and head in a float32
IDLE = 0.001  # s that the core sleeps after a step without tokens
LEASE = 30.0  # s, vLLM's own. No test takes as long, on a busy machine either: what ends a lease is what the test does
# Extra config for what comes once an interval, and for leases that end by the clock: 4 s is the least without allow_short_leases.
BRIEF = {"kv_lease_duration": 4.0}
# For an engine that has to wait for the end of a lease.
SHORT = {"extra": {"kv_lease_duration": 1.0}, "own": {"allow_short_leases": True, "step_max": 0.2}}


class Nixl:
    """The fake NIXL: cnixl/fake/src/script.c says what it can be told."""

    def __init__(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlease-fake-"))
        atexit.register(shutil.rmtree, folder, True)
        self.path = str(folder / "libnixl_capi.so")
        sources = sorted((HERE.parents[2] / "cnixl" / "fake" / "src").glob("*.c"))
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-shared", "-pthread", "-o", self.path, *sources], check=True)
        self._library = ctypes.CDLL(self.path)

    def tell(self, command):
        answer = self._library.kvl_fake_control(command.encode())
        assert answer >= 0, f"the fake NIXL does not understand {command!r}"
        return answer


nixl = Nixl()


class Died(Exception):
    """What left the part of the loop in which vLLM's core ends with its engine."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(what, *engines, seconds=60.0):
    """Turns engines until something has come about, and answers it."""
    end = time.monotonic() + seconds
    while not (got := what()):
        assert time.monotonic() < end, f"waited in vain: {[e.state() for e in engines]}"
        if not any([e.turn() for e in engines]):
            time.sleep(0.0005)
    return got


# ---- configurations ----

_base = None


def configuration(name, extra=None, own=None, policy="fail", role="kv_both", tp=1, blocks=64, seqs=8, tokens=2048, asynchronous=False,
                  caching=True, engine_id="", module="kvlease.vllm", connector="NixlConnector", block_size=BLOCK):
    """One VllmConfig for a tiny model; `own` is the object kvlease of the extra config."""
    global _base
    if _base is None:
        _base = EngineArgs(
            model=str(DEPS / "tiny"), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, block_size=BLOCK, max_model_len=4096,
            kv_cache_memory_bytes=16 << 20, kv_transfer_config=KVTransferConfig(kv_connector="NixlConnector", kv_role="kv_both", kv_buffer_device="cpu"),
        ).create_engine_config()
    config = copy.copy(_base)
    for part in ("cache_config", "scheduler_config", "parallel_config", "model_config"):
        setattr(config, part, copy.copy(getattr(_base, part)))
    settings = {"kv_lease_duration": LEASE, **(extra or {})}
    settings["kvlease"] = {"nixl_path": nixl.path, "carrier": "process", "death_wire": False, **(own or {})}
    config.kv_transfer_config = KVTransferConfig(
        kv_connector=connector, kv_connector_module_path=module, kv_role=role, kv_buffer_device="cpu", kv_load_failure_policy=policy,
        kv_connector_extra_config=settings, engine_id=engine_id or f"{name}-{free_port()}",
    )
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = block_size
    config.cache_config.enable_prefix_caching = caching
    config.cache_config.kv_cache_layout = "LBHNC"  # as the core resolves it for this connector
    config.scheduler_config.max_num_seqs = seqs
    config.scheduler_config.max_num_batched_tokens = config.scheduler_config.max_num_scheduled_tokens = tokens
    config.scheduler_config.async_scheduling = asynchronous
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.parallel_config.tensor_parallel_size = tp
    return config


def cache_configuration(config, window=0):
    """All layers in one group, or the last in a group of its own with a sliding window."""
    heads = HEADS // config.parallel_config.tensor_parallel_size
    common = dict(block_size=config.cache_config.block_size, num_kv_heads=heads, head_size=HEAD, dtype=torch.float32)
    names = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]
    full = FullAttentionSpec(**common)
    groups = [KVCacheGroupSpec(names, full)]
    if window:
        groups = [KVCacheGroupSpec(names[:1], full), KVCacheGroupSpec(names[1:], SlidingWindowSpec(sliding_window=window, **common))]
    blocks = config.cache_config.num_gpu_blocks
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)


# ---- the model ----


def values(tokens):
    """What the model keeps of each token: a rolling sum of all up to it."""
    out, h = [], 7
    for t in tokens:
        h = (h * 31 + t + 1) % SMALL
        out.append(h)
    return out


def answer(prompt, n):
    """What a single engine says."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(next_token(sum(values(tokens))))
    return tokens[len(prompt):]


def next_token(total):
    return int(total) % 97 + 3


def told_after(c, finished):
    """A worker's calls of its connector after the forward pass, and what they tell the scheduler."""
    c.start_load_kv(None)
    c.wait_for_save()
    told = KVConnectorOutput()
    results = c.get_transfer_results(finished)
    told.finished_sending = results.finished_sending or None
    told.finished_recving = results.finished_recving or None
    told.failed_recving = results.failed_recving
    told.invalid_block_ids = c.get_block_ids_with_load_errors()
    told.kv_connector_stats = c.get_kv_connector_stats()
    told.kv_cache_events = c.get_kv_connector_kv_cache_events()
    told.kv_connector_worker_meta = c.build_connector_worker_meta()
    c.clear_connector_metadata()
    return told


class Rank:
    """One worker: its part of the cache, and its connector."""

    def __init__(self, engine, rank):
        self.engine, self.rank = engine, rank
        heads = HEADS // engine.tp
        self.heads = range(rank * heads, (rank + 1) * heads)
        size = engine.config.cache_config.block_size
        self.caches = {
            name: torch.zeros(engine.blocks, heads, size, 2 * HEAD) for g in engine.cache_config.kv_cache_groups for name in g.layer_names
        }
        with parallel(rank, engine.tp), kept_affinity():
            self.connector = KVConnectorFactory.create_connector(config=engine.config, role=KVConnectorRole.WORKER, kv_cache_config=engine.cache_config)
            self.connector.register_kv_caches(self.caches)
        self.tables = {name: g for g, group in enumerate(engine.cache_config.kv_cache_groups) for name in group.layer_names}

    def stats(self):
        return self.connector.connector_worker._ctx.stats()

    def step(self, output, work):
        """The connector's calls of one step around the forward pass."""
        c = self.connector
        c.handle_preemptions(output.kv_connector_metadata)
        c.bind_connector_metadata(output.kv_connector_metadata)
        sums = {id: self.forward(*job) for id, job in work.items()}
        c.finish_forward()
        return sums, told_after(c, output.finished_req_ids)

    def forward(self, tokens, first, tables):
        """Write what tokens[first:] make, and sum up what stands in the cache for all of them, as far as windows reach."""
        size, all = self.engine.config.cache_config.block_size, values(tokens)
        total = None
        for layer, (name, cache) in enumerate(sorted(self.caches.items())):
            table, window = tables[self.tables[name]], self.engine.windows[self.tables[name]]
            for i, head in enumerate(self.heads):
                mark = (layer * HEADS + head) * SMALL
                for at in range(first, len(tokens)):
                    cache[table[at // size], i, at % size, :] = all[at] + mark
            ids = torch.tensor([table[b] for b in range((len(tokens) + size - 1) // size)])
            seen = (cache[ids].double() - torch.tensor([(layer * HEADS + h) * SMALL for h in self.heads]).view(1, -1, 1, 1)).transpose(0, 1)
            seen = seen.reshape(len(self.heads), -1, 2 * HEAD)[:, :len(tokens)]
            low = max(0, len(tokens) - window) if window else 0
            want = torch.tensor(all[low:], dtype=torch.float64).view(1, -1, 1)
            right = bool((seen[:, low:] == want).all())
            total = sum(all) if right else sum(all) + 1  # a wrong block anywhere is another token
            if not right:
                return total
        return total


# ---- one engine ----


class parallel:
    """What a worker asks vLLM's process groups."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def __enter__(self):
        class Group:
            rank_in_group, world_size = 0, 1

        self.before = []
        for module, name, value in (
            (base_worker, "get_tensor_model_parallel_rank", lambda: self.rank),
            (base_worker, "get_tensor_model_parallel_world_size", lambda: self.size),
            (kvlease.vllm.worker, "get_pp_group", lambda: Group),
        ):
            self.before.append((module, name, getattr(module, name)))
            setattr(module, name, value)

    def __exit__(self, *exc):
        for module, name, value in self.before:
            setattr(module, name, value)


class kept_affinity:
    """vLLM's worker pins its thread on a CPU platform; here that is the test."""

    def __enter__(self):
        self.cpus = os.sched_getaffinity(0)

    def __exit__(self, *exc):
        os.sched_setaffinity(0, self.cpus)


class Engine:
    """A scheduler and its ranks, turned by hand. `ids` counts requests; `out` is what a client has got."""

    def __init__(self, name, tp=1, window=0, **settings):
        self.name, self.tp = name, tp
        self.config = configuration(name, tp=tp, **settings)
        self.blocks = self.config.cache_config.num_gpu_blocks
        self.cache_config = cache_configuration(self.config, window)
        self.windows = [getattr(g.kv_cache_spec, "sliding_window", None) or 0 for g in self.cache_config.kv_cache_groups]
        self.port = free_port()
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(self.port)
        self.ranks, self.scheduler = [], None
        self.made, self.pending, self.tokens, self.out = 0, deque(), {}, {}
        self.depth = 2 if settings.get("asynchronous") else 1
        self.closed = False
        with set_current_vllm_config(self.config):
            self.ranks = [Rank(self, r) for r in range(tp)]
            scheduler_block, hash_block = resolve_kv_cache_block_sizes(self.cache_config, self.config)
            self.scheduler = self.config.scheduler_config.get_scheduler_cls()(
                vllm_config=self.config, kv_cache_config=self.cache_config, structured_output_manager=StructuredOutputManager(self.config),
                block_size=scheduler_block, hash_block_size=hash_block, log_stats=True,
            )
        self.aggregator = KVOutputAggregator.from_connector(self.scheduler.connector, tp)
        self.publish()
        hash = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash)
        self.hasher = get_request_block_hasher(hash_block, hash)

    def agent(self, rank=0):
        """Name of a rank's agent."""
        return msgspec.msgpack.decode(self.side._ctx.handshake_get(rank))["kvlease"]["agent"]

    def publish(self):
        self.connector.set_xfer_handshake_metadata_pp_aware({(0, r.rank): r.connector.get_handshake_metadata() for r in self.ranks})

    @property
    def connector(self):
        return self.scheduler.connector

    @property
    def side(self):
        """The connector's scheduler half."""
        return self.connector.connector_scheduler

    @property
    def pool(self):
        return self.scheduler.kv_cache_manager.block_pool

    # ---- requests ----

    def add(self, id, prompt, n=1, kv=None, priority=0):
        """A request has come to the core."""
        extra = None if kv is None else {"kv_transfer_params": kv}
        sampling = SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True, extra_args=extra)
        sampling.detokenize = False
        request = Request(id, list(prompt), sampling, None, block_hasher=self.hasher, priority=priority)
        self.out[id] = Out()
        try:
            self.scheduler.add_request(request)
        except Exception as e:
            raise Died from e
        return request

    def abort(self, id):
        self.scheduler.finish_requests(id, RequestStatus.FINISHED_ABORTED)

    # ---- the loop ----

    def turn(self):
        """One turn as the core makes it: schedule, and answer the oldest step once enough are under way. False: nothing to do."""
        if self.closed or not (self.scheduler.has_requests() or self.pending):
            return False
        try:
            if self.scheduler.has_requests() and len(self.pending) < self.depth:
                self.schedule()
                if len(self.pending) < self.depth and self.pending[-1][1]:
                    return True
            if not self.answer():
                time.sleep(IDLE)
        except Exception as e:
            raise Died(f"{self.name}: {type(e).__name__}: {e}") from e
        return True

    def schedule(self):
        output = self.scheduler.schedule()
        self.made += 1
        work, firsts = {}, self.firsts(output)
        new = {r.req_id for r in output.scheduled_new_reqs}  # a session's next part, too
        for id, n in output.num_scheduled_tokens.items():
            tables = [list(t) for t in self.scheduler.kv_cache_manager.get_block_ids(id)]
            work[id] = (list(self.scheduler.requests[id].prompt_token_ids) if id in new else None, firsts[id], n, tables)
        self.pending.append((output, work))
        return output

    def firsts(self, output):
        """How many tokens of each scheduled request were there before this step."""
        return {
            **{r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs},
            **dict(zip(output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens)),
        }

    def answer(self):
        """Execute the oldest step that was scheduled, and tell the scheduler. False: no token was in it."""
        output, scheduled = self.pending.popleft()
        work, ends = {}, {}
        for id, (prompt, first, n, tables) in scheduled.items():
            tokens = self.tokens[id] = prompt or self.tokens[id]
            work[id] = (tokens[:first + n], first, tables)
            ends[id] = first + n >= len(tokens)
        told = [r.step(output, work) for r in self.ranks]
        sampled = {}
        for id in work:
            totals = {sums[id] for sums, _ in told}
            sampled[id] = [next_token(max(totals))] if ends[id] else []
            self.tokens[id] = self.tokens[id] + sampled[id]
        results = [
            ModelRunnerOutput(req_ids=list(work), req_id_to_index={id: i for i, id in enumerate(work)}, sampled_token_ids=list(sampled.values()),
                              kv_connector_output=kv) for _, kv in told
        ]
        result = self.aggregator.aggregate(results) if self.tp > 1 else results[0]
        for outputs in self.scheduler.update_from_output(output, result).values():
            for o in outputs.outputs:
                self.out[o.request_id].take(o)
            if outputs.scheduler_stats is not None and outputs.scheduler_stats.kv_connector_stats:
                self.stats = outputs.scheduler_stats.kv_connector_stats
        return bool(work)

    def run(self, id, *others, seconds=60.0):
        """Turns until a request is over."""
        return until(lambda: self.out[id] if self.out[id].over else None, self, *others, seconds=seconds)

    # ---- what is held ----

    def free(self):
        return self.pool.get_num_free_blocks()

    def rest(self, *others, seconds=60.0):
        """Turns until nothing is left of any request: no block, no lease, no table entry. Says what is left if that does not come."""
        def still():
            self.side.poll()
            return not self.left()
        end = time.monotonic() + seconds
        while not still():
            assert time.monotonic() < end, f"{self.name} keeps {self.left()}"
            turned = [e.turn() for e in (self, *others)]
            if not any(turned):
                time.sleep(0.001)

    def left(self):
        """What is there that was not at the start."""
        reader, owner = self.side._reader, self.side._owner
        stats = self.side._ctx.stats()
        return {k: v for k, v in {
            "requests": len(self.scheduler.requests), "blocks": self.blocks - 1 - self.free(), "pulls": len(reader._pulls), "users": len(reader._by_user),
            "again": len(reader._again), "failed": len(reader.failed), "done": len(reader.done), "held": len(owner._held), "back": len(owner._back), "aside": len(self.side._aside),
            "expected": len(owner._expected), "sent": len(owner.finished_sending), "leases": stats["held"], "tracked": stats["group_tracked"],
            "refs": sum(b.ref_cnt for b in self.pool.blocks if not b.is_null),
            "noted": len(self.side._reqs_need_recv) + len(self.side._reqs_need_send) + len(self.side._reqs_in_batch) + len(self.side._reqs_not_processed),
        }.items() if v}

    def state(self):
        return {"engine": self.name, **self.left(), "out": {id: (o.tokens, o.reason) for id, o in self.out.items()},
                "status": {id: r.status.name for id, r in self.scheduler.requests.items()}}

    def close(self):
        """In the order of vLLM's core: the executor's workers, then the scheduler."""
        if not self.closed:
            self.closed = True
            for r in self.ranks:
                r.connector.shutdown()
            self.connector.shutdown()


class Out:
    """What a client has got of one request."""

    def __init__(self):
        self.tokens, self.reason, self.kv, self.over = [], None, None, False

    def take(self, output):
        self.tokens += output.new_token_ids
        if output.finish_reason is not None:
            self.over, self.reason, self.kv = True, str(output.finish_reason), output.kv_transfer_params


PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def prompt(n, seed=1):
    return [(seed * 7919 + i * 31 + (i * i) % 13) % 250 for i in range(n)]
