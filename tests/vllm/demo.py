"""A crash and a stop with real vLLM engines, first with vLLM's own connector, then with kvlease's.

usage: demo.py [--kinds stock,kvlease] [--seed N]
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import rig  # noqa: E402
from mix import GONE, Mix  # noqa: E402

WIDTH = 48  # characters of a bar
INTRODUCTION = f"""
Two real vLLM engines and real NIXL, on this machine. P computes prompts and must hold their KV blocks until D has read them. How long
it holds them is a lease of {rig.LEASE} s; each heartbeat of D, one a second, gives {rig.EXTENSION} s more. The same is played twice: with vLLM's own connector
(stock), then with kvlease's. Tokens are compared with those of a single engine; wrong ones are marked.
"""


def bar(held, of):
    full = round(WIDTH * held / of)
    return "█" * full + "·" * (WIDTH - full)


def watch(p, began, limit):
    """P's blocks while they are held, a line when the number changes; how long until none is."""
    of, shown = p.spec["blocks"] - 1, None
    while time.monotonic() - began < limit:
        held = of - p.stat()["free_blocks"]
        if held != shown:
            print(f"    {time.monotonic() - began:6.2f} s later  P holds {held:3} of {of} blocks  {bar(held, of)}", flush=True)
            shown = held
        if held == 0:
            return time.monotonic() - began
        time.sleep(0.02)
    return None


def tokens(answer, right):
    if answer.reason not in ("length", "stop"):
        return "nothing: the read was refused, the request fails, and the client or the router sends it again"
    wrong = "\033[31m{:3}\033[0m" if sys.stdout.isatty() else "{:3}!"
    return " ".join(("{:3}" if t == r else wrong).format(t) for t, r in zip(answer.tokens, right))


def crash(mix):
    print("  Crash: three requests wait in D's queue for longer than a lease, then D is killed.", flush=True)
    for _ in range(3):
        mix.queue(mix.prompt(600))
    time.sleep(rig.LEASE + 0.5)
    mix.wired()
    d = mix.d
    began = time.monotonic()
    d.kill()
    back = watch(mix.p, began, GONE)
    return "never" if back is None else f"{back:.2f} s"


def stop(mix):
    print("\n  Stop: D is stopped while a request waits. P's lease ends, other prompts use its blocks, D goes on and reads.", flush=True)
    prompt = mix.prompt(600)
    right = mix.rig.reference(prompt, 12)
    id, d = mix.queue(prompt, 12), mix.d
    time.sleep(1.5 * rig.INTERVAL)
    d.stop()
    watch(mix.p, time.monotonic(), GONE)
    mix.overwrite()
    d.go_on()
    d.ask("slots", number=None)
    answer = d.wait(id)
    print(f"    right tokens  {' '.join(f'{t:3}' for t in right)}\n    D answers     {tokens(answer, right)}", flush=True)
    judged = mix.judge(answer, prompt, 12)
    if answer.reason not in ("length", "stop"):
        return "refused: the request fails, no token"
    return f"{judged.text}: nobody notices" if judged.wrong else judged.text


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--kinds", default="stock,kvlease")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    print(INTRODUCTION, flush=True)
    table = []
    with rig.Rig() as r:
        for kind in args.kinds.split(","):
            print(f"\n{kind} P, {kind} D (they take a while to start)", flush=True)
            mix = Mix(r, kind, kind, args.seed)
            mix.fresh()
            table.append((kind, crash(mix), stop(mix)))
            mix.retire("")
    print(f"\n{'':<10}{'D was killed: P has its blocks back after':<44}D was stopped, P used the blocks again")
    for kind, back, said in table:
        print(f"{kind:<10}{back:<44}{said}")
    print(f"\nLogs of the engines: {rig.OUT}. All that is played, with each mix of the two: make test-vllm.")


main()
