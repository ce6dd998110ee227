"""The hand-over takes longer than a lease: in D's queue, in a paused D, in the router."""

import time

import rig

from . import scene


@scene("a request waits in D's queue for longer than the lease")
def queue(mix):
    prompts = [mix.prompt(n) for n in (200, 33)]
    ids = [mix.queue(prompt) for prompt in prompts]
    first = mix.p.stat()["held"]
    time.sleep(rig.LEASE + rig.EXTENSION)
    held = mix.p.stat()["held"]
    mix.promise(f"P holds its blocks after {rig.LEASE + rig.EXTENSION} s", held == first, f"{held} of {first}", by="all")
    mix.d.ask("slots", number=None)
    mix.all_right("and the tokens are right", [mix.judge(mix.d.wait(id), prompt, 8) for id, prompt in zip(ids, prompts)])
    back = mix.p.wait_stat(lambda s: s["held"] == 0, 3)
    mix.promise("P has its blocks back when D has read", back is not None, "at once" if back is not None else "no", by="all")


@scene("D's scheduler is paused while a request waits in its queue")
def paused(mix):
    prompt = mix.prompt(200)
    id = mix.queue(prompt)
    time.sleep(1.5 * rig.INTERVAL)
    mix.d.ask("pause_scheduler", mode="keep")
    gone = mix.p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + 1)  # kvlease beats for a loop that stands for a lease, not longer
    mix.promise(f"P holds it for {rig.LEASE + 1} s", gone is None, told(gone, "P let go {:.1f} s after the pause"), by="d")
    if gone is not None:
        mix.overwrite()
    mix.d.ask("resume_scheduler")
    mix.d.ask("slots", number=None)
    mix.never_wrong([mix.judge(mix.d.wait(id), prompt, 8)])


@scene("the router hands the parameters over after the lease has ended, and P has used the blocks again")
def handover(mix):
    prompt, id, before = mix.prompt(200), mix.name(), mix.late()
    kv = mix.rig.prefill(mix.p, id, prompt)
    gone = mix.p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + 2 * rig.EXTENSION + 2)
    mix.promise("P takes its blocks back", gone is not None, told(gone, "after {:.1f} s"), by="all")
    mix.overwrite()
    mix.never_wrong([mix.judge(mix.d.generate(id, prompt, 8, kv), prompt, 8)])
    mix.all_right("and the next request is served", [mix.fresh()])
    mix.counts_late(before, 1)


def told(seconds, text):
    return "it stayed" if seconds is None else text.format(seconds)
