#!/usr/bin/env python3
"""Profiles two engines in C over real NIXL, and the hot benchmarks, with perf. `make profile` calls it; see docs/profiling.md.

usage: profile.py [--build DIR] [--out DIR] [--only pair,benches] [--seconds N] [--held N] [--event NAME] [--readme]

  --build    where `make build` put the libraries
  --out      for recordings, folded stacks and pictures
  --seconds  of the pair's load; each benchmark gets a tenth, and its set-up the time it takes
  --held     requests that D of the pair keeps
  --event    what perf samples by: cpu-clock needs no hardware counters, cycles:P does
  --readme   put tables and pictures into bench/README.md and docs, too

Exit status: 2 where perf is missing or may not be used.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import whole  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
NOTES = ROOT / "bench" / "profile-notes.txt"
HZ = 997  # no whole multiple of the ticks and passes that are sampled
WEIGHT = 10**9  # of each benchmark in the joint picture

# Two engines; eight requests are being read at a time, the held ones beside them.
PAIR = ["load", "lease=6", "pass_ms=0.2", "block=16384", "blocks=4096"]

# Go benchmarks: heading, package, name, function below which a sample counts, since the set-up is sampled as well.
BENCHES = [
    ("a heartbeat of 10,000 stock ids", "bench/plane", "^BenchmarkHeartbeat10000$/^leases=10000$", r"core\.\(\*Core\)\.Step$"),
    ("idle steps, 10,000 held and tracked", "bench/plane", "^BenchmarkIdleStep$", r"plane\.BenchmarkIdleStep$"),
    ("renewals by id, 100,000 leases", "dataplane/lease", "^BenchmarkRenewIDs$/^leases=100000$", r"lease\.\(\*Table\)\.Renew"),
    ("256 ends in one step", "dataplane/lease", "^BenchmarkSweepEnds$", r"lease\.\(\*Table\)\.Sweep"),
    ("rounds of heartbeats, 1,000 engines", "dataplane/heartbeat", "^BenchmarkRound1000Engines$", r"heartbeat\.\(\*Tracker\)\.Step$"),
]


class Unusable(Exception):
    """No perf here; the text says why, and what to do."""


def run(cmd, **more):
    done = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, cwd=ROOT, **more)
    if done.returncode != 0:
        sys.exit(f"profile: {shlex.join(map(str, cmd))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def check_perf(out, event):
    """Records nothing much once: whatever is missing shows here, and not after a minute."""
    file = out / "check.data"
    try:
        out.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    except OSError as why:  # perf -q says nothing of it
        raise Unusable(f"{why.filename} cannot be written: {why.strerror}; remedy: --out DIR") from None
    try:
        done = subprocess.run(["perf", "record", "-q", "-e", event, "-o", str(file), "--", "true"], capture_output=True, text=True)
    except OSError:
        raise Unusable("there is no perf; remedy: apt-get install linux-perf (Debian), linux-tools-generic (Ubuntu), perf (Fedora)") from None
    said = " ".join((done.stderr + done.stdout).split())
    file.unlink(missing_ok=True)
    if done.returncode == 0:
        return
    if "not found for kernel" in said:  # Ubuntu's wrapper
        raise Unusable("perf is there, but not for this kernel; remedy: apt-get install linux-tools-$(uname -r)")
    if re.search(r"perf_event_paranoid|[Pp]ermission|not permitted|EACCES|CAP_PERFMON", said):
        try:
            level = Path("/proc/sys/kernel/perf_event_paranoid").read_text().strip()
        except OSError:
            level = "unknown"
        raise Unusable(f"perf may not be used here, perf_event_paranoid is {level}; remedy: as root, or sysctl kernel.perf_event_paranoid=1, or "
                       "setcap cap_perfmon+ep on perf; in a container --cap-add PERFMON and a seccomp profile that lets perf_event_open pass")
    if "not supported" in said or "No such device" in said:
        raise Unusable(f"this machine has no event {event}, as virtual machines often have no counters; remedy: EVENT=cpu-clock")
    raise Unusable(f"perf cannot record: {said[-300:] or f'status {done.returncode}, and not a word'}")


def record(out, name, event, unwind, *what):
    file = out / f"{name}.{unwind}.data"
    file.unlink(missing_ok=True)  # perf would keep it beside the new one
    return file, ["perf", "record", "-q", "-e", event, "-F", str(HZ), "--call-graph", unwind, "-o", str(file), *what]


def script(file):
    text = file.with_suffix(".script")
    with text.open("w") as to:
        subprocess.run(["perf", "script", "-i", str(file), "--no-inline", "-F", "comm,tid,period,event,ip,sym,dso"], stdout=to,
                       stderr=subprocess.DEVNULL, check=True)
    return text


def compile_c(program, build, *sources):
    run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fno-omit-frame-pointer", "-Icmd/libkvlease/include", "-Icnixl", *sources, "-o", program,
         f"-L{build}", "-lkvlease", "-ldl", f"-Wl,-rpath,{build}", "-pthread"])
    return program


def figures(pipe, until=None):
    """"name value" lines of a program, up to one of this name."""
    found = {}
    for line in pipe:
        name, _, value = line.partition(" ")
        found[name] = float(value)
        if name == until:
            break
    return found


class Profile:
    def __init__(self, a):
        self.out, self.build, self.event, self.seconds = a.out, a.build, a.event, a.seconds
        self.held = a.held
        self.flame = self.out / "flame"
        run(["go", "build", "-o", self.flame, "./internal/flame/cmd"])

    def fold(self, name, *args):
        folded = self.out / f"{name}.folded"
        done = subprocess.run([str(self.flame), "fold", *map(str, args)], stdout=folded.open("w"), stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"profile: {done.stderr}")
        sys.stderr.write(done.stderr)
        return folded, done.stderr

    def pair(self):
        """Both processes, attached to when the load is what it stays."""
        program = compile_c(self.out / "pair", self.build, *sorted((ROOT / "bench" / "pair").glob("*.c")))
        p = subprocess.Popen([program, *PAIR, f"held={self.held}", f"rounds={self.seconds + 3}"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            at = figures(p.stdout, until="load.D")
            if "load.D" not in at:
                sys.exit("profile: the pair has ended before its load began")
            pids = f"{at['load.P']:.0f},{at['load.D']:.0f}"
            both = [record(self.out, "pair", self.event, unwind, "-p", pids, "--", "sleep", str(self.seconds)) for unwind in ("fp", "dwarf")]
            running = [subprocess.Popen(cmd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _, cmd in both]
            for r in running:
                if r.wait(self.seconds + 60) != 0:
                    sys.exit(f"profile: perf: {r.stderr.read()[-500:]}")
            load = figures(p.stdout)
            if p.wait(60) != 0:
                sys.exit(f"profile: the pair failed, status {p.returncode}")
        finally:
            p.kill()
        fp, dwarf = (script(file) for file, _ in both)
        folded, said = self.fold("pair", "-fp", fp, "-dwarf", dwarf)
        whole = re.findall(r"([\d.]+) % whole", said)
        if load["load.lost"] > 0:
            print(f"profile: {load['load.lost']:.0f} leases or reads were lost, the machine stood still", file=sys.stderr)
        return [folded], (f"{self.seconds} s at {HZ} Hz; D tracks {self.held:,} held leases: {load['load.beats_s']:,.0f} heartbeats, {load['load.reads_s']:,.0f} "
                          f"reads of 16 x 16 KiB and {load['load.steps_s']:,.0f} steps a second. Whole stacks: {whole[0]} % by frame pointers, {whole[1]} % by DWARF, "
                          f"{whole[2]} % joined.")

    def benches(self):
        seconds = max(1, self.seconds // 10)
        folded = []
        hook = compile_c(self.out / "hook", self.build, "bench/hook/hook.c")
        file, cmd = record(self.out, "hook", self.event, "fp", "--", "sh", "-c", f"for i in $(seq {5 * seconds}); do {shlex.quote(str(hook))}; done")
        run(cmd)
        folded.append(self.fold("hook", "-fp", script(file), "-under", "^kvl_(grant|track|untrack|cancel)$", "-head", "hooks from C", "-to", WEIGHT)[0])
        for i, (head, package, name, under) in enumerate(BENCHES):
            test = self.out / (package.replace("/", "-") + ".test")
            run(["go", "test", "-c", "-o", test, f"./{package}"])
            file, cmd = record(self.out, f"bench{i}", self.event, "fp", "--", test, "-test.run=^$", f"-test.bench={name}", f"-test.benchtime={seconds}s")
            run(cmd)
            folded.append(self.fold(f"bench{i}", "-fp", script(file), "-under", under, "-head", head, "-to", WEIGHT)[0])
        return folded, f"{seconds} s each at {HZ} Hz, frame pointers, each benchmark the same width."

    def picture(self, name, title, folded, story):
        to = self.out / f"profile-{name}.svg"
        whole.write(to, run([self.flame, "svg", "-title", title, "-story", story, *folded]))
        return to

    def table(self, folded):
        return run([self.flame, "top", "-notes", NOTES, *folded])


PARTS = {"pair": "Two engines in C over NIXL", "benches": "The hot benchmarks"}


def machine(event):
    load = os.getloadavg()[0]
    rev = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"
    return f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, commit {rev}, event {event}, {os.cpu_count()} cores, load {load:.1f}"


def into_readme(name, text):
    readme = ROOT / "bench" / "README.md"
    old = readme.read_text()
    new = re.sub(rf"(<!-- profile {name} -->\n).*?(<!-- end -->)", lambda m: m[1] + text + m[2], old, flags=re.S)
    if new == old:
        sys.exit(f"profile: bench/README.md has no place <!-- profile {name} -->")
    whole.write(readme, new)


def positive(text):
    n = int(text)
    if n < 1:
        raise ValueError
    return n


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    core = os.environ.get("KVLEASE_CORE")
    ap.add_argument("--build", type=lambda p: Path(p).resolve(), default=Path(core).parent if core else ROOT / "build")
    ap.add_argument("--out", type=lambda p: Path(p).resolve())
    ap.add_argument("--only", default=",".join(PARTS))
    ap.add_argument("--seconds", type=positive, default=20)
    ap.add_argument("--held", type=positive, default=10000)
    ap.add_argument("--event", default="cpu-clock")
    ap.add_argument("--readme", action="store_true")
    a = ap.parse_args()
    chosen = a.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        ap.error(f"no part {', '.join(sorted(unknown))}")
    a.out = a.out or a.build / "profile"
    try:
        check_perf(a.out, a.event)
    except Unusable as why:
        print(f"profile: {why}", file=sys.stderr)
        sys.exit(2)
    if "pair" in chosen and not (a.build / "libkvlease.so").exists():
        sys.exit(f"profile: there is no libkvlease.so in {a.build}; remedy: make build, or --build DIR")
    nixl = next(ROOT.glob("third_party/nixl/.nixl*.libs/libnixl_capi.so"), None)
    if nixl is not None:
        os.environ.setdefault("KVLEASE_NIXL", str(nixl))
    os.environ.setdefault("KVLEASE_CORE", str(a.build / "libkvlease-core.so"))
    profile = Profile(a)
    for name in (n for n in PARTS if n in chosen):
        folded, story = getattr(profile, name)()
        where = machine(a.event)
        picture = profile.picture(name, PARTS[name], folded, f"{where}: {story}")
        text = f"{where}: {story}\n\n{profile.table(folded)}"
        print(f"## {PARTS[name]}\n\n{text}\n{picture}\n")
        if a.readme:
            whole.write(ROOT / "docs" / picture.name, picture.read_text())
            into_readme(name, text)


if __name__ == "__main__":
    main()
