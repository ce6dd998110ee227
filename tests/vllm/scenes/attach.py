"""`kvlease attach` beside a real P: what it shows is so, and what it reads is what the engine's memory holds."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import rig

from . import scene

TOOL = os.environ.get("KVLEASE_TOOL", str(rig.ROOT / "build" / "kvlease"))


def attach(engine, *args):
    """What the tool says of an engine's side channel, and its exit code."""
    (nixl,) = rig.DEPS.glob("venv/lib/python3.11/site-packages/.nixl_cu*.mesonpy.libs/libnixl_capi.so")  # the engines'
    done = subprocess.run(
        [TOOL, "attach", f"127.0.0.1:{engine.spec['port']}", "--json", *args], env={**os.environ, "KVLEASE_NIXL": str(nixl)}, capture_output=True,
        text=True, timeout=rig.ANSWER,
    )
    return json.loads(done.stdout or "{}"), done.stderr.strip()


def differing(engine, said, out):
    """How many blocks in the file are not what the process has in its memory, and how many there are."""
    index, data = json.loads(Path(f"{out}.json").read_text()), Path(out).read_bytes()
    wrong = blocks = 0
    with open(f"/proc/{engine.pid}/mem", "rb", 0) as memory:
        for part in index["parts"]:
            region, size = said["ranks"][part["rank"]]["regions"][part["region"]], part["block_bytes"]
            for i, block in enumerate(part["blocks"]):
                memory.seek(int(region["addr"], 16) + block * region["stride_bytes"])
                wrong += memory.read(size) != data[part["offset"] + i * size :][:size]
                blocks += 1
    return wrong, blocks, index


@scene("kvlease attach looks at P, keeps a request and reads its blocks", about="p")
def attached(mix):
    p, prompt, id = mix.p, mix.prompt(200), mix.name()
    said, error = attach(p)
    speaks = mix.kinds[0]
    mix.promise(
        "it shows which engine it is", said.get("engine_id") == p.spec["engine_id"] and said.get("speaks") == speaks and said["ranks"][0]["regions"],
        error or f"{said['speaks']} engine, {len(said['ranks'][0]['regions'])} regions, handshake {said['handshake_round_trip']['least_ms']} ms, read {said['ranks'][0]['read']['least_ms']} ms",
        by="all",
    )
    free = p.stat()["free_blocks"]
    kv = mix.rig.prefill(p, id, prompt)
    with tempfile.TemporaryDirectory() as folder:
        params, out = os.path.join(folder, "params.json"), os.path.join(folder, "blocks")
        Path(params).write_text(json.dumps(kv))
        said, error = attach(p, "--params", params, "--for", f"{rig.LEASE + 2}s", "--interval", "1s", "--out", out)
        kept = p.stat()["free_blocks"]
        request = said.get("request", {})
        mix.promise(
            "its heartbeats keep a request beyond the lease", kept < free and not error,
            error or f"{request['beats']} heartbeats, {free - kept} blocks still held after {rig.LEASE + 2} s", by="all",
        )
        if error:
            return
        wrong, blocks, index = differing(p, said, out)
        mix.promise("it reads what the engine holds", not wrong and blocks, f"{wrong} of {blocks} blocks differ, {index['bytes']} bytes", by="all")
        mix.promise("it proves what it has read", index["proven"], index["why"], by="p")
        if "applied" in request:
            mix.say(f"         (a notification until its row showed it: {request['applied']['least_ms']} to {request['applied']['most_ms']} ms)")
        said, error = attach(p, "--params", params, "--complete")
        p.generate(mix.name(), prompt[:10], 1)  # an engine without requests need not step for leases that have ended
        back = p.wait_stat(lambda s: s["free_blocks"] == free, rig.EXTENSION / 2)
        mix.promise("a completion frees the blocks", back is not None and not error, error or f"{free - p.stat()['free_blocks']} of its blocks held after the next request", by="all")
    mix.all_right("the engine serves as before", [mix.fresh()])
