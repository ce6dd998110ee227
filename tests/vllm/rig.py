"""Engines for tests: started, stopped, killed; a router between them; a single engine whose tokens are the right ones.

    with Rig() as rig:
        p, d = rig.engine("p", "stock"), rig.engine("d", "kvlease")
        answer = rig.route(p, d, "a", prompt, max_tokens=8)
        assert answer.tokens == rig.reference(prompt, 8)

A kind is what holds the leases: "stock" is vLLM's NixlConnector, "kvlease" the package's class of that name, "none" no connector.
Environment: KVLEASE_VLLM names the folder that `make deps-vllm` filled, KVLEASE_VLLM_OUT where logs go,
KVLEASE_PYTHONPATH where the package kvlease is (build/python, which `make python` fills, unless said).
"""

import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEPS = Path(os.environ.get("KVLEASE_VLLM", ROOT / ".deps" / "vllm"))
PYTHON = DEPS / "venv" / "bin" / "python"
OUT = Path(os.environ.get("KVLEASE_VLLM_OUT", ROOT / "build" / "vllm"))
PACKAGE = os.environ.get("KVLEASE_PYTHONPATH", str(ROOT / "build" / "python"))
MODULES = {"stock": "stock", "kvlease": "kvlease.vllm", "none": None}

START = 180  # s for an engine to come up on a busy machine
ANSWER = 60  # s for a command
LEASE = 6  # kv_lease_duration: the shortest whose sixth is a whole second
INTERVAL, EXTENSION = LEASE // 6, LEASE * 2 // 3
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


class Died(Exception):
    """The engine is gone, and why."""


@dataclass
class Answer:
    """What a request ended with."""

    samples: list  # tokens of each
    reason: str
    kv: dict | None = None
    cached: int = 0
    t: float = 0.0

    @property
    def tokens(self):
        return self.samples[0]


def stands(pid):
    """Whether all threads of a process stand still, or are gone."""
    states = []
    for stat in Path("/proc").glob(f"{pid}/task/*/stat"):
        try:
            states.append(stat.read_text().rpartition(")")[2].split()[0])
        except OSError:
            pass
    return all(state in "TZX" for state in states)


class Engine:
    """One engine process. Commands are methods of engine.Engine: engine.ask("stat") is its do_stat()."""

    def __init__(self, rig, spec, kind):
        self.rig, self.spec, self.kind, self.name = rig, spec, kind, spec["name"]
        self.log_file = rig.out / f"{self.name}.{kind}.{rig.count()}.log"
        self.pid, self.why, self.answers, self.outs, self.events = None, None, {}, {}, []
        self.changed, self.asked = threading.Condition(), 0
        self.channel = rig.nursery.connect()
        self.reader, self.writer = self.channel.makefile("r"), self.channel.makefile("w")
        self._write({**spec, "log_file": str(self.log_file)})
        threading.Thread(target=self._read, daemon=True).start()

    def _write(self, line):
        try:
            self.writer.write(json.dumps(line) + "\n")
            self.writer.flush()
        except (BrokenPipeError, ConnectionResetError, ValueError) as e:
            raise Died(f"{self.name}: {self.why or e}") from e

    def _read(self):
        try:
            for line in self.reader:
                self._on(json.loads(line))
        except (OSError, ValueError):
            pass
        with self.changed:
            self.why = self.why or "killed"
            self.changed.notify_all()

    def _on(self, message):
        with self.changed:
            if "re" in message:
                self.answers[message["re"]] = message
            else:
                message["at"] = time.monotonic()
                self.events.append(message)
                if message["ev"] == "out":
                    self.outs[message["id"]] = Answer(message["tokens"], message["reason"], message["kv"], message["cached"], message["at"])
                elif message["ev"] == "ready":
                    self.pid = message["pid"]
                elif message["ev"] == "died":
                    self.why = message["error"]
            self.changed.notify_all()

    def _until(self, condition, limit, what):
        with self.changed:
            if not self.changed.wait_for(lambda: condition() or self.why, limit):
                raise TimeoutError(f"{self.name}: {what} not within {limit} s")
            if not condition():
                raise Died(f"{self.name}: {self.why}")

    # ---- commands ----

    def ready(self, limit=START):
        self._until(lambda: self.pid, limit, "start")
        return self

    def tell(self, cmd, **arguments):
        """Does not wait for it to be done."""
        with self.changed:
            self.asked += 1
            n = self.asked
        self._write({"cmd": cmd, "n": n, **arguments})
        return n

    def ask(self, cmd, limit=ANSWER, **arguments):
        n = self.tell(cmd, **arguments)
        self._until(lambda: n in self.answers, limit, cmd)
        answer = self.answers.pop(n)
        if not answer["ok"]:
            raise ValueError(f"{self.name}: {cmd}: {answer['error']}")
        return answer

    def submit(self, id, prompt, max_tokens=1, kv=None, **how):
        """Begins a request; its id must be new. Returns the engine's own name of it."""
        return self.ask("generate", id=id, prompt=prompt, max_tokens=max_tokens, kv=kv, **how)["internal"]

    def wait(self, id, limit=ANSWER):
        self._until(lambda: id in self.outs, limit, f"end of {id}")
        return self.outs[id]

    def generate(self, id, prompt, max_tokens=1, kv=None, limit=ANSWER, **how):
        self.submit(id, prompt, max_tokens, kv, **how)
        return self.wait(id, limit)

    def stat(self):
        return self.ask("stat")

    def metrics(self):
        return self.ask("metrics")["metrics"]

    def wait_stat(self, condition, limit, every=0.02):
        """Seconds until the condition on stat() holds, None if it does not within the limit."""
        began = time.monotonic()
        while time.monotonic() - began < limit:
            if condition(self.stat()):
                return time.monotonic() - began
            time.sleep(every)
        return None

    def wait_event(self, kind, id, limit=ANSWER):
        found = lambda: next((e for e in self.events if e["ev"] == kind and e.get("id") == id), None)  # noqa: E731
        self._until(found, limit, f"{kind} of {id}")
        return found()

    def log(self):
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    # ---- life ----

    @property
    def alive(self):
        return self.why is None

    def pids(self):
        """The engine and its workers."""
        listed = [self.pid]
        for pid in listed:
            try:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    listed += [int(child) for child in (task / "children").read_text().split()]
            except OSError:
                pass
        return listed

    def cpu(self):
        """Seconds of a core that its processes have used."""
        ticks = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def signal(self, number):
        for pid in reversed(self.pids()):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def stop(self):
        """Returns when all threads stand still: the signal is only under way when kill returns, and some ran on for 76 ms."""
        self.signal(signal.SIGSTOP)
        late = time.monotonic() + ANSWER
        while not all(stands(pid) for pid in self.pids()):
            if time.monotonic() > late:
                raise Died(f"{self.name} does not stand still: {self.pids()}")
            time.sleep(0.001)

    def go_on(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        if self.pid and self.alive:
            self.signal(signal.SIGKILL)
            with self.changed:
                self.changed.wait_for(lambda: self.why, 10)
        self.channel.close()

    def quit(self):
        try:
            self.tell("quit")
            with self.changed:
                self.changed.wait_for(lambda: self.why, 10)
        except Died:
            pass
        self.kill()


class Nursery:
    """The process that engines are forked from."""

    def __init__(self, out):
        self.folder = tempfile.mkdtemp(prefix="kvlease-vllm-")
        self.path = os.path.join(self.folder, "nursery")
        path = os.pathsep.join([str(HERE), PACKAGE])
        env = {**os.environ, "PYTHONPATH": path, "VLLM_RPC_BASE_PATH": self.folder, "KVLEASE_STOCK_SPINS": os.environ.get("KVLEASE_STOCK_SPINS", "")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start compiles vLLM anew
        self.log = open(out / "nursery.log", "w")
        # In this session, not in one of its own: the kernel shares cores out by session, and engines that spin would starve others.
        self.process = subprocess.Popen(
            [str(PYTHON), str(HERE / "engine.py"), "--nursery", self.path], env=env, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log,
        )

    def connect(self):
        channel = socket.socket(socket.AF_UNIX)
        for _ in range(START * 20):
            try:
                channel.connect(self.path)
                return channel
            except (FileNotFoundError, ConnectionRefusedError):
                if self.process.poll() is not None:
                    raise Died(f"the nursery ended: {Path(self.log.name).read_text()[-2000:]}") from None
                time.sleep(0.05)
        raise TimeoutError("the nursery does not listen")

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Rig:
    def __init__(self, out=OUT):
        if not PYTHON.exists():
            sys.exit(f"tests/vllm: no engines in {DEPS}; make deps-vllm installs them, KVLEASE_VLLM names another folder")
        self.out, self.engines, self.known, self.started = Path(out), [], {}, 0
        self.out.mkdir(parents=True, exist_ok=True)
        self.lock = threading.RLock()  # mixes are played at once
        self.nursery = Nursery(self.out)
        self.singles = {}  # by changes of the model

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for engine in [*self.engines, *self.singles.values()]:
            engine.kill()
        self.nursery.close()

    def count(self):
        with self.lock:
            self.started += 1
            return self.started

    def engine(self, name, kind, wait=True, **changes):
        """An engine of this kind. Names that begin with p are prefill engines, others decode engines, unless a role is given."""
        engine_id = changes.pop("engine_id", f"engine-{name}")
        extra = {"kv_lease_duration": LEASE, **changes.pop("extra", {})}
        if kind == "kvlease":  # engines of one id meet there, and one that is killed leaves it behind
            socket_name = f"{zlib.crc32(engine_id.encode()):08x}.sock"
            extra["kvlease"] = {"carrier_path": os.path.join(self.nursery.folder, socket_name), **extra.get("kvlease", {})}
        role = "kv_producer" if name.startswith("p") else "kv_consumer"
        spec = {
            "model": str(DEPS / "tiny"), "name": name, "engine_id": engine_id, "role": role, "port": port(),
            "connector": None if kind == "none" else "NixlConnector", "module": MODULES[kind], "extra": extra, **changes,
        }
        engine = Engine(self, spec, kind)
        self.engines.append(engine)
        return engine.ready() if wait else engine

    def again(self, engine, wait=True):
        """A new process in its place: same name, ports and engine id."""
        engine.kill()
        self.engines.remove(engine)
        new = Engine(self, engine.spec, engine.kind)
        self.engines.append(new)
        return new.ready() if wait else new

    def reference(self, prompt, max_tokens, changes=None):
        """What a single engine without any connector says; of the model with changes, if any."""
        model = json.dumps(changes or {})
        key = (model, tuple(prompt), max_tokens)
        with self.lock:
            if model not in self.singles:
                spec = {"model": str(DEPS / "tiny"), "name": "single", "connector": None, "blocks": 256, "tokens_max": 4096, "changes": changes or {}}
                self.singles[model] = Engine(self, spec, "none")
        if key not in self.known:
            self.known[key] = self.singles[model].ready().generate(f"r{self.count()}", prompt, max_tokens).tokens
        return self.known[key]

    def prefill(self, p, id, prompt, **how):
        """The router's first half: one token from P, and the parameters that its answer carries."""
        return p.generate(id, prompt, 1, dict(PREFILL), **how).kv

    def route(self, p, d, id, prompt, max_tokens=8, **how):
        """A whole request by way of P and D, parameters passed through."""
        return d.generate(id, prompt, max_tokens, self.prefill(p, id, prompt), **how)


# Below those that the kernel gives to clients, so that none of them takes the port of an engine that is started again.
PORTS = itertools.chain.from_iterable(itertools.repeat(random.sample(range(15000, 32000), 10000)))


def port():
    """A TCP port that is free."""
    for n in PORTS:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", n))
            except OSError:
                continue
            return n
