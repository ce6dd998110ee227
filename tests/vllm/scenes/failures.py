"""An engine is killed, stopped, or its loop hangs."""

import time

import rig

from . import scene
from .waiting import told


def died(mix, label=""):
    """Leases of P that ended before their time and unread, as it tells Prometheus: the process of their reader is gone, for one."""
    return mix.side(0, label).metrics().get("kvlease_leases_freed_total.released", 0)


def ended_by_death(mix, before, number, label=""):
    """Whatever the clock says on a busy machine. Statistics leave P with its steps, so requests are sent until the number is there."""
    until = time.monotonic() + (rig.ANSWER if mix.kinds == ("kvlease", "kvlease") else 0)
    while (got := died(mix, label) - before) < number and time.monotonic() < until:
        mix.fresh(*mix.pair(label))
        time.sleep(0.5)
    mix.promise("its death has ended the leases, not the clock", got == number, f"{got:g} of {number}")


@scene("D is killed while three requests wait in its queue")
def d_killed(mix):
    before = died(mix)
    for _ in range(3):
        mix.queue(mix.prompt(200))
    time.sleep(rig.LEASE + 0.5)  # from here on they live by heartbeats
    mix.wired()
    held = mix.p.stat()["held"]
    mix.d.kill()
    back = mix.p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + 2 * rig.EXTENSION + 2)
    mix.promise("P takes its blocks back", back is not None, f"{held} blocks, {told(back, 'after {:.2f} s')}", by="all")
    mix.all_right("D in its place, same ports and engine id, is served", [mix.fresh()])
    ended_by_death(mix, before, 3)


@scene("D is stopped for longer than the lease and continued, P has used the blocks again")
def d_stopped(mix):
    before, prompts = mix.late(), [mix.prompt(n) for n in (200, 64)]
    ids = [mix.queue(prompt) for prompt in prompts]
    time.sleep(1.5 * rig.INTERVAL)
    mix.d.stop()
    gone = mix.p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + 2 * rig.EXTENSION + 2)
    mix.promise("P takes its blocks back", gone is not None, told(gone, "after {:.1f} s"), by="all")
    mix.overwrite()
    mix.d.go_on()
    mix.d.ask("slots", number=None)
    mix.never_wrong([mix.judge(mix.d.wait(id), prompt, 8) for id, prompt in zip(ids, prompts)])
    mix.all_right("and the next request is served", [mix.fresh()])
    mix.counts_late(before, 2)


@scene("D's loop hangs for longer than an extension and holds Python's lock, P has used the blocks again if it let go")
def d_blocked(mix):
    prompt = mix.prompt(200)
    id = mix.queue(prompt)
    time.sleep(1.5 * rig.INTERVAL)
    mix.d.tell("block", seconds=rig.EXTENSION + 3, gil=True)
    gone = mix.p.wait_stat(lambda s: s["held"] == 0, rig.EXTENSION + 2.5)
    mix.promise("P holds it all the time", gone is None, told(gone, "P let go {:.1f} s after the loop hung"), by="d")
    if gone is not None:
        mix.overwrite()
    mix.d.ask("slots", number=None)
    mix.never_wrong([mix.judge(mix.d.wait(id), prompt, 8)])


@scene("P's loop hangs for longer than the lease")
def p_blocked(mix):
    prompt = mix.prompt(200)
    id = mix.queue(prompt)
    time.sleep(1.5 * rig.INTERVAL)
    mix.p.ask("block", seconds=rig.LEASE + 1)
    time.sleep(0.5)
    held = mix.p.stat()["held"]
    mix.promise("P still holds its blocks", held == 7, f"{held} of 7", by="all")
    mix.d.ask("slots", number=None)
    mix.all_right("and the tokens are right", [mix.judge(mix.d.wait(id), prompt, 8)])


@scene("P is stopped for longer than the lease and continued, while D beats")
def p_stopped(mix):
    prompts = [mix.prompt(40) for _ in range(4)]
    ids = [mix.queue(prompt) for prompt in prompts]
    time.sleep(1.5 * rig.INTERVAL)
    mix.p.stop()
    time.sleep(rig.LEASE + 1)
    mix.p.go_on()
    time.sleep(1)
    held = mix.p.stat()["held"]
    mix.promise("P still holds all blocks", held == 8, f"{held} of 8", by="p")
    if held < 8:
        mix.overwrite()
    mix.d.ask("slots", number=None)
    mix.never_wrong([mix.judge(mix.d.wait(id), prompt, 8) for id, prompt in zip(ids, prompts)])
