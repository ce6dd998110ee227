#!/usr/bin/env python3
"""Measures kvlease beside its peers, in turn, in one run. `make bench` calls it; see bench/README.md.

usage: run.py [--quick] [--only SECTION,...] [--rounds N] [--calm SECONDS] [--readme] [--save NAME]

  --quick    few rounds and the smaller sizes: shows that all of it runs, not how fast it is
  --only     some of: ring, hook, python, lease, idle, latency, kill, reads, ranks, tcp, first, wire, guest, memory, sites, scrape; and passes, engines, meet, which need make deps-vllm
  --rounds   7 unless said; the latencies and the kill take as many as fit beside them
  --calm     wait before a round while others use the machine, so many seconds in all at most
  --readme   put the table into bench/README.md and its picture into docs, too
  --save     what the JSON file's name begins with

Environment: KVLEASE_PEERS and KVLEASE_RIGTORP say where peers are that no registry has. A peer that is missing is named in
the table with the reason. A picture of each section goes to build/bench/charts.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import peers  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402

ROOT = peers.ROOT
OUT = ROOT / "build" / "bench"
SIZES = ["1000", "10000", "100000", "1000000"]


class Samples(dict):
    """Lists of figures by name."""

    def add(self, name, value):
        self.setdefault(name, []).append(float(value))

    def lines(self, text, prefix=""):
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            self.add(prefix + name, value)


class Once:
    """A program that makes one round and prints "name value" lines."""

    def __init__(self, *cmd, timeout=300, prefix=""):
        self.cmd, self.timeout, self.prefix = [str(c) for c in cmd], timeout, prefix

    def round(self, samples):
        try:
            text = run(self.cmd, self.timeout)
        except SystemExit as why:  # another one's test may reset connections of the whole machine: once more, and it is said
            print(f"{why}\nbench: that round is made again", file=sys.stderr)
            text = run(self.cmd, self.timeout)
        samples.lines(text, self.prefix)

    def close(self):
        pass


class Live:
    """A program that stays: a line in, "name value" lines and a dot out."""

    def __init__(self, *cmd):
        self.process = subprocess.Popen([str(c) for c in cmd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self, samples):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in iter(self.process.stdout.readline, ".\n"):
            if not line:
                raise RuntimeError(f"{self.process.args} has ended")
            samples.lines(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


class GoBench:
    """Benchmarks of one package, from its test binary."""

    def __init__(self, package, pattern, benchtime):
        self.folder = ROOT / package
        self.binary = OUT / (Path(package).name + ".test")
        if not self.binary.exists():
            run(["go", "test", "-c", "-o", str(self.binary), f"./{package}"], 600)
        self.cmd = [str(self.binary), "-test.run=^$", f"-test.bench={pattern}", f"-test.benchtime={benchtime}"]

    def round(self, samples):
        for line in run(self.cmd, 600, self.folder).splitlines():
            if m := re.match(r"Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)", line):
                fields = m[2].split()
                for value, unit in zip(fields[::2], fields[1::2]):
                    samples.add(f"{m[1]} {unit}", value)

    def close(self):
        pass


class FirstByte:
    """The times to the first word of `kvlease bench`."""

    def __init__(self, blocks, counts):
        self.cmd = [str(ROOT / "build" / "kvlease"), "bench", "--json", f"--block={blocks}", f"--count={counts}", "--rounds=1"]

    def round(self, samples):
        for read in json.loads(run(self.cmd, 300))["reads"]:
            for way in read["ways"]:
                if "first_us" in way:
                    samples.add(f"first.{read['block']}.{read['count']}.{way['way']}", way["first_us"]["median"])

    def close(self):
        pass


def run(cmd, timeout, folder=ROOT):
    done = subprocess.run(cmd, cwd=folder, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(cmd)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def compile_c(name, *args):
    program = OUT / name
    run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", *args, "-o", str(program), "-pthread"], 120)
    return program


def link_kvlease(name, *args):
    build = str(ROOT / "build")
    return compile_c(name, "-Icmd/libkvlease/include", *args, f"-L{build}", "-lkvlease", "-ldl", f"-Wl,-rpath,{build}")


class Calm:
    """Waits while others use more than a fifth of the machine; a budget keeps a run finite."""

    def __init__(self, seconds):
        self.left = seconds

    @staticmethod
    def ticks():
        fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return fields[3] + fields[4], sum(fields)

    def wait(self):
        end = self.left - 10  # no single wait takes all
        while self.left > max(end, 0):
            idle, total = self.ticks()
            time.sleep(0.5)
            self.left -= 0.5
            idle_now, total_now = self.ticks()
            if idle_now - idle > 0.8 * (total_now - total):
                return


def turns(sources, rounds, samples, calm):
    """All sources in turn, and the other way round in every second round."""
    for i in range(rounds):
        calm.wait()
        for s in sources if i % 2 == 0 else reversed(sources):
            s.round(samples)
    for s in sources:
        s.close()


class Bench:
    def __init__(self, quick, rounds, calm):
        self.quick = quick
        self.calm = Calm(calm)
        self.rounds = 3 if quick else rounds
        self.samples = Samples()
        self.missing = {}  # peer: why

    def peer(self, name, get):
        """What get gives, in a list, or an empty one and a word why."""
        if name in self.missing:
            return []
        try:
            return [get()]
        except peers.Missing as why:
            self.missing[name] = str(why)
            return []

    def vllm(self, sizes):
        return [Live(*cmd, *sizes) for cmd in self.peer("vLLM", peers.vllm)]

    def ring(self):
        ours = Once(compile_c("ring", "-Iringbuf/include", "bench/ring/ring_bench.c"))
        spsc = [Once(p) for p in self.peer("rigtorp", lambda: peers.spsc(OUT))]
        turns([ours, *spsc], self.rounds, self.samples, self.calm)

    def hook(self):
        programs = [Once(link_kvlease(name, f"bench/hook/{name}.c")) for name in ("hook", "many")]
        turns(programs, self.rounds, self.samples, self.calm)

    def sites(self):
        """Trace sites with nobody attached, against a library that does not ask; and what a hit costs, beside an ordinary uprobe."""
        hook = link_kvlease("hook", "bench/hook/hook.c")
        sources = [str(p) for p in sorted((ROOT / "cmd/libkvlease/src").glob("*.c"))]
        ours = []
        for name, flags in (("with", []), ("without", ["-DKVL_SITES_OFF"])):
            (OUT / name).mkdir(exist_ok=True)
            compile_c(f"{name}/libkvlease.so.0", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-plt", "-DKVL_VERSION_STRING=\"bench\"",
                      "-Icmd/libkvlease/include", "-Iringbuf/include", *flags, *sources, "-ldl", "-Wl,-soname,libkvlease.so.0")
            core = OUT / name / "libkvlease-core.so"
            core.unlink(missing_ok=True)
            core.symlink_to(ROOT / "build" / core.name)
            ours.append(Once("env", f"LD_LIBRARY_PATH={OUT / name}", hook, f"sites.{name}"))
        hits = Once(sys.executable, "bench/sites/hits.py", compile_c("hits", "bench/sites/hits.c"))
        turns([*ours, GoBench("bench/plane", "^BenchmarkIdleStepSites$", "100000x"), hits], self.rounds, self.samples, self.calm)

    def scrape(self):
        """Steps while the engine's own listener is scraped each second, and while nobody looks, in turns of a second."""
        turns([GoBench("bench/plane", "^BenchmarkStepScraped$", "3x"), GoBench("bench/plane", "^BenchmarkScrape$", "50x")], self.rounds, self.samples, self.calm)

    def python(self):
        """The package as `make python` leaves it; ctypes calls the library that lies in it."""
        package = ROOT / "build" / "python"
        ours = Once("env", f"PYTHONPATH={package}", sys.executable, "bench/python/hooks.py", package / "kvlease" / "libkvlease.so.0")
        turns([ours, *self.vllm(["10000"])], self.rounds, self.samples, self.calm)

    def lease(self):
        sizes = SIZES[:3] if self.quick else SIZES
        only = "|".join(sizes)
        ours = [
            GoBench("dataplane/lease", f"^Benchmark(RenewIDs|RenewNative)$/^leases=({only})$", "100x"),
            GoBench("dataplane/lease", "^BenchmarkSweepEnds$", "300x"),
            GoBench("dataplane/lease", f"^BenchmarkSweepNothingDue$/^leases=({only})$", "200000x"),
            GoBench("dataplane/heartbeat", "^BenchmarkRound(1000|4096)Engines$", "2x"),
            GoBench("bench/plane", "^BenchmarkCompletion$", "500x"),
            GoBench("bench/plane", "^BenchmarkHeartbeat$", "200x"),
            GoBench("bench/plane", f"^BenchmarkHeartbeat10000$/^leases=({only})$", "50x"),
            GoBench("bench/plane", "^BenchmarkIdleStep$", "200000x"),
        ]
        etcd = [Live(program, *sizes) for program in self.peer("etcd", peers.lessor)]
        turns([*ours, *self.vllm(sizes), *etcd], self.rounds, self.samples, self.calm)

    def pair(self, mode, over="", **options):
        env = ["env", f"UCX_TLS={over}"] if over else []
        ways = [over, f"ranks{options['ranks']}" if "ranks" in options else "", options.get("reader")]
        return Once(*env, OUT / "pair", mode, *(f"{k}={v}" for k, v in options.items()), timeout=600, prefix="".join(f"{w}." for w in ways if w))

    def idle(self):
        turns([self.pair("idle", rounds=2)], self.rounds, self.samples, self.calm)

    def latencies(self, over=""):
        n = 4 if self.quick else 3 * self.rounds
        return [self.pair("latency", over, drive=drive, pass_ms=30, lease=1.5, rounds=n) for drive in ("inline", "pump")]

    def latency(self):
        turns(self.latencies(), 2 if self.rounds < 7 else 3, self.samples, self.calm)

    def kill(self):
        turns([self.pair("kill", rounds=8, lease=3, pass_ms=5, wire=wire) for wire in (0, 1)], 2 if self.quick else 5, self.samples, self.calm)

    def reads(self):
        shapes = [(4096, 4096), (65536, 4096), (1 << 20, 1024)]
        for block, blocks in shapes[:2] if self.quick else shapes:
            sizes = {"block": block, "blocks": blocks, "rounds": 1}
            turns([self.pair("reads", **sizes), self.pair("reads", reader="pump", **sizes)], self.rounds, self.samples, self.calm)

    def ranks(self):
        """Reads from several ranks of P, which stand in one process."""
        block, blocks = rows.RANKS_SHAPE
        for n in rows.RANKS[:1] if self.quick else rows.RANKS:
            turns([self.pair("reads", block=block, blocks=blocks, ranks=n, rounds=1)], self.rounds, self.samples, self.calm)

    def tcp(self):
        """The same over TCP on this machine, both sides and raw NIXL."""
        for block, blocks in rows.TCP[:1] if self.quick else rows.TCP:
            sizes = {"block": block, "blocks": blocks, "rounds": 1}
            turns([self.pair("reads", "tcp", **sizes), self.pair("reads", "tcp", reader="pump", **sizes)], self.rounds, self.samples, self.calm)
        turns(self.latencies("tcp"), 2 if self.rounds < 7 else 3, self.samples, self.calm)

    def first(self):
        """Two processes of `kvlease bench`, which takes its ways in turn sample by sample; a round is one of it."""
        turns([FirstByte("4K,1M", "1,64")], self.rounds, self.samples, self.calm)

    def wire(self):
        ours = [
            GoBench("bench/plane", "^BenchmarkHostile4MiB$", "3x"),
            GoBench("dataplane/wire", "^BenchmarkHandshake$", "2000x"),
            GoBench("dataplane/stream", "^BenchmarkRecord$", "64000x"),
            GoBench("dataplane/zmtp", "^BenchmarkRequest$/^ours_to_ours$", "3000x"),
        ]
        # One op is a process that makes 3,000 requests; without pyzmq it is left out.
        libzmq = [GoBench("dataplane/zmtp", "^BenchmarkRequest$/^libzmq_to_libzmq$", "1x") for _ in self.peer("libzmq", peers.libzmq)]
        turns([*ours, *libzmq, *self.vllm(["10000"])], self.rounds, self.samples, self.calm)

    def guest(self):
        turns([Once(link_kvlease("guest", "-Icnixl", "bench/guest/guest.c", "bench/pair/raw.c"))], self.rounds, self.samples, self.calm)

    def passes(self):
        """The connector in vLLM's own classes; kvlease is on the path as `make vllm-wheel` leaves it."""
        sizes = ["0", "100", "1000"] if self.quick else ["0", "100", "1000", "10000"]
        python = ROOT / ".deps" / "vllm" / "venv" / "bin" / "python"

        def program(kind, version):
            other = [f"KVLEASE_VLLM_PYTHON={ROOT / '.deps' / f'vllm-{version}'}"] if version != "0.32" else []
            package = os.environ.get("KVLEASE_PYTHONPATH", str(ROOT / "build" / "vllm" / "wheel"))
            return Live("env", f"PYTHONPATH={package}", *other, python, "bench/vllm/passes.py", kind, f"{kind}-{version}", *sizes)

        kinds = [("stock", "0.33"), ("pump", "0.33"), ("stock", "0.32"), ("pump", "0.32"), ("inline", "0.33")]
        turns([program(*k) for k in (kinds[:2] if self.quick else kinds)], self.rounds, self.samples, self.calm)

    def engines(self):
        """Real engines over real NIXL."""
        python = ROOT / ".deps" / "vllm" / "venv" / "bin" / "python"
        windows, seconds = (2, 2) if self.quick else (4, 5)
        programs = [Once(python, "bench/vllm/idle.py", kind, f"idle-{kind}", 100, windows, seconds) for kind in ("stock", "pump", "inline", "spins", "none")]
        turns(programs[:2] if self.quick else programs, 1 if self.quick else 2, self.samples, self.calm)

    def meet(self):
        """Handshakes of vLLM's own connector and of kvlease's in one pair of processes."""
        package = os.environ.get("KVLEASE_PYTHONPATH", str(ROOT / "build" / "vllm" / "wheel"))
        python = ROOT / ".deps" / "vllm" / "venv" / "bin" / "python"
        program = Once("env", f"PYTHONPATH={package}", f"KVLEASE_VLLM_PYTHON={ROOT / '.deps' / 'vllm-0.33'}", python, "bench/vllm/handshake.py", timeout=600)
        turns([program], 1 if self.quick else 3, self.samples, self.calm)

    def memory(self):
        text = run(["go", "test", "-count=1", "-v", "-run", "TestAMillionLeasesStayWithin256MiB", "./dataplane/core"], 300)
        m = re.search(r"a lease: (\d+) bytes opened, (\d+) granted, (\d+) with every end waiting", text)
        if m is None:
            sys.exit("bench: the memory test has not told what a lease costs")
        for name, value in zip(("opened", "granted", "ended"), m.groups()):
            self.samples.add(f"memory.{name}", value)


SECTIONS = ["ring", "hook", "python", "lease", "idle", "latency", "kill", "reads", "ranks", "tcp", "first", "wire", "guest", "memory", "sites", "scrape"]
INSIDE = ["passes", "engines", "meet"]  # inside vLLM, with what `make deps-vllm` installs
TABLES = {"vllm": INSIDE, "seeing": ["sites", "scrape"]}  # of bench/README.md, beside the one of all
TITLES = {"table": "kvlease beside its peers", "vllm": "kvlease inside vLLM", "seeing": "What it costs to be seen"}  # of their pictures


def measure(bench, sections, loads):
    """Runs the sections and gives those that failed: of these nothing is kept, and of the others all."""
    failed = []
    for name in sections:
        start, before = time.monotonic(), Samples({key: list(values) for key, values in bench.samples.items()})
        try:
            getattr(bench, name)()
        except (SystemExit, RuntimeError, OSError, subprocess.SubprocessError) as why:
            bench.samples = before
            failed.append(name)
            print(f"bench: {name} failed: {why}", file=sys.stderr)
            continue
        loads.note(name)
        print(f"bench: {name}, {time.monotonic() - start:.0f} s, load {loads.last():.1f}", file=sys.stderr)
    return failed


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--only", default=",".join(SECTIONS))
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--calm", type=float, default=0)
    ap.add_argument("--readme", action="store_true")
    ap.add_argument("--save", default="")
    a = ap.parse_args()
    chosen = a.only.split(",")
    if unknown := set(chosen) - {*SECTIONS, *INSIDE}:
        ap.error(f"no section {', '.join(sorted(unknown))}")
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.test"):
        old.unlink()
    nixl = next(ROOT.glob("third_party/nixl/.nixl*.libs/libnixl_capi.so"), None)
    if nixl is not None:
        os.environ.setdefault("KVLEASE_NIXL", str(nixl))
    if set(chosen) & {"idle", "latency", "kill", "reads", "ranks", "tcp"}:
        link_kvlease("pair", "-Icnixl", *(str(p) for p in sorted((ROOT / "bench" / "pair").glob("*.c"))))
    bench = Bench(a.quick, a.rounds, a.calm)
    loads = report.Loads()
    failed = measure(bench, [name for name in SECTIONS + INSIDE if name in chosen], loads)
    if not loads.by_section:
        sys.exit("bench: nothing was measured")
    result = report.Result(bench, loads)
    print(result.text())
    file = result.save(a.save, OUT if a.quick else report.HERE / "results")
    table = next((table for table, sections in TABLES.items() if set(chosen) <= set(sections)), "table")
    draw = ["go", "run", "./internal/figures/cmd", "-out", str(OUT / "charts"), "-title", TITLES[table]]
    if a.readme:
        result.put_into_readme(table)
        draw += ["-picture", str(ROOT / "docs" / f"figures-{table}.svg")]
    run([*draw, str(file)], 300)
    print(f"charts: {(OUT / 'charts').relative_to(ROOT)}; file: {file.relative_to(ROOT)}")
    if failed:
        sys.exit(f"bench: failed, and not in the tables: {', '.join(failed)}")


if __name__ == "__main__":
    main()
