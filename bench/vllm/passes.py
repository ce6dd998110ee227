"""What the connector costs vLLM's loop: one round per line on stdin, answered by "name value" lines and a dot.

usage: passes.py KIND PREFIX SIZE...

KIND is stock (vLLM's own NixlConnector), pump or inline (kvlease's, by its drive). A prefill and a decode engine of tests/vllm/classes are in this
process: vLLM's real scheduler, block pool and connector classes, without a model. A round holds more and more leases on P, each tracked on D, and
ends them: the first thousand by reads, the others by aborts at D.

Figures are CPU time of the calling thread in ns, so other work on the machine does not count, and neither do kvlease's own threads: what those
take is a row of the idle engines. What the same calls of a connector that does nothing cost is taken off.
"""

import ctypes
import os
import pickle
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "vllm" / "classes"), str(Path(__file__).parent)]
import memory_nixl  # noqa: E402
import stage  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorTransferResults  # noqa: E402
from vllm.v1.core.sched.output import SchedulerOutput  # noqa: E402

READ = 1000  # requests of a round that D reads
CHUNK = 100  # requests that come and go with one pass
MESSAGES = 50  # of heartbeats, each of all leases
EMPTY = SchedulerOutput.make_empty()
INTERVAL, PASS = 5.0, 0.03  # s: heartbeats of a lease of 30 s; a pass that they are spread over
now = time.thread_time_ns


class Nothing(KVConnectorBase_V1):
    """A connector that does nothing: what vLLM's own part of a pass costs."""

    META, RESULTS = KVConnectorMetadata(), KVConnectorTransferResults()

    def __init__(self):
        self._connector_metadata = None

    def build_connector_meta(self, output):
        return self.META

    def update_connector_output(self, told):
        pass

    def get_kv_connector_stats(self):
        return None

    def start_load_kv(self, context, **how):
        pass

    def wait_for_save(self):
        pass

    def get_transfer_results(self, finished):
        return self.RESULTS

    def get_block_ids_with_load_errors(self):
        return EMPTY_SET

    def get_num_new_matched_tokens(self, request, n):
        return 0, False

    def update_state_after_alloc(self, request, blocks, n):
        pass

    save_kv_layer = wait_for_layer_load = None


EMPTY_SET = set()


def worker_half(c, meta):
    """The connector's calls of v1/worker/gpu/kv_connector.py."""
    c.handle_preemptions(meta)
    c.bind_connector_metadata(meta)
    return stage.told_after(c, EMPTY_SET)


def scheduler_half(c, told, finished=lambda told: None):
    """What the scheduler asks of it: the output of the step before, and the metadata of the next. `finished` is the scheduler's own part of an output in
    which something ended."""
    c.update_connector_output(told)
    if told.finished_sending or told.finished_recving:
        finished(told)
    c.get_kv_connector_stats()
    return c.build_connector_meta(EMPTY)


def mean(call, times=200, samples=9):
    """ns of a call: the median of some stretches."""
    took = []
    for _ in range(samples):
        began = now()
        for _ in range(times):
            call()
        took.append((now() - began) / times)
    return statistics.median(took)


def nothing():
    """ns of both halves of a pass with the connector that does nothing."""
    nobody, told = Nothing(), stage.KVConnectorOutput()
    return mean(lambda: scheduler_half(nobody, told)), mean(lambda: worker_half(nobody, Nothing.META))


class Side:
    """An engine, what of it was measured, and the requests that it has."""

    def __init__(self, name, kind):
        self.name, self.stock = name, kind == "stock"
        own = {"drive": "inline"} if kind == "inline" else {}
        self.engine = stage.Engine(name, module=None if self.stock else "kvlease.vllm", blocks=max(SIZES) + READ + 64, caching=False,
                                   role="kv_producer" if name == "P" else "kv_consumer", extra={"kv_lease_duration": 30}, own=own)
        self.scheduler, self.c, self.w = self.engine.scheduler, self.engine.connector, self.engine.ranks[0].connector
        self.told, self.bytes, self.requests = stage.KVConnectorOutput(), 0, {}

    def finish(self, told):
        """As the scheduler does after update_connector_output."""
        for id in told.finished_recving or ():
            self.requests[id].done = True
        for id in told.finished_sending or ():
            self.scheduler._free_blocks(self.scheduler.requests[id])

    def a_pass(self):
        """One whole pass; ns."""
        began = now()
        meta = scheduler_half(self.c, self.told, self.finish)
        self.told = worker_half(self.w, meta)
        took = now() - began
        self.bytes = len(pickle.dumps(meta, pickle.HIGHEST_PROTOCOL)) + len(pickle.dumps(self.told, pickle.HIGHEST_PROTOCOL))
        return took

    def settle(self, passes=3):
        for _ in range(passes):
            self.a_pass()

    def quiet(self):
        """A pass in which nothing happens: its two halves in ns, its bytes."""
        self.settle()
        if self.stock:
            self.engine.side._last_heartbeat_time = time.perf_counter() + 60
        self.settle()
        small, meta, told = self.bytes, scheduler_half(self.c, self.told, self.finish), self.told
        out = mean(lambda: scheduler_half(self.c, told)), mean(lambda: worker_half(self.w, meta))
        return out[0], out[1], small

    def request(self, params):
        global count
        count += 1
        sampling = stage.SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": params})
        request = stage.Request(f"chatcmpl-{count:032x}-{count:08x}", [1] * 32, sampling, None)
        self.scheduler.requests[request.request_id] = self.requests[request.request_id] = request
        return request

    def end(self, request, status):
        """vLLM's request is over. The connector's part and the giving back of blocks that it does not keep; ns and what it answered."""
        request.status = status
        ids = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)
        began = now()
        kept, params = self.c.request_finished_all_groups(request, ids)
        if not kept:
            self.scheduler._free_blocks(request)
        return now() - began, params


count = 0


def prefill(p, n):
    """Requests that P computes in one pass: what its hooks cost from arrival to grant, and the parameters."""
    requests, took, all = [], 0, []
    for _ in range(n):
        request = p.request(dict(stage.PREFILL))
        blocks = p.scheduler.kv_cache_manager.allocate_slots(request, 32)
        began = now()
        p.c.on_new_request(request)
        p.c.get_num_new_matched_tokens(request, 0)
        p.c.update_state_after_alloc(request, blocks, 0)
        took += now() - began
        requests.append(request)
    time.sleep(PASS)  # the forward pass
    for request in requests:
        request.num_computed_tokens = 32
        more, params = p.end(request, stage.RequestStatus.FINISHED_LENGTH_CAPPED)
        took += more
        all.append(params)
    return took, all


def arrive(d, params):
    request = d.request(params)
    began = now()
    d.c.on_new_request(request)
    return request, now() - began


def start_read(d, request):
    began = now()
    missing, _ = d.c.get_num_new_matched_tokens(request, 0)
    took = now() - began
    assert missing == 32, "D has nothing to read"
    blocks = d.scheduler.kv_cache_manager.allocate_slots(request, 32, delay_cache_blocks=True)
    request.status, request.done, request.num_computed_tokens = stage.RequestStatus.WAITING_FOR_REMOTE_KVS, False, 32
    began = now()
    d.c.update_state_after_alloc(request, blocks, 32)
    return took + now() - began


def until(what, *sides):
    """Passes, not measured, until it has come about."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "waited in vain"
        for side in sides:
            side.a_pass()
        time.sleep(0.002)


def held(p):
    if p.stock:
        return len(p.engine.ranks[0].connector.connector_worker._reqs_to_send)
    return p.engine.side._ctx.stats()["held"]


class Reader:
    """An agent of no engine that sends P what a stock decoder sends."""

    def __init__(self, p):
        if p.stock:
            self.agent, self.to = memory_nixl.Agent("reader", None), p.w.connector_worker.nixl_wrapper.name
            return
        self.nixl, self.handle, name = stage.nixl._library, ctypes.c_void_p(), ctypes.c_char_p()
        assert self.nixl.nixl_capi_create_configured_agent(b"reader", bytes(64), ctypes.byref(self.handle)) == 0
        blob = stage.msgspec.msgpack.decode(p.engine.side._ctx.handshake_get(0))["agent_metadata"]
        assert self.nixl.nixl_capi_load_remote_md(self.handle, blob, ctypes.c_size_t(len(blob)), ctypes.byref(name)) == 0
        self.agent, self.to = None, name.value

    def send(self, message):
        if self.agent is not None:
            self.agent.send_notif(self.to, message)
        else:
            assert self.nixl.nixl_capi_gen_notif(self.handle, self.to, message, ctypes.c_size_t(len(message)), None) == 0


class Round:
    def __init__(self, p, d):
        self.p, self.d, self.waiting, self.params = p, d, [], []
        self.without = {}  # ns of a pass of a side with the fewest leases of the round

    def say(self, name, value):
        print(f"{PREFIX}.{name}", f"{value:.6g}", flush=True)

    def grow(self, size):
        """Chunks of requests until P holds so many leases; each chunk with a pass of both. ns a request on either side."""
        p_ns = d_ns = p_bytes = new = 0
        while len(self.waiting) < size:
            n = min(CHUNK, size - len(self.waiting))
            took, all = prefill(self.p, n)
            p_ns += took
            for params in all:
                request, took = arrive(self.d, params)
                d_ns += took
                self.waiting.append(request)
            p_ns += self.p.a_pass()
            p_bytes += self.p.bytes
            d_ns += self.d.a_pass()
            new += n
        until(lambda: held(self.p) == size, self.p, self.d)
        return (p_ns / new, d_ns / new, p_bytes / new) if new else (0, 0, 0)

    def quiet(self, size):
        for side in (self.p, self.d):
            scheduler, worker, small = side.quiet()
            base = nothing()  # beside it, since caches and clock change within a run
            scheduler, worker = scheduler - base[0], worker - base[1]
            self.say(f"{side.name}.scheduler.{size}", scheduler)
            self.say(f"{side.name}.worker.{size}", worker)
            self.say(f"{side.name}.bytes.{size}", small)
            due, most = self.due(side, sum(base)) if side.stock else (scheduler + worker, small)
            self.say(f"{side.name}.due.{size}", due)
            self.say(f"{side.name}.due_bytes.{size}", most)
            whole = scheduler + worker + (due - scheduler - worker) * PASS / INTERVAL
            self.say(f"{side.name}.pass.{size}", whole)
            without = self.without.setdefault(side.name, whole)
            self.say(f"{side.name}.added.{size}", max(whole - without, 1))  # 1 ns: less than can be told

    def due(self, side, base):
        """A pass of a stock engine with the heartbeats of all requests: D sends them, P applies them."""
        took, most = [], 0
        for _ in range(5):
            self.d.engine.side._last_heartbeat_time = -1e9
            sent = self.d.a_pass(), self.d.bytes
            applied = self.p.a_pass(), self.p.bytes
            ns, bytes = sent if side is self.d else applied
            took.append(ns)
            most = max(most, bytes)
        return statistics.median(took) - base, most

    def shrink(self, size):
        """D reads, in chunks. ns a request on either side, from D's blocks to P's."""
        p_ns = d_ns = 0
        p, d = self.p, self.d
        for first in range(0, size, CHUNK):
            chunk = [self.waiting.pop() for _ in range(CHUNK)]
            left = len(self.waiting)
            d_ns += sum(start_read(d, r) for r in chunk)
            d_ns += d.a_pass()
            until_there(d, left)
            d_ns += d.a_pass() + d.a_pass()
            until(lambda: all(r.done for r in chunk), d)
            for r in chunk:
                d_ns += d.end(r, stage.RequestStatus.FINISHED_LENGTH_CAPPED)[0]
            p_ns += p.a_pass() + p.a_pass()
            until(lambda: held(p) == left, p)
        return p_ns / size, d_ns / size

    def rates(self, reader):
        """Heartbeats and completions that P applies in a second of CPU time, of all threads of this process, those of the library too."""
        self.grow(READ)
        ids = [r.kv_transfer_params["remote_request_id"] for r in self.waiting]
        beats = [("HB:" + ",".join(ids)).encode()] * MESSAGES
        self.say("P.beats", MESSAGES * READ * 1e9 / self.applied(reader, beats, lambda n: n == MESSAGES * READ))
        self.say("P.completions", READ * 1e9 / self.applied(reader, [f"{id}:1".encode() for id in ids], lambda n: held(self.p) == 0))
        self.rest()

    def applied(self, reader, messages, done):
        """ns of CPU time that P takes for them, with the pass after them, which takes what has ended back."""
        p = self.p
        p.settle()
        began, own, before = time.process_time_ns(), now(), heard(p)
        for message in messages:
            reader.send(message)
        passes, end = 0, time.monotonic() + 60
        while True:
            passes += p.a_pass() if KIND != "pump" else 0
            if p.stock or done(heard(p) - before):
                passes += p.a_pass()
                return time.process_time_ns() - began - (now() - own) + passes
            assert time.monotonic() < end, "not applied"
            time.sleep(0.001)

    def rest(self):
        """What is left is aborted at D in its queue."""
        while self.waiting:
            for _ in range(min(CHUNK, len(self.waiting))):
                self.d.end(self.waiting.pop(), stage.RequestStatus.FINISHED_ABORTED)
            for side in (self.d, self.p):
                side.a_pass()
        until(lambda: held(self.p) == 0, self.d, self.p)
        self.p.settle()


def heard(p):
    """Heartbeats that P has applied."""
    return 0 if p.stock else p.w.connector_worker._ctx.stats()["beats_applied"]


def until_there(d, left):
    """Data that threads of the library read is there, without a pass that would be paid for looking."""
    if not d.stock:
        end = time.monotonic() + 60
        ctx = d.engine.side._ctx
        while ctx.stats()["group_tracked"] > left and time.monotonic() < end:
            if KIND == "inline":
                return
            time.sleep(0.002)


def play(p, d, reader):
    round = Round(p, d)
    for size in SIZES:
        p_ns, d_ns, p_bytes = round.grow(size)
        if size == READ:
            round.say("P.begin", p_ns)
            round.say("D.begin", d_ns)
            round.say("P.request_bytes", p_bytes)
        round.quiet(size)
        if size == READ:
            p_ns, d_ns = round.shrink(size)
            round.say("P.end", p_ns)
            round.say("D.end", d_ns)
    round.rest()
    round.rates(reader)


if __name__ == "__main__":
    KIND, PREFIX, SIZES = sys.argv[1], sys.argv[2], [int(n) for n in sys.argv[3:]]
    if KIND == "stock":
        stage.base_worker.NixlWrapper, stage.base_worker.nixl_agent_config = memory_nixl.Agent, None
    sides = Side("P", KIND), Side("D", KIND)
    reader = Reader(sides[0])
    for _ in sys.stdin:
        play(*sides, reader)
        print(".", flush=True)
    os._exit(0)  # agents of the fake NIXL need no goodbye
