import itertools
import os
import subprocess
import sys
import time

import lab
import pytest


SHORT = {"kv_lease_duration": 1.2, "allow_short_leases": True, "step_max": 0.2, "stall_gap": 0.05}
NUMBERS = itertools.count()


def stall(engine):
    engine.producer.expect(f"request-{next(NUMBERS)}")  # who has nothing to do does not stand still
    engine.turn()
    time.sleep(0.06)
    engine.turn()


def test_what_goes_wrong_is_said_once_as_dicts(engines):
    engine = engines("P", log="host", **SHORT)
    engine.context.log()
    stall(engine)
    (line,) = [n for n in engine.context.log() if n["kind"] == "stall"]
    assert line["level"] == "warning" and line["values"]["gap_ns"] > 50e6 and "stall_gap" in line["remedy"]
    assert line["time"].endswith("Z") and line["context"] > 0 and "engine" not in line
    assert engine.context.log() == []


def test_many_lines_are_taken_at_once(engines):
    engine = engines("P", log="host", log_level="info", **SHORT)
    for n in range(60):
        remote = engine.context.engine_add(f"gone-{n}", 1, host="127.0.0.1", port=1)
    lines = []
    until = time.monotonic() + 20
    while len(lines) < 12 and time.monotonic() < until:
        engine.turn()
        lines += [n for n in engine.context.log() if n["kind"] == "handshake_failing"]
        time.sleep(0.01)
    assert len({n["engine"] for n in lines}) >= 12 and remote  # the rate of each class of engines leaves some out


def test_nothing_is_kept_if_the_log_is_off(engines):
    engine = engines("P", log="off", **SHORT)
    stall(engine)
    assert engine.context.log() == []


PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in a program in C
sys.path.insert(0, sys.argv[1])
import test_log, lab
engine = lab.Engine("P", **test_log.SHORT)
if sys.argv[2] == "closed":
    os.read(0, 1)  # the other end is closed
for _ in range(20):
    test_log.stall(engine)
time.sleep(0.6)
engine.close()
print("alive")
"""


@pytest.mark.parametrize("how", ["read", "closed"])
def test_lines_go_to_stderr_and_a_closed_one_ends_nothing(how):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, os.path.dirname(__file__), how], env=env, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if how == "closed":
        child.stderr.close()
        child.stdin.write("x")
        child.stdin.close()
        out, err = child.stdout.read(), ""
        child.wait(30)
    else:
        out, err = child.communicate(timeout=30)
    assert (out, child.returncode) == ("alive\n", 0)
    if how == "read":
        assert "kvlease time=" in err and "kind=stall" in err


def test_a_broken_context_goes_on_saying_what_it_knows(engines):
    engine = engines("P", log="host", **SHORT)
    engine.context.fence_all()
    (line,) = [n for n in engine.context.log() if n["kind"] == "fenced"]
    assert line["level"] == "error" and "restart" in line["remedy"]
