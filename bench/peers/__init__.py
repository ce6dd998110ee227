"""The peers: other projects' code, fetched for a run into .deps/bench and never committed."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

VLLM = "0.33.0"
ETCD = "v3.7.3"

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DEPS = ROOT / ".deps" / "bench"


class Missing(Exception):
    """A peer that this run must do without, and why."""


def call(*cmd, cwd=None):
    done = subprocess.run([str(c) for c in cmd], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"{Path(str(cmd[0])).name} {cmd[1]}: " + (done.stderr.strip().splitlines() or ["failed"])[-1])


def pip(*args):
    call(sys.executable, "-m", "pip", args[0], "--quiet", "--disable-pip-version-check", *args[1:])


def spsc(out):
    """rigtorp's queue: no registry has it, so KVLEASE_RIGTORP names the include folder of a checkout."""
    include = os.environ.get("KVLEASE_RIGTORP", "")
    if not (Path(include) / "rigtorp" / "SPSCQueue.h").is_file():
        raise Missing("rigtorp's SPSCQueue is in no package registry: set KVLEASE_RIGTORP to the include folder of a checkout")
    program = out / "spsc"
    call("g++", "-std=c++17", "-O2", "-Wno-interference-size", "-I", include, HERE / "spsc.cpp", "-o", program, "-pthread")
    return program


def lessor():
    """etcd's lessor in a Go module of its own."""
    folder = DEPS / "etcd"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.mod").write_text(f"module lessor\n\ngo 1.26\n\nrequire go.etcd.io/etcd/server/v3 {ETCD}\n")
    shutil.copy(HERE / "lessor.go.tmpl", folder / "main.go")
    call("go", "mod", "tidy", cwd=folder)
    call("go", "build", "-o", "lessor", ".", cwd=folder)
    return folder / "lessor"


def libzmq():
    """libzmq comes with pyzmq, which the tests of dataplane/zmtp put into .deps; their benchmark drives it."""
    if not (ROOT / ".deps" / "pyzmq" / "zmq").is_dir():
        raise Missing("pyzmq is not in .deps/pyzmq, where go test ./dataplane/zmtp puts it")


def vllm():
    """The connector of the vLLM wheel (336 MB, of which only the Python files of one folder stay), numpy, and the probe."""
    probe = os.environ.get("KVLEASE_PEERS", "")
    if not (Path(probe) / "vllm_lease_cost.py").is_file():
        raise Missing("KVLEASE_PEERS does not name the folder of vllm_lease_cost.py")
    folder = DEPS / f"vllm-{VLLM}"
    if not folder.is_dir():
        wheels = DEPS / "wheel"
        pip("download", "--no-deps", "--only-binary=:all:", "--dest", wheels, f"vllm=={VLLM}")
        part = DEPS / "vllm.part"
        with zipfile.ZipFile(next(wheels.glob("vllm-*.whl"))) as z:
            z.extractall(part, [n for n in z.namelist() if n.startswith("vllm/distributed/kv_transfer/") and n.endswith(".py")])
        part.rename(folder)
        shutil.rmtree(wheels)
    python = DEPS / "python"
    if not (python / "numpy").is_dir():
        pip("install", "--no-deps", "--root-user-action=ignore", "--target", python, "numpy")
    return ["env", f"PYTHONPATH={python}", sys.executable, HERE / "vllm_cost.py", probe, folder]
