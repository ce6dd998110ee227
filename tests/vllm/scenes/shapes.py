"""Other engines than the usual ones: ranks, asynchronous scheduling, too few blocks, sleep, a policy that recomputes."""

import time

import rig

from . import scene

LENGTHS = (31, 32, 65, 200, 400)


def several(mix, p, d, max_tokens=16):
    """Some requests at once."""
    prompts = {mix.name(): mix.prompt(n) for n in LENGTHS}
    for id, prompt in prompts.items():
        d.submit(id, prompt, max_tokens, mix.rig.prefill(p, id, prompt))
    mix.all_right("tokens are those of a single engine", [mix.judge(d.wait(id), prompt, max_tokens) for id, prompt in prompts.items()])


def meet(mix, p, d):
    """The first request of engines that have not met: processes of ranks make room for each other, and it may take its time."""
    prompt, id = mix.prompt(200), mix.name()
    mix.never_wrong([mix.judge(mix.rig.route(p, d, id, prompt, 8, limit=120), prompt, 8)], "the first request: ")


def waits_and_dies(mix, p, d):
    """The request outlives its lease in D's queue; then D dies and P has its blocks back."""
    prompt = mix.prompt(200)
    id = mix.queue(prompt, p=p, d=d)
    time.sleep(rig.LEASE + 1.5)
    held = p.stat()["held"]
    d.ask("slots", number=None)
    judged = mix.judge(d.wait(id), prompt, 8)
    mix.promise("a request waits longer than the lease: P holds it, tokens are right", held == 7 and judged.right,
                f"{held} of 7 blocks, {judged.text}", by="all")
    mix.queue(mix.prompt(200), p=p, d=d)
    time.sleep(1.5 * rig.INTERVAL)
    d.kill()
    back = p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + 2 * rig.EXTENSION + 2)
    mix.promise("D is killed: P takes its blocks back", back is not None, "never" if back is None else f"after {back:.2f} s", by="all")


def sizes(mix, pair, **ranks):
    p, d = mix.pair(pair, **ranks)
    meet(mix, p, d)
    several(mix, p, d)
    waits_and_dies(mix, p, d)
    mix.retire(pair)


@scene("P with two ranks, D with one")
def tp_2_to_1(mix):
    sizes(mix, "tp21", p={"tp": 2})


@scene("P with one rank, D with two")
def tp_1_to_2(mix):
    sizes(mix, "tp12", d={"tp": 2})


@scene("asynchronous scheduling on both sides")
def asynchronous(mix):
    p, d = mix.pair("async", async_scheduling=True)
    several(mix, p, d)
    id, prompt = mix.name(), mix.prompt(200)
    d.ask("abort_in", id=id, status="WAITING_FOR_REMOTE_KVS")
    d.submit(id, prompt, 8, mix.rig.prefill(p, id, prompt))
    d.wait_event("aborted", id)
    back = p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + rig.EXTENSION + 2)
    mix.promise("an abort while it reads: P has its blocks back", back is not None,
                "never" if back is None else f"after {back:.2f} s", by="all")
    mix.retire("async")


@scene("more work than D has blocks for, and P full of leases")
def preemption(mix):
    p, d = mix.p, mix.d
    prompts = {mix.name(): mix.prompt(300) for _ in range(6)}  # ten blocks each, and four more while they decode
    for id, prompt in prompts.items():
        d.submit(id, prompt, 220, mix.rig.prefill(p, id, prompt))
    mix.all_right("tokens are right although D preempts", [mix.judge(d.wait(id), prompt, 220) for id, prompt in prompts.items()])
    preempted = d.metrics().get("vllm:num_preemptions_total", 0)
    mix.promise("D does preempt", preempted > 0, f"{preempted:g} times", by="all")
    ids = [mix.queue(mix.prompt(300)) for _ in range(9)]
    began = time.monotonic()
    mix.p.submit("last", prompt := mix.prompt(300), 1, dict(rig.PREFILL))
    time.sleep(1)
    waits = "last" not in mix.p.outs
    mix.promise("a prompt that finds P full of leases waits", waits, "yes" if waits else "no", by="nobody")
    d.ask("slots", number=None)
    for id in ids:
        d.wait(id)
    answer = d.generate("last", prompt, 8, mix.p.wait("last").kv)
    judged = mix.judge(answer, prompt, 8)
    mix.promise("and is served when D has read", judged.right, f"{judged.text} after {time.monotonic() - began:.1f} s", by="all")


@scene("a read that may not be used is computed again, if the policy says so")
def recompute(mix):
    p, d = mix.pair("again", policy="recompute")
    prompt, id = mix.prompt(200), mix.name()
    kv = mix.rig.prefill(p, id, prompt)
    p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + 2 * rig.EXTENSION + 2)
    mix.overwrite(p)
    judged = mix.judge(d.generate(id, prompt, 8, kv), prompt, 8)
    mix.all_right("handed over after the lease, P has used the blocks again: tokens are right", [judged], by="both")
    mix.retire("again")


@scene("sleep and wake, as far as the CPU build has them", about="p")
def sleep(mix):
    """On a CPU nothing is given back, but all of vLLM above the worker does what it does elsewhere."""
    mix.rig.prefill(mix.p, mix.name(), mix.prompt(200))
    try:
        mix.p.ask("sleep", level=1)
        mix.p.ask("wake")
        text = "it sleeps"
    except ValueError as why:
        text = str(why).partition(". ")[0]
    mix.promise("P holds a lease and is told to sleep", text == "it sleeps", text, by="nobody")
    mix.rest()
    mix.p.ask("sleep", level=1)
    mix.p.ask("wake")
    mix.all_right("without leases it sleeps, wakes and serves", [mix.fresh()])
