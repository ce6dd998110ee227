#!/usr/bin/env python3
"""What a hit costs the traced process, as "name value" lines: one round. usage: hits.py PROGRAM, which is hits.c.

bpftrace counts at the trace site, and at the entry of a function beside it, in turn. Where it cannot attach only the loop with nobody attached
is timed.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time


def measure(program, what, n, times=1):
    """ns of processor time a call, the median of several stretches."""
    found = []
    for _ in range(times):
        program.stdin.write(f"{what} {n}\n")
        program.stdin.flush()
        found.append(float(program.stdout.readline()))
    return statistics.median(found)


def attached(pid, probe):
    """bpftrace on a probe, once it waits; None if it cannot."""
    tool = subprocess.Popen(["bpftrace", "-p", str(pid), "-e", probe + " { @ = count(); }"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while tool.poll() is None:
        with open(f"/proc/{tool.pid}/wchan") as f:
            if "poll" in f.read():
                return tool
        time.sleep(0.01)
    return None


def end(tool):
    for _ in range(10):  # a signal just before it waits is lost on it
        tool.send_signal(signal.SIGINT)
        try:
            return tool.wait(6)
        except subprocess.TimeoutExpired:
            pass
    tool.kill()


def main():
    path = sys.argv[1]
    program = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    measure(program, "site", 1_000_000)
    print("sites.off", measure(program, "site", 2_000_000, 9))
    if os.geteuid() == 0 and shutil.which("bpftrace"):
        for name, what, probe in (("sites.hit", "site", f"usdt:{path}:kvlease:step__begin"), ("sites.uprobe", "entry", f"uprobe:{path}:bench_entry")):
            if tool := attached(program.pid, probe):
                measure(program, what, 20_000)  # around an attach a hit costs more
                print(name, measure(program, what, 20_000, 15))
                end(tool)
    print("sites.off", measure(program, "site", 2_000_000, 9))  # detached: the nop is back
    program.stdin.close()
    program.wait(60)


if __name__ == "__main__":
    main()
