"""One vLLM engine in one process, driven by JSON lines as the stock peer is.

usage: engine.py SPEC            commands on stdin, answers and events on stdout; SPEC is a JSON object with fields of Spec
       engine.py --nursery PATH  listens on a Unix socket; the first line of a connection is a SPEC, the rest is as above

vLLM's own LLMEngine with the core in this process: the same scheduler, connector and worker code as behind an API server, in
one process instead of four, and the test turns the loop. What would end an engine core in production ends this process, after
a "died" event that names the exception. A nursery has imported vLLM once and forks an engine in a tenth of the time.

Events: ready, first (a request's first token), out (finished: tokens of each sample, parameters, reason), died, bye.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "stockpeer" / "peer"))
import lines  # noqa: E402

PR_SET_PDEATHSIG = 1
IDLE = 0.001  # s between turns without a forward pass, as vLLM's core has it


@dataclass
class Spec:
    """What one engine is. A connector of None: a single engine, which others are compared with."""

    model: str
    name: str = "p"
    engine_id: str = ""  # fixed if given
    role: str = "kv_producer"
    connector: str | None = "NixlConnector"
    module: str | None = None  # kv_connector_module_path
    extra: dict = field(default_factory=dict)  # kv_connector_extra_config
    policy: str = "fail"  # kv_load_failure_policy
    host: str = "127.0.0.1"
    port: int = 5600  # of the side channel
    tp: int = 1
    blocks: int = 128
    block_size: int = 32
    seqs: int = 8
    tokens_max: int = 0  # of a request; 0: what the blocks hold but for the null block
    batch: int = 2048  # tokens of a pass
    prefix_caching: bool = True
    async_scheduling: bool = False
    log: str = "WARNING"
    changes: dict = field(default_factory=dict)  # of the model's configuration
    env: dict = field(default_factory=dict)


def settle_environment(spec):
    """Before vLLM is imported, or before it first looks."""
    os.environ.update({
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core stays in this process
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every engine binds to the same cores
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": spec.host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(spec.port),
        "VLLM_LOGGING_LEVEL": spec.log,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **spec.env,
    })


def engine_args(spec):
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    transfer = None
    if spec.connector:
        transfer = KVTransferConfig(
            kv_connector=spec.connector, kv_role=spec.role, kv_buffer_device="cpu", kv_load_failure_policy=spec.policy,
            kv_connector_extra_config=spec.extra, **({"engine_id": spec.engine_id} if spec.engine_id else {}),
            **({"kv_connector_module_path": spec.module} if spec.module else {}),
        )
    return EngineArgs(
        model=spec.model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, block_size=spec.block_size,
        max_model_len=spec.tokens_max or (spec.blocks - 1) * spec.block_size, max_num_seqs=spec.seqs, max_num_batched_tokens=spec.batch,
        num_gpu_blocks_override=spec.blocks, kv_cache_memory_bytes=256 << 20, enable_prefix_caching=spec.prefix_caching,
        tensor_parallel_size=spec.tp, distributed_executor_backend="uni" if spec.tp == 1 else "mp",
        kv_transfer_config=transfer, hf_overrides=spec.changes,
    )


class Fatal(Exception):
    """Left the part of a command that runs in the core's own loop: behind an API server the core is gone."""


class Engine:
    def __init__(self, spec):
        self.spec, self.steps, self.pace = spec, 0, 0.0
        self.paused, self.armed, self.begun = False, {}, set()
        started = time.monotonic()
        from vllm.v1.engine.llm_engine import LLMEngine

        config = engine_args(spec).create_engine_config()
        if spec.async_scheduling:  # the CPU platform turns it off without a word
            config.scheduler_config.async_scheduling = True
        self.llm = LLMEngine.from_vllm_config(config)
        self.core = self.llm.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.core.add_request = fatal(self.core.add_request)
        self.lines = None
        self.took = time.monotonic() - started

    # ---- requests ----

    def do_generate(self, id, prompt, max_tokens=1, kv=None, samples=1, abort_at_once=False):
        """Greedy. Several samples take the likeliest token of each, too, since vLLM refuses several greedy ones."""
        from vllm.sampling_params import SamplingParams

        sampling = SamplingParams(
            n=samples, temperature=0.0 if samples == 1 else 1.0, top_k=0 if samples == 1 else 1, max_tokens=max_tokens,
            ignore_eos=True, detokenize=False, extra_args=None if kv is None else {"kv_transfer_params": kv},
        )
        internal = self.llm.add_request(id, {"prompt_token_ids": prompt}, sampling)
        if abort_at_once:
            self.llm.abort_request([id])
        return {"internal": internal}

    def do_abort(self, id):
        self.llm.abort_request([id])

    def do_abort_in(self, id, status):
        """Aborts the request at the end of the first step that leaves it in this status of the scheduler's."""
        self.armed[id] = status

    # ---- the loop ----

    def do_pause(self):
        """The loop does not turn: no step, but commands are heard."""
        self.paused = True

    def do_resume(self):
        self.paused = False

    def do_pace(self, seconds):
        """What each step takes longer, as a larger model's would."""
        self.pace = seconds

    def do_block(self, seconds, gil=False):
        """The loop hangs in a call, as in a long forward pass; with gil no other Python thread runs, either."""
        if gil:
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        else:
            time.sleep(seconds)

    def do_slots(self, number):
        """How many requests may run: at 0 the engine is full, and what comes waits in its queue."""
        self.scheduler.max_num_active_reqs = self.spec.seqs if number is None else number

    def do_pause_scheduler(self, mode="keep"):
        self.core.pause_scheduler(mode, clear_cache=False)

    def do_resume_scheduler(self):
        self.core.resume_scheduler()

    def do_sleep(self, level=1):
        self.llm.sleep(level)

    def do_wake(self):
        self.llm.wake_up()

    def do_forget_prefixes(self):
        return {"done": self.llm.reset_prefix_cache()}

    # ---- what can be seen ----

    def do_stat(self):
        """Held: blocks that the pool cannot give. An idle engine of kvlease takes back what has ended when it next needs blocks: here."""
        s, pool = self.scheduler, self.scheduler.kv_cache_manager.block_pool
        if poll := getattr(getattr(s.connector, "connector_scheduler", None), "poll", None):
            poll()
        return {
            "steps": self.steps, "requests": len(s.requests), "running": len(s.running), "waiting": s.get_request_counts()[1],
            "free_blocks": pool.get_num_free_blocks(), "held": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "cpu": time.process_time(), "statuses": {id: r.status.name for id, r in s.requests.items()}, "busy": self.busy(),
        }

    def do_reading(self):
        """How many requests have a read under way; of an engine with one rank."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        side = self.scheduler.connector.connector_scheduler
        if hasattr(side, "_reader"):
            return {"number": side._ctx.stats()["group_reading"]}
        return {"number": len(get_kv_transfer_group().connector_worker._recving_transfers)}

    def do_wires(self):
        """Connections of other engines that fall with their processes; none of another connector."""
        side = getattr(self.scheduler.connector, "connector_scheduler", None)
        return {"number": side._ctx.stats()["side_readers_wires"] if hasattr(side, "_reader") else 0}

    def do_left(self):
        """What kvlease's connector keeps of any request, by table; nothing of another connector."""
        side = getattr(self.scheduler.connector, "connector_scheduler", None)
        if not hasattr(side, "_reader"):
            return {"left": {}}
        side.poll()
        reader, owner, stats = side._reader, side._owner, side._ctx.stats()
        left = {
            "pulls": len(reader._pulls), "users": len(reader._by_user), "again": len(reader._again), "held": len(owner._held), "back": len(owner._back), "aside": len(side._aside),
            "expected": len(owner._expected), "leases": stats["held"], "tracked": stats["group_tracked"],
        }
        return {"left": {table: n for table, n in left.items() if n}}

    def do_metrics(self):
        """Counters and gauges of the connector; histograms by their sum and count."""
        import prometheus_client

        samples = (sample for metric in prometheus_client.REGISTRY.collect() for sample in metric.samples)
        return {"metrics": {
            ".".join([s.name, *(v for k, v in s.labels.items() if k not in ("engine", "model_name"))]): s.value for s in samples
            if s.name.startswith(("vllm:nixl_", "vllm:external_prefix", "vllm:prefix_cache", "vllm:num_preemptions", "kvlease"))
            and not s.name.endswith(("_bucket", "_created"))
        }}

    # ---- life ----

    def busy(self):
        return not self.paused and (self.scheduler.has_requests() or bool(self.core.batch_queue))

    def step(self):
        outs = self.llm.step()
        self.steps += 1
        for out in outs:
            if out.request_id not in self.begun and any(o.token_ids for o in out.outputs):
                self.begun.add(out.request_id)
                self.lines.say(ev="first", id=out.request_id)
            if out.finished:
                self.begun.discard(out.request_id)
                self.lines.say(
                    ev="out", id=out.request_id, tokens=[list(o.token_ids) for o in out.outputs], kv=out.kv_transfer_params,
                    reason=out.outputs[0].finish_reason, cached=out.num_cached_tokens,
                )
        for id, status in list(self.armed.items()):
            if any(r.status.name == status for local, r in self.scheduler.requests.items() if local.startswith(id + "-")):
                del self.armed[id]
                self.llm.abort_request([id])
                self.lines.say(ev="aborted", id=id, status=status)
        if not outs:
            time.sleep(IDLE)
        if self.pace:
            time.sleep(self.pace)

    def run(self, channel):
        self.lines = channel
        self.lines.say(ev="ready", pid=os.getpid(), took=round(self.took, 2))
        try:
            while not self.lines.carry_out(self, fatal=Fatal):
                if self.busy():
                    self.step()
                else:
                    time.sleep(IDLE)
        except Exception as e:  # the core's loop has ended
            cause = e.__cause__ or e
            traceback.print_exc()
            self.lines.say(ev="died", error=f"{type(cause).__name__}: {cause}")
            return 1
        self.lines.say(ev="bye")
        return 0


def fatal(call):
    def guarded(*args, **kwargs):
        try:
            return call(*args, **kwargs)
        except Exception as e:
            raise Fatal from e

    return guarded


def serve(spec, reader, writer):
    """Engine and loop, until quit. Leaves as a killed process does: agents are not taken down in order."""
    settle_environment(spec)
    code = 1
    try:
        engine = Engine(spec)
    except BaseException as e:
        traceback.print_exc()
        lines.Lines(reader, writer).say(ev="died", error=f"{type(e).__name__}: {e}")
    else:
        code = engine.run(lines.Lines(reader, writer))
        if spec.tp > 1:
            engine.core.shutdown()
    sys.stderr.flush()
    os._exit(code)


def nursery(path):
    """Forks an engine per connection. Nothing has run yet that a fork would break: no agent, no thread pool."""
    settle_environment(Spec(model=""))
    import vllm.v1.core.sched.async_scheduler  # noqa: F401
    import vllm.v1.engine.llm_engine  # noqa: F401
    import vllm.v1.worker.cpu_model_runner  # noqa: F401
    import vllm.v1.worker.cpu_worker  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        reader, writer = connection.makefile("r"), connection.makefile("w")
        request = reader.readline()
        if not request:
            return
        request = json.loads(request)
        if os.fork():
            for end in (reader, writer, connection):
                end.close()
            continue
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # one that has not come up yet does not hear that its channel has ended
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(request.pop("log_file"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for fd in (1, 2):
            os.dup2(log, fd)
        serve(Spec(**request), reader, writer)


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--nursery":
        nursery(sys.argv[2])
    elif len(sys.argv) == 2:
        out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # vLLM logs to stdout
        serve(Spec(**json.loads(sys.argv[1])), sys.stdin, out)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":  # workers of TP > 1 import this file again
    main()
