"""Plays the scenes with real engines and prints each promise beside what was measured.

usage: run.py [--mixes P+D,...] [--scenes NAME,...] [--at-once N] [--json FILE] [--seed N] [--list]

Kinds are stock and kvlease. All four mixes unless said, two at once: engines mostly wait, for leases to end. A scene that broke a
promise is played once more, alone and with new engines, since a machine that does something else can hold an engine up for
longer than its lease; never if a token was wrong. Ends with 1 if a promise that must be kept was broken.
"""

import argparse
import json
import sys
import time
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import rig  # noqa: E402
from mix import Mix  # noqa: E402
from scenes import SCENES  # noqa: E402

AGAIN = 4  # scenes played once more; if more are broken it is not the machine
MIXES = ("kvlease+kvlease", "stock+kvlease", "kvlease+stock", "stock+stock")


def arguments():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--mixes", default=",".join(MIXES))
    p.add_argument("--scenes", default="")
    p.add_argument("--at-once", type=int, default=2)
    p.add_argument("--json", type=Path)
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--list", action="store_true")
    return p.parse_args()


class Report:
    """Lines of a mix; those of a scene are printed together when it has ended."""

    def __init__(self, lock):
        self.lock, self.lines = lock, []

    def say(self, line):
        self.lines.append(line)

    def flush(self):
        with self.lock:
            print("\n".join(self.lines), flush=True)
        self.lines = []


def play(mix, scene):
    """One scene; a fault of its own is a finding, too. Its seconds."""
    mix.scene = scene.name
    began = time.monotonic()
    mix.say(f"\n{mix.kinds[0]} P, {mix.kinds[1]} D: {scene.title}")
    try:
        mix.rest()
        before = len(mix.findings)
        scene.play(mix)
        if len(mix.findings) == before:
            mix.promise("the scene finds something", False, "nothing", by="all")
    except Exception as why:
        mix.say(traceback.format_exc().rstrip())
        mix.promise("the scene can be played", False, f"{type(why).__name__}: {why}", by="all")
    mix.say(f"  {scene.name}, {time.monotonic() - began:.1f} s")
    return round(time.monotonic() - began, 1)


def play_all(mix, scenes, report, seconds):
    for scene in scenes:
        seconds[f"{'+'.join(mix.kinds)} {scene.name}"] = play(mix, scene)
        report.flush()
    for label in list(mix.pairs):
        mix.retire(label)
    return mix.findings


def excused(findings, play_once):
    """Plays each scene again of which play_once, given kinds and the scene's name, may find that its promises hold after all."""
    broken = {}
    for f in findings:
        if f.verdict == "BROKEN":
            broken.setdefault(((f.p, f.d), f.scene), []).append(f)
    if len(broken) > AGAIN:
        return findings
    for (kinds, scene), first in broken.items():
        if any(f.final for f in first):
            continue
        second = play_once(kinds, scene)
        findings = findings + second
        for f in first:
            f.excused = not any(s.verdict == "BROKEN" for s in second)
    return findings


def shared_out(mixes, scenes):
    """The scenes of each mix: one that is about a side is played once for each kind of that side."""
    seen, plan = set(), []
    for name in mixes:
        kinds, own = name.split("+"), []
        for scene in scenes:
            key = (scene.name, kinds["pd".index(scene.about)]) if scene.about != "both" else None
            if key not in seen or key is None:
                own.append(scene)
                seen.add(key)
        plan.append((kinds, own))
    return plan


def known(names, all):
    """Exit if one of these names is none: a run that plays nothing must not look like one that has found nothing."""
    if other := set(filter(None, names.split(","))) - all:
        sys.exit(f"tests/vllm: {', '.join(sorted(other))}: there is no such mix or scene; run.py --list names the scenes")


def main():
    args = arguments()
    if args.list:
        print("\n".join(f"{s.name:<16}{s.title}" for s in SCENES))
        return 0
    known(args.mixes, {f"{p}+{d}" for p in ("stock", "kvlease") for d in ("stock", "kvlease")})
    known(args.scenes, {s.name for s in SCENES})
    wanted = [s for s in SCENES if not args.scenes or s.name in args.scenes.split(",")]
    print(f"seed {args.seed}")
    began, seconds, findings, lock = time.monotonic(), {}, [], threading.Lock()
    with rig.Rig() as r, ThreadPoolExecutor(args.at_once) as pool:
        running = []
        for kinds, scenes in shared_out(args.mixes.split(","), wanted):
            report = Report(lock)
            mix = Mix(r, *kinds, f"{args.seed} {kinds}", report.say)
            running.append(pool.submit(play_all, mix, scenes, report, seconds))
        for each in running:
            findings += each.result()

        def once_more(kinds, name):
            report, scene = Report(lock), next(s for s in wanted if s.name == name)
            mix = Mix(r, *kinds, f"{args.seed} {kinds} again", report.say)
            report.say("\nonce more, alone:")
            return play_all(mix, [scene], report, seconds)

        findings = excused(findings, once_more)
    broken, again = ([f for f in findings if f.verdict == verdict] for verdict in ("BROKEN", "again"))
    out = args.json or rig.OUT / "results.json"
    out.write_text(json.dumps({"seed": args.seed, "seconds": seconds, "findings": [f.row() for f in findings]}, indent=1))
    print(f"\n{len(findings)} findings in {time.monotonic() - began:.0f} s, {len(broken)} broken, {len(again)} held only when played once more; {out}")
    for f in again + broken:
        print(f"  {f.verdict} {f.p} P, {f.d} D, {f.scene}: {f.promise}: {f.seen}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
