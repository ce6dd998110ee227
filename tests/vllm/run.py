"""Plays the scenes with real engines and prints each promise beside what was measured.

usage: run.py [--mixes P+D,...] [--scenes NAME,...] [--json FILE] [--seed N] [--list]

Kinds are stock and kvlease. All four mixes unless said. Ends with 1 if a promise that must be kept was broken.
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import rig  # noqa: E402
from mix import Mix  # noqa: E402
from scenes import SCENES  # noqa: E402

MIXES = ("kvlease+kvlease", "stock+kvlease", "kvlease+stock", "stock+stock")


def arguments():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--mixes", default=",".join(MIXES))
    p.add_argument("--scenes", default="")
    p.add_argument("--json", type=Path)
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--list", action="store_true")
    return p.parse_args()


def play(mix, scene):
    """One scene; a fault of its own is a finding, too."""
    mix.scene = scene.name
    began = time.monotonic()
    print(f"\n{mix.kinds[0]} P, {mix.kinds[1]} D: {scene.title}", flush=True)
    try:
        mix.rest()
        scene.play(mix)
    except Exception as why:
        traceback.print_exc()
        mix.promise("the scene can be played", False, f"{type(why).__name__}: {why}", by="all")
    print(f"  {time.monotonic() - began:.1f} s", flush=True)
    return time.monotonic() - began


def main():
    args = arguments()
    wanted = [s for s in SCENES if not args.scenes or s.name in args.scenes.split(",")]
    if args.list:
        print("\n".join(f"{s.name:<16}{s.title}" for s in SCENES))
        return 0
    print(f"seed {args.seed}")
    findings, seconds, seen = [], {}, {"p": set(), "d": set()}
    began = time.monotonic()
    with rig.Rig(seed=args.seed) as r:
        for name in args.mixes.split(","):
            kinds = name.split("+")
            mix = Mix(r, *kinds)
            for scene in wanted:
                if scene.about != "both":
                    kind = kinds["pd".index(scene.about)]
                    if (scene.name, kind) in seen[scene.about]:
                        continue
                    seen[scene.about].add((scene.name, kind))
                seconds[f"{name} {scene.name}"] = round(play(mix, scene), 1)
            for label in list(mix.pairs):
                mix.retire(label)
            findings += mix.findings
    broken = [f for f in findings if f.verdict == "BROKEN"]
    out = args.json or rig.OUT / "results.json"
    out.write_text(json.dumps({"seed": args.seed, "seconds": seconds, "findings": [f.row() for f in findings]}, indent=1))
    print(f"\n{len(findings)} findings in {time.monotonic() - began:.0f} s, {len(broken)} broken; {out}")
    for f in broken:
        print(f"  BROKEN {f.p} P, {f.d} D, {f.scene}: {f.promise}: {f.seen}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
