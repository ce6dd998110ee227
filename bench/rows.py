"""The rows of the table: what is measured, what it should be, and beside what."""

from dataclasses import dataclass, field

TCP = [(4096, 4096), (65536, 1024)]  # block and blocks of the reads over TCP
RANKS = [2, 4]  # of P, where one rank of D takes a part of each block from each
RANKS_SHAPE = (65536, 1024)  # block and blocks of these reads

NS, US, S, B = 1.0, 1e3, 1e9, 1.0  # factors to ns; bytes stay bytes


@dataclass
class Row:
    section: str
    what: str
    ours: str  # name of our samples
    scale: float = NS
    limit: float | None = None  # in ns: our median must not be above
    target: str = ""  # in words
    peers: list = field(default_factory=list)  # (project, what of it, samples, scale)
    ratio: float | None = None  # the best peer's median over ours must not be below
    less: str = ""  # samples that are taken off ours: the transport's own part
    unit: str = "time"  # time, bytes, %, /s, threads
    tail: bool = False  # p50 and p99 instead of median and range
    more: bool = False  # the greater the better
    family: str = ""  # rows of one growth curve
    at: int = 0  # how many of what it grows with; 0 is in no curve
    note: str = ""


def vllm(what, name, scale=NS):
    return ("vLLM", what, f"vllm.{name}", scale)


def rows():
    out = [
        Row("ring", "ring push + pop, one thread", "ring.one", target="≤ rigtorp", ratio=1.0, peers=[("rigtorp", "SPSCQueue", "spsc.one", NS)]),
        Row("ring", "ring push + pop, two threads", "ring.two", target="≤ rigtorp", ratio=1.0, peers=[("rigtorp", "SPSCQueue", "spsc.two", NS)]),
        Row("hook", "`kvl_track` from C", "hook.track", limit=12, target="≤ 12 ns", peers=[vllm("on_new_request", "track")]),
        Row("hook", "`kvl_grant` from C", "hook.grant"),
        Row("hook", "`kvl_untrack` from C", "hook.untrack"),
        Row("hook", "`kvl_step` from C, 500 leases held, nothing due, loopback", "hook.step"),
        Row("hook", "`kvl_step` that takes a track of each of 256 producers", "many.each", peers=[("one producer", "its 256", "many.one", NS)]),
        Row("hook", "`kvl_step` with 256 producers open, nothing said", "many.idle"),
    ]
    ctypes = ("ctypes", "the same call")
    out += [
        Row("python", "`Producer.track` from Python", "python.track", limit=80, target="≤ 80 ns", peers=[vllm("on_new_request", "track"), (*ctypes, "ctypes.track", NS)]),
        Row("python", "`Producer.untrack` from Python", "python.untrack", limit=80, target="≤ 80 ns", peers=[(*ctypes, "ctypes.untrack", NS)]),
        Row("python", "`Producer.cancel` from Python", "python.cancel", limit=80, target="≤ 80 ns"),
        Row("python", "`Producer.grant` from Python, 1 block", "python.grant1", limit=80, target="≤ 80 ns"),
        Row("python", "`Producer.grant` from Python, 8 blocks", "python.grant8"),
        Row("python", "`Producer.grant` from Python, 64 blocks", "python.grant64"),
        Row("python", "`Context.poll` from Python, nothing there", "python.poll"),
        Row("python", "`Context.step` from Python, nothing due", "python.step"),
        Row("python", "`Context.params` from Python, 8 blocks", "python.params"),
        Row("python", "`params_read` from Python, 8 blocks", "python.params_read"),
        Row("python", "a Python function of one argument that does nothing", "python.empty"),
    ]
    for n, limit in (("1000", 25), ("10000", 25), ("100000", None), ("1000000", 80)):
        out.append(Row("lease", f"renew by id, {int(n):,} leases, batches of 64", f"RenewIDs/leases={n} ns/id", limit=limit, family="renew by id, by leases", at=int(n),
                       target=f"≤ {limit} ns" if limit else "", peers=[vllm("messages of 64 ids", f"renew.{n}"), ("etcd", "Renew", f"etcd.renew.{n}", NS)]))
    for n, limit in (("1000", 15), ("10000", 15), ("100000", None), ("1000000", 40)):
        out.append(Row("lease", f"renew by slot, {int(n):,} leases", f"RenewNative/leases={n} ns/id", limit=limit, family="renew by slot, by leases", at=int(n),
                       target=f"≤ {limit} ns" if limit else "", peers=[vllm("messages of 64 ids", f"renew.{n}"), ("etcd", "Renew", f"etcd.renew.{n}", NS)]))
    curve = "step with a stock heartbeat among 10,000 leases, by ids"
    for n in (10, 100, 1000):
        out.append(Row("lease", f"step with a heartbeat of {n:,} stock ids, 10,000 leases", f"Heartbeat/ids={n} ns/op", family=curve, at=n,
                       peers=[vllm("_get_new_notifs", f"heartbeat.{n}")]))
    for n, limit in (("10000", 0.3e6), ("1000000", 1.0e6)):
        out.append(Row("lease", f"step with a heartbeat of 10,000 stock ids, {int(n):,} leases", f"Heartbeat10000/leases={n} ns/op", limit=limit,
                       family=curve, at=10000 if n == "10000" else 0, target=f"≤ {limit / 1e6} ms", peers=[vllm("_get_new_notifs", f"message.{n}")]))
    out += [
        Row("idle", "`kvl_step`, nothing due, 10 k held and tracked, a handshake pending, less NIXL's poll", "idle.step", less="idle.poll", limit=500,
            target="≤ 0.5 µs + NIXL's poll", peers=[vllm("idle step, NIXL's poll not in it", "idle")]),
        Row("idle", "NIXL's empty poll in the same process", "idle.poll"),
        Row("lease", "the same step without C and NIXL (Go, loopback)", "IdleStep ns/op"),
        Row("lease", "D round of 1,000 engines, 10 requests each, worst step", "Round1000Engines/native ns/step-worst", limit=0.3e6, target="≤ 0.3 ms",
            family="D round, worst step, by engines", at=1000, peers=[vllm("_send_heartbeats, one step", "round")], note="the transport is a stub on both sides"),
        Row("lease", "D round of 4,096 engines, 10 requests each, worst step", "Round4096Engines/native ns/step-worst",
            family="D round, worst step, by engines", at=4096, peers=[vllm("_send_heartbeats, one step", "round.4096")]),
        Row("lease", "a stock completion's message → blocks-free event, P's work among 10,000 leases", "Completion ns/op", peers=[vllm("get_transfer_results", "complete")]),
        Row("lease", "256 ends in one step", "SweepEnds ns/op", limit=60e3, target="≤ 60 µs", peers=[vllm("256 of 10,000 in one scan", "ends")]),
    ]
    for n, limit in (("10000", None), ("1000000", 100)):
        out.append(Row("lease", f"looking for ends, nothing due, {int(n):,} leases", f"SweepNothingDue/leases={n} ns/op", limit=limit, family="looking for ends, nothing due, by leases", at=int(n),
                       target="< 100 ns" if limit else "", peers=[vllm("scan of all", f"scan.{n}")]))
    out += [
        Row("memory", "memory of a lease, 1,000,000 held, 64-byte ids", "memory.granted", limit=256, target="≤ 256 B", unit="bytes"),
        Row("memory", "the same when all have ended and no event was polled", "memory.ended", limit=268.4, target="≤ 256 MiB in all: 268 B", unit="bytes"),
    ]
    out += latencies("latency")
    dead = [vllm("lease of 3 s, clock moved by hand", "freed.3", S), vllm("its default of 30 s", "freed.30", S)]
    out += [
        Row("kill", "D killed → blocks free, lease of 3 s (extension 2 s), no death wire", "kill.freed", S, limit=2.08e9,
            target="≤ extension + settle + tick + two steps = 2.08 s", peers=dead),
        Row("kill", "D killed → blocks free, death wire, which P lets return for 0.5 s", "kill.wire", S, limit=1e9, target="≤ 1 s", peers=dead),
    ]
    out.append(Row("kill", "whole handshake: engine named → asked over TCP, checked, loaded, connected", "handshake.ours", US, peers=[
        ("NIXL", "metadata loaded alone", "handshake.load", US)]))
    return out + reads() + ranks() + tcp() + first() + wire() + guest() + sites() + scrape() + inside()


def latencies(section, prefix="", words=""):
    out = []
    raw = [("NIXL", "raw notification, busy polled", f"{prefix}ping.raw", US)]
    for how, drive in (("inline", "inline, 30 ms passes"), ("pump_busy", "pump, busy"), ("pump_idle", "pump, idle")):
        out.append(Row(section, f"heartbeat sent → applied, {drive}{words}", f"{prefix}beat.{how}", US, peers=raw, tail=True))
        out.append(Row(section, f"completion sent → blocks-free event, {drive}{words}", f"{prefix}free.{how}", US, peers=raw, tail=True))
    return out


def first():
    """Until the first word of a read was seen, which the reader may use only behind the fence."""
    out = []
    for block, name in ((4096, "4 KiB"), (1 << 20, "1 MiB")):
        for n in (1, 64):
            key = f"first.{block}.{n}"
            out.append(Row("first", f"first word of a read of {n} × {name}", f"{key}.kvlease", US, peers=[
                ("NIXL", "P told", f"{key}.raw", US), ("NIXL", "P not told", f"{key}.bare", US), ("by hand", "8 bytes read before P is told", f"{key}.raw+8", US)]))
    return out


def wire():
    out = []
    for name, words in (("commas", "commas"), ("ids_of_one_byte", "ids of one byte"), ("ids_of_50_bytes", "ids of 50 bytes"), ("one_id", "one id")):
        out.append(Row("wire", f"worst step with a hostile message of 4 MiB: {words}", f"Hostile4MiB/{name} ns/step-worst", peers=[vllm("_get_new_notifs", f"hostile.{name}")]))
    out += [
        Row("wire", "handshake map of 61 layers, made", "Handshake/make ns/op"),
        Row("wire", "handshake map of 61 layers, read and checked", "Handshake/read ns/op"),
        Row("wire", "side channel: a request and its answer over TCP on this machine", "Request/ours_to_ours ns/op", peers=[("libzmq", "", "Request/libzmq_to_libzmq ns/op", NS)]),
    ]
    for kind, words in (("process", "in one process"), ("shm", "over shared memory"), ("delta", "in messages that the engine carries, taken and put")):
        out.append(Row("wire", f"a record of 100 bytes from a host to its rank, {words}, 64 at a time", f"Record/{kind} ns/op"))
    return out


def guest():
    """What kvlease costs its host: the pump is ours, the best of it that needs nothing from the host."""
    alone, agent = ("no library", "the same process"), ("NIXL", "an agent alone")
    ours = [("kvlease inline", "", "inline"), ("kvlease loopback", "without NIXL", "loopback")]

    def row(what, name, first=(*agent, "nixl"), second=(*alone, "none"), **more):
        return Row("guest", what, f"guest.pump.{name}", peers=[(project, of, f"guest.{kind}.{name}", NS) for project, of, kind in (first, second, *ours)], **more)

    return [
        row("start-up: open, and 16 MiB of memory registered", "open"),
        row("resident memory that comes with it, 1,000 leases held", "rss", unit="bytes"),
        row("threads of the process", "threads", unit="threads"),
        row("context switches of the process, 1,000 leases held, passes of 30 ms", "switches", unit="/s"),
        row("share of a core that the process takes, 1,000 leases held, passes of 30 ms", "cpu", unit="%"),
        row("a load of a memory-bound loop beside 1,000 held leases", "load", first=(*alone, "none"), second=(*agent, "nixl")),
    ]


def sites():
    without = ("without", "the same without the question", "sites.without.track", NS)
    return [
        Row("sites", "`kvl_track`, nobody attached to its trace site", "sites.with.track", peers=[without]),
        Row("sites", "idle step in Go, nobody attached", "IdleStepSites there-ns/op", peers=[("without", "sites that are not there", "IdleStepSites none-ns/op", NS)]),
        Row("sites", "a site, nobody attached", "sites.off"),
        Row("sites", "a hit, bpftrace counts", "sites.hit", limit=1500, target="≤ 1.5 µs (kernel ≥ 6.18)", peers=[("kernel", "ordinary uprobe at a function's entry", "sites.uprobe", NS)]),
    ]


def scrape():
    def row(what, name, **more):
        return Row("scrape", what, f"StepScraped scraped-{name}", peers=[("unscraped", "the second beside it", f"StepScraped quiet-{name}", NS)], **more)

    return [
        row("step, 100,000 leases held, own listener scraped each second, mean", "ns/step"),
        row("the same, worst step of a second", "worst-ns"),
        Row("scrape", "a scrape of it, page to text, off the step", "Scrape ns/op"),
        Row("scrape", "bytes of a scrape", "StepScraped bytes/scrape", unit="bytes"),
    ]


SIZES = {4096: "4 KiB", 65536: "64 KiB", 1 << 20: "1 MiB"}


def reads(section="reads", shapes=((4096, 4096), (65536, 4096), (1 << 20, 1024)), prefix="", words=""):
    out = []
    for block, most in shapes:
        name = SIZES[block]
        for n in (1, 256, most):
            for shape in ("one",) if n == 1 else ("contiguous", "scattered"):
                key = f"{prefix}reads.{block}.{n}.{shape}"
                out.append(Row(section, f"read of {n:,} × {name}" + (f", {shape}" if n > 1 else "") + words, f"{key}.ours", US, target="≥ 0.97 of raw NIXL", ratio=0.97,
                               family=f"read of {name} blocks, " + ("contiguous" if n == 1 else shape) + f", by blocks{words}", at=n,
                               peers=[("NIXL", way, f"{key}.{way}", US) for way in ("prepared", "plain", "merged")]
                               + [("by hand", "prepared, then 8 bytes as a fence", f"{key}.fenced", US), ("memcpy", "", f"{key}.memcpy", US)]))
        for drive, how in (("", "an inline D"), ("pump.", "D, pump")):
            out.append(Row(section, f"longest pass of {how}, that reads {most:,} × {name}, scattered{words}", f"{prefix}{drive}reads.{block}.{most}.scattered.step", US,
                           limit=2e6, target="≤ 2 ms"))
    return out


def ranks():
    """TP 2 and 4 at P, 1 at D. Raw NIXL posts the transfers of all ranks before it waits for one."""
    return [row for n in RANKS for row in reads("ranks", [RANKS_SHAPE], f"ranks{n}.", f", a part of each from {n} ranks")]


def tcp():
    over = ", over TCP"
    return reads("tcp", TCP, "tcp.", over) + latencies("tcp", "tcp.", over)


def inside():
    """The connector in vLLM. What kvlease does on vLLM 0.33 is ours; the connector of 0.33 decides, what was seen of 0.32 and inline stands beside."""

    def versions(name, scale=NS):
        return [("vLLM", "0.33", f"stock-0.33.{name}", scale), ("vLLM 0.32", "", f"stock-0.32.{name}", scale),
                ("kvlease on 0.32", "", f"pump-0.32.{name}", scale), ("kvlease inline", "", f"inline-0.33.{name}", scale)]

    def row(what, name, **more):
        return Row("passes", what, f"pump-0.33.{name}", peers=versions(name), **more)

    out = []
    for side, does in (("P", "held on P"), ("D", "tracked on D")):
        for n in (0, 100, 1000, 10000):
            goal = {"target": "≥ 20× less", "ratio": 20.0} if n == 1000 else {}
            out.append(row(f"{side}: a pass, {n:,} leases {does}, heartbeats spread over passes of 30 ms", f"{side}.pass.{n}",
                           family=f"{side}: a pass, by leases", at=n, **goal))
        for n in (0, 1000):
            out.append(row(f"{side}: of it the scheduler's half, nothing due, {n:,} leases", f"{side}.scheduler.{n}"))
            out.append(row(f"{side}: of it the worker's half, nothing due, {n:,} leases", f"{side}.worker.{n}"))
        for n in (1000, 10000):
            goal = {"target": "≥ 20× less", "ratio": 20.0} if n == 1000 else {}
            out.append(row(f"{side}: what {n:,} leases add to a pass without any", f"{side}.added.{n}", **goal))
            out.append(row(f"{side}: the pass with the heartbeats of {n:,} leases", f"{side}.due.{n}", family=f"{side}: the pass with the heartbeats, by leases", at=n, **goal))
        for n in (0, 1000, 10000):
            out.append(row(f"{side}: bytes of step messages, most in a pass, {n:,} leases", f"{side}.due_bytes.{n}", unit="bytes",
                           family=f"{side}: bytes of step messages, by leases", at=n))
    out += [
        row("P: a request from its arrival to its grant", "P.begin"),
        row("P: from D's completion to free blocks, a request", "P.end"),
        row("D: a request's arrival, tracked", "D.begin"),
        row("D: from blocks at D to the end of the request, read in between", "D.end"),
        row("P: bytes of step messages per request", "P.request_bytes", unit="bytes"),
        row("P: heartbeats of a stock decoder applied in a second of CPU time, 1,000 leases", "P.beats", unit="/s", more=True),
        row("P: completions of a stock decoder applied in a second of CPU time, with the blocks given back", "P.completions", unit="/s", more=True),
    ]
    out.append(Row("meet", "whole handshake with an engine of 1,024 blocks: named → asked over TCP, checked, loaded, connected", "meet.ours", US,
                   peers=[("vLLM", "_nixl_handshake", "meet.stock", US)]))
    beside = [("vLLM", "0.32, NIXL's progress thread calmed to 1 ms", "stock"), ("vLLM as it ships", "", "spins"), ("kvlease inline", "", "inline"),
              ("no connector", "no leases", "none")]
    for key, words, unit, goal in (("cpu", "share of a core", "%", {"limit": 2.0, "target": "≤ 2 %"}), ("switches", "voluntary context switches", "/s", {})):
        peers = [(project, what, f"idle-{kind}.{key}.100", NS) for project, what, kind in beside]
        out.append(Row("engines", f"idle P that holds 100 leases, whole process: {words}", f"idle-pump.{key}.100", unit=unit, peers=peers))
        out.append(Row("engines", f"of it more than without connector and leases: {words}", f"idle-pump.{key}.100", unit=unit, less=f"idle-none.{key}.100", **goal))
    return out
