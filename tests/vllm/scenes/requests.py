"""Clients go away; one request becomes several; ids are what clients make them."""

import time

import rig

from . import scene

SOON = 1.5  # s within which an abort must have reached P


@scene("a client aborts: queued, reading, after reading, before the first step")
def aborts(mix):
    mix.fresh()

    def gone(what, by="both"):
        back = mix.p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + rig.EXTENSION + 6)
        mix.promise(f"{what}: P has its blocks back at once", back is not None and back <= SOON,
                    "never" if back is None else f"after {back:.2f} s", by=by)
        mine = mix.d.wait_stat(lambda s: s["held"] == 0 and s["requests"] == 0, 10)
        mix.promise(f"{what}: D has its own back", mine is not None, "no" if mine is None else "yes", by="all")

    id = mix.queue(mix.prompt(200))
    time.sleep(1.5 * rig.INTERVAL)
    mix.d.ask("abort", id=id)
    gone("queued")

    id, prompt = mix.name("reading"), mix.prompt(1500)
    kv = mix.rig.prefill(mix.p, id, prompt)
    mix.d.ask("slots", number=None)
    mix.d.ask("abort_in", id=id, status="WAITING_FOR_REMOTE_KVS")
    mix.d.submit(id, prompt, 8, kv)
    mix.d.wait_event("aborted", id)
    gone("reading")

    id, prompt = mix.name(), mix.prompt(200)
    mix.d.ask("pace", seconds=0.02)
    mix.d.submit(id, prompt, 500, mix.rig.prefill(mix.p, id, prompt))
    mix.d.wait_event("first", id)
    mix.d.ask("abort", id=id)
    mix.d.ask("pace", seconds=0)
    gone("after reading")

    id, prompt = mix.name(), mix.prompt(200)
    mix.d.submit(id, prompt, 8, mix.rig.prefill(mix.p, id, prompt), abort_at_once=True)
    gone("before the first step")

    id = mix.name()
    mix.p.ask("abort_in", id=id, status="RUNNING")
    mix.p.submit(id, mix.prompt(2500), 1, dict(rig.PREFILL))
    mix.p.wait_event("aborted", id)
    gone("in P, while it computes", by="all")
    mix.all_right("and the next request is served", [mix.fresh()])


@scene("an abort on a D that has not met P before and has nothing else to do")
def abort_unmet(mix):
    mix.replace(mix.d)
    id, prompt = mix.name(), mix.prompt(200)
    mix.d.submit(id, prompt, 8, mix.rig.prefill(mix.p, id, prompt), abort_at_once=True)
    back = mix.p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + rig.EXTENSION + 6)
    mix.promise("P has its blocks back at once", back is not None and back <= SOON, "never" if back is None else f"after {back:.2f} s")


@scene("n = 2, and the same parameters used twice")
def several(mix):
    prompt, id = mix.prompt(200), mix.name()
    answer = mix.rig.route(mix.p, mix.d, id, prompt, 8, samples=2)
    wrong = sum(t != mix.rig.reference(prompt, 8) for t in answer.samples)
    mix.promise("n = 2 on D, both at once: never a wrong token", not wrong or answer.reason not in ("length", "stop"),
                f"{wrong} of 2 samples wrong, finish_reason {answer.reason}")

    prompt, id = mix.prompt(200), mix.name()
    kv = mix.rig.prefill(mix.p, id, prompt)
    first = mix.judge(mix.d.generate(id, prompt, 8, kv), prompt, 8)
    mix.overwrite()
    mix.d.ask("forget_prefixes")
    again = mix.judge(mix.d.generate(id + "again", prompt, 8, kv), prompt, 8)
    mix.all_right("parameters are used", [first])
    mix.never_wrong([again], "and again, when P has used the blocks again: ")

    prompt = mix.prompt(200)
    id = mix.queue(prompt)
    mix.d.submit(id + "again", prompt, 8, mix.last_kv)
    time.sleep(1.5 * rig.INTERVAL)
    mix.d.ask("abort", id=id + "again")
    gone = mix.p.wait_stat(lambda s: s["held"] == 0, rig.LEASE)
    mix.promise("one of two that share a lease is aborted: the other's stays", gone is None,
                "it stayed" if gone is None else f"P let go after {gone:.1f} s")
    if gone is not None:
        mix.overwrite()
    mix.d.ask("slots", number=None)
    mix.never_wrong([mix.judge(mix.d.wait(id), prompt, 8)], "and of the other: ")

    mix.p.generate(mix.name(), mix.prompt(200), 1, dict(rig.PREFILL), samples=2)
    back = mix.p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + rig.EXTENSION + 4)
    mix.promise("n = 2 on P: blocks that no parameters name come back", back is not None,
                "never" if back is None else f"after {back:.1f} s", by="all")


@scene("ids with commas, of 500 characters, that begin with HB:, and others that clients send")
def ids(mix):
    names = {
        "comma": "tenant,job,7", "500 characters": "x" * 500, "HB:": "HB:job", "colon": "a:b:2", "space and quote": "a b\"c'",
        "not ASCII": "größe-日本", "comma at both ends": ",x,",
    }
    prompts = {what: mix.prompt(40) for what in names}
    mix.d.ask("slots", number=0)
    for what, id in names.items():
        id = names[what] = f"{id}{mix.name('#')}" if not id.endswith(",") else f",{mix.name('#')},"
        mix.d.submit(id, prompts[what], 8, mix.rig.prefill(mix.p, id, prompts[what]))
    first = mix.p.stat()["held"]
    time.sleep(rig.LEASE + 2)
    held = mix.p.stat()["held"]
    mix.promise("the blocks of all are held past the lease in D's queue", held == first, f"{held} of {first}")
    if held < first:
        mix.overwrite()
    mix.d.ask("slots", number=None)
    judged = {what: mix.judge(mix.d.wait(id), prompts[what], 8) for what, id in names.items()}
    judged = [j._replace(text=f"{what}: {j.text}") for what, j in judged.items()]
    mix.never_wrong(judged)
    mix.all_right("and all are answered", judged, by="both")
    back = mix.p.wait_stat(lambda s: s["held"] == 0, 3 + rig.LEASE + rig.EXTENSION)
    mix.promise("P has the blocks back when D has read", back is not None and back <= SOON,
                "never" if back is None else f"after {back:.2f} s")
