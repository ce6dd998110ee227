"""What a whole handshake takes inside vLLM: one round of "name value" lines, in us.

usage: handshake.py

P is a process with four engines of vLLM's own connector and four of kvlease's, of tests/vllm/classes, each with a cache of 1,024 blocks and a side
channel; D is another one with an engine of each. All over the NIXL that vLLM's environment has. D meets one engine after the other: vLLM's is the
call that its worker makes in a thread of its own, ours lasts from kvl_engine_add to KVL_EV_ENGINE_UP. The first of each pays for what a process does once
and is not counted; which connector goes first is left to chance.
"""

import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "vllm" / "classes"), str(ROOT / "tests" / "vllm")]

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # NIXL writes lines, too

import kvlease  # noqa: E402
import stage  # noqa: E402

ENGINES, BLOCKS = 4, 1024
UP_MAX = 60.0  # s
MODULES = {"stock": "stock", "ours": "kvlease.vllm"}


def engine(name, kind):
    return stage.Engine(name, module=MODULES[kind], blocks=BLOCKS, role="kv_producer" if name[0] == "P" else "kv_consumer", own={"nixl_path": ""})


def prefill():
    """P: a line of its engines, then there until it is told to end."""
    engines = [(kind, engine(f"P{i}", kind)) for kind in MODULES for i in range(ENGINES)]
    print(*(f"{kind} {e.config.kv_transfer_config.engine_id} {e.port}" for kind, e in engines), file=OUT, flush=True)
    sys.stdin.readline()


def stock(d, name, port):
    agents, _ = d.ranks[0].connector.connector_worker._nixl_handshake("127.0.0.1", port, 1, name)
    if len(agents) != 1:
        sys.exit(f"handshake: {len(agents)} agents of {name}")


def ours(d, name, port):
    ctx = d.side._ctx
    handle, end = ctx.engine_add(name, 1, "127.0.0.1", port), time.monotonic() + UP_MAX
    while not any(e.kind == kvlease.EV_ENGINE_UP and e.handle == handle for e in ctx.poll()):
        if time.monotonic() > end:
            sys.exit(f"handshake: D has not connected to {name}")
        time.sleep(0.0001)


def decode():
    with subprocess.Popen([sys.executable, __file__, "P"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        meet = {"stock": (stock, engine("D", "stock")), "ours": (ours, engine("D", "ours"))}
        words = p.stdout.readline().split()
        engines = list(zip(words[::3], words[1::3], words[2::3], strict=True))
        if len(engines) != ENGINES * len(MODULES):
            sys.exit(f"handshake: P tells {words}")
        took = {kind: [] for kind in MODULES}
        kinds = random.sample(list(MODULES), len(MODULES))
        for i in range(ENGINES):
            for kind in kinds:
                _, name, port = [e for e in engines if e[0] == kind][i]
                call, d = meet[kind]
                began = time.perf_counter()
                call(d, name, int(port))
                took[kind].append((time.perf_counter() - began) * 1e6)
        p.kill()
    for kind, us in took.items():
        print(f"meet.{kind} {statistics.median(us[1:]):.1f}", file=OUT, flush=True)


if sys.argv[1:] == ["P"]:
    prefill()
else:
    decode()
os._exit(0)  # the agents of a peer that is gone have nothing to say
