"""What a prefill engine costs that only holds leases, with real engines over real NIXL: "name value" lines.

usage: idle.py KIND PREFIX LEASES WINDOWS SECONDS

KIND is stock, spins (stock, with NIXL's progress thread as its Python package has it), pump or inline (kvlease's drives), or none: no connector, no
leases. P has computed LEASES
prompts; the requests wait in D's queue, whose engine has no place for them, and D renews the leases. In each window: CPU time of P's processes in
percent of a core, and their voluntary context switches per second.

P's loop does what vLLM's core does. With work left it turns, and sleeps 1 ms after each turn without tokens: so it is with vLLM's own connector,
and with kvlease's inline, as long as leases are held. Without, it waits for its input: with the pump.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "vllm"))

SETTINGS = {"inline": {"kvlease": {"drive": "inline"}}}


def used(pids):
    """ns of CPU time and voluntary context switches of all threads, and both by thread: name and number."""
    total, switches, threads = 0, 0, {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                ns = int((task / "schedstat").read_text().split()[0])
                status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += ns
            switches += int(status["voluntary_ctxt_switches"])
            threads[f"{status['Name']} {task.name}"] = ns, int(status["voluntary_ctxt_switches"])
    return total, switches, threads


def main():
    kind, prefix, leases, windows, seconds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), float(sys.argv[5])
    if kind == "spins":
        os.environ["KVLEASE_STOCK_SPINS"] = "1"
    import rig

    side = {"stock": "stock", "spins": "stock", "none": "none"}.get(kind, "kvlease")
    held = leases if side != "none" else 0
    with rig.Rig() as r:
        more = {"blocks": max(leases + 32, 64), "prefix_caching": False, "extra": SETTINGS.get(kind, {})}
        p, d = r.engine("p", side, wait=False, **more), r.engine("d", side, wait=False, blocks=64, extra=SETTINGS.get(kind, {}))
        p.ready(), d.ready()
        d.ask("slots", number=0)
        for i in range(held):
            prompt = [(i * 7919 + k * k) % 250 for k in range(32)]
            d.submit(f"r{i}", prompt, 1, r.prefill(p, f"r{i}", prompt))
        time.sleep(rig.LEASE / 2)
        turns = p.stat()["busy"]
        if not turns:  # it waits for its input
            waiting = p.tell("block", seconds=windows * seconds + 2)
            time.sleep(1)
        for _ in range(windows):
            began, before = time.monotonic(), used(p.pids())
            time.sleep(seconds)
            took, after = time.monotonic() - began, used(p.pids())
            print(f"{prefix}.cpu.{leases}", f"{(after[0] - before[0]) / took / 1e7:.4g}")
            print(f"{prefix}.switches.{leases}", f"{(after[1] - before[1]) / took:.5g}")
        if not turns:
            p._until(lambda: waiting in p.answers, 60, "its wait")
        if (blocks := p.stat()["held"]) != held:
            sys.exit(f"idle: P holds {blocks} blocks, not {held}: the leases were not renewed")
        then = before[2]
        each = {name: (ns - then.get(name, (0, 0))[0], n - then.get(name, (0, 0))[1]) for name, (ns, n) in after[2].items()}
        most = sorted(each.items(), key=lambda kv: -kv[1][0])[:12]
        print(json.dumps({"turns": turns, "% of a core, switches/s": {name: (round(ns / took / 1e7, 3), round(n / took)) for name, (ns, n) in most}}), file=sys.stderr)


main()
