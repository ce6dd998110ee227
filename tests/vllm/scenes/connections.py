"""What goes wrong while data is on its way: D dies or sleeps in the middle of a read, a connection is reset and both engines live.

The engines speak TCP: the owner's software answers reads then, so that they stand still as long as P does.
"""

import re
import subprocess
import time

import rig

from . import scene
from .failures import died, ended_by_death
from .waiting import told

READING = 5  # s within which a read must have begun
SLEPT = 20  # s within which a sleep must have come back


def engines(mix):
    return mix.pair("tcp", env={"UCX_TLS": "tcp"})


def read(mix, p, d):
    """D's read of a long prompt, of which P has had a heartbeat, is under way and does not end, since P is stopped. Returns the id."""
    mix.all_right("a request before that is served", [mix.fresh(p, d)])
    id = mix.queue(mix.prompt(2900), p=p, d=d)
    time.sleep(1.5 * rig.INTERVAL)
    mix.wired(p)
    p.stop()
    d.ask("slots", number=None)
    until = time.monotonic() + READING
    while not (begun := d.ask("reading")["number"]) and time.monotonic() < until:
        time.sleep(0.01)
    mix.promise("D is in the middle of a read", begun == 1, f"{begun} under way", by="all")
    return id


@scene("D is killed in the middle of a read")
def d_killed_reading(mix):
    p, d = engines(mix)
    before = died(mix, "tcp")
    read(mix, p, d)
    d.stop()  # else its read ends once P goes on
    p.go_on()
    held = p.wait_stat(lambda s: s["held"] == 0, 0.5)
    mix.promise("P holds its blocks until then", held is None, told(held, "it let go after {:.2f} s"), by="all")
    d.kill()
    back = p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + 2 * rig.EXTENSION + 2)
    mix.promise("P takes its blocks back", back is not None, told(back, "after {:.2f} s"), by="all")
    mix.overwrite(p)
    mix.all_right("D in its place, same ports and engine id, is served", [mix.fresh(*engines(mix))])
    ended_by_death(mix, before, 1, "tcp")


def reset(p, d, ours):
    """Resets the TCP connections between two engines of which ours(P's port, D's port) says so; the number of those that were there."""
    listed = subprocess.run(["ss", "-tnpH", "state", "established"], check=True, capture_output=True, text=True).stdout
    ends = {pid: set() for pid in (p.pid, d.pid)}
    for line in listed.splitlines():
        *_, here, there, who = line.split(maxsplit=4)
        for pid in re.findall(r"pid=(\d+)", who):
            ends.get(int(pid), set()).add((here, there))
    between = [(a, b) for a, b in ends[p.pid] if (b, a) in ends[d.pid] and ours(*(int(end.rpartition(":")[2]) for end in (a, b)))]
    for here, there in between:
        subprocess.run(["ss", "-K", "state", "established", "src", here, "dst", there], check=True, capture_output=True)
    return len(between)


@scene("the connections between P and D are reset, both engines live, two requests wait in D's queue")
def connection_reset(mix):
    p, d = engines(mix)
    mix.all_right("a request before that is served", [mix.fresh(p, d)])
    ports = {p.spec["port"], d.spec["port"]}
    for what, ours in (("NIXL's", lambda a, b: not ports & {a, b}), ("all", lambda a, b: True)):
        prompts = [mix.prompt(n) for n in (200, 64)]
        ids = [mix.queue(prompt, p=p, d=d) for prompt in prompts]
        first = p.stat()["held"]
        time.sleep(1.5 * rig.INTERVAL)
        number = reset(p, d, ours)
        mix.promise(f"{what}: there are some", number > 0, f"{number} reset", by="all")
        gone = p.wait_stat(lambda s: s["held"] < first, rig.LEASE + 1)
        mix.promise(f"{what}: P holds the blocks of both for {rig.LEASE + 1} s", gone is None, told(gone, "P let go after {:.1f} s"), by="d")
        if gone is not None:
            p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + rig.EXTENSION)
            mix.overwrite(p)
        d.ask("slots", number=None)
        judged = [mix.judge(d.wait(id), prompt, 8) for id, prompt in zip(ids, prompts)]
        mix.never_wrong(judged, f"{what}: ")
        mix.all_right(f"{what}: both are answered", judged, by="both")  # a stock P's lease is not proven where the chain of heartbeats has a gap
        next = mix.fresh(p, d)
        mix.all_right(f"{what}: the next request is served", [next], by="d")
        if not next.right:  # for good
            mix.replace(d, "tcp")
            p, d = engines(mix)
            mix.all_right("D is started again: a request is served", [mix.fresh(p, d)])
        mix.rest("tcp")
        p, d = engines(mix)


@scene("D is told to sleep in the middle of a read")
def sleep_reading(mix):
    p, d = engines(mix)
    read(mix, p, d)
    began = time.monotonic()
    d.tell("sleep", level=1)
    time.sleep(1)
    stat = d.stat()
    mix.promise("D keeps the blocks into which its transfer may still write", stat["held"] == 91, f"{stat['held']} of 91", by="all")
    p.go_on()
    try:
        d.ask("stat", limit=SLEPT)
        text = f"after {time.monotonic() - began:.1f} s"
    except (rig.Died, TimeoutError) as why:
        text = str(why)
    mix.promise("it answers again", text.startswith("after"), text, by="all")
    d.ask("wake")
    mine = d.wait_stat(lambda s: s["held"] == s["requests"] == 0, 10)
    mix.promise("it keeps nothing of the request", mine is not None, told(mine, "after {:.1f} s"), by="all")
    back = p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + 2 * rig.EXTENSION + 2)
    mix.promise("P has its blocks back", back is not None, told(back, "after {:.1f} s"), by="all")
    mix.all_right("it wakes and serves", [mix.fresh(p, d)])
    mix.retire("tcp")
