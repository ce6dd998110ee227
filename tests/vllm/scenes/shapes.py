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


def crowd(mix, engine, requests, abort=None):
    """Requests that enter at once, {id: (prompt, max_tokens, kv)}, in an engine that has not the blocks for all. How often it has
    preempted one; vLLM does not count the one that is aborted as soon as it is preempted."""
    before = engine.metrics().get("vllm:num_preemptions_total", 0)
    engine.ask("pause")
    if abort:
        engine.ask("abort_in", id=abort, status="PREEMPTED")
    for id, (prompt, max_tokens, kv) in requests.items():
        engine.submit(id, prompt, max_tokens, kv)
    engine.ask("resume")
    for id in requests:
        engine.wait_event("aborted", id) if id == abort else engine.wait(id)
    return engine.metrics().get("vllm:num_preemptions_total", 0) - before + (abort is not None)


@scene("P preempts a prompt that it computes, D one that it has loaded, and one of each is aborted then")
def preempted(mix):
    p, d = mix.pair("small", blocks=24, batch=64)
    for aborted in (False, True):
        when = ", aborted then" if aborted else ""
        requests = {mix.name(): (mix.prompt(92), 60, None) for _ in range(2)}  # four blocks and five, where the prompt takes 16 of 23
        id, prompt = mix.name(), mix.prompt(512)
        number = crowd(mix, p, {**requests, id: (prompt, 1, dict(rig.PREFILL))}, id if aborted else None)
        mix.promise(f"P preempts a prompt{when}", number > 0, f"{number:g} times", by="all")
        judged = [mix.judge(p.wait(other), *asked[:2]) for other, asked in requests.items()]
        if not aborted:
            judged.append(mix.judge(d.generate(id, prompt, 8, p.wait(id).kv), prompt, 8))
        mix.all_right(f"tokens are right{when}", judged)

        prompts = [(mix.name(), mix.prompt(190)) for _ in range(3)]  # six blocks each, and four more while they decode
        requests = {id: (prompt, 100, mix.rig.prefill(p, id, prompt)) for id, prompt in prompts}
        number = crowd(mix, d, requests, prompts[-1][0] if aborted else None)
        mix.promise(f"D preempts a request that it has loaded{when}", number > 0, f"{number:g} times", by="all")
        judged = [mix.judge(d.wait(id), *requests[id][:2]) for id, _ in (prompts[:-1] if aborted else prompts)]
        mix.all_right(f"its tokens are right{when}", judged)
        nothing_left(mix, p, d, when)
    mix.retire("small")


def nothing_left(mix, p, d, when=""):
    """Blocks, leases and tracks of all requests are gone."""
    for engine in (p, d):
        back = engine.wait_stat(lambda s: s["held"] == s["requests"] == 0, rig.LEASE + 2 * rig.EXTENSION + 2)
        left = engine.ask("left")["left"]
        mix.promise(f"{engine.name[0].upper()} keeps nothing of any{when}", back is not None and not left,
                    f"{engine.stat()['held']} blocks, {left or 'no lease'}" if back is None or left else f"after {back:.2f} s", by="all")


WINDOW = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64}


@scene("a model whose second layer sees a window: two groups of blocks")
def windows(mix):
    p, d = mix.pair("windows", changes=WINDOW, tokens_max=1300)
    single = len(mix.rig.prefill(p, mix.name(), mix.prompt(300))["remote_block_ids"][1])
    mix.promise("the window's group hands over its end", single == 3, f"{single} of 10 blocks", by="all")
    prompts = {mix.name(): mix.prompt(n) for n in (20, 64, 100, 300, 1000)}
    judged = [mix.judge(mix.rig.route(p, d, id, prompt, 40), prompt, 40, WINDOW) for id, prompt in prompts.items()]
    mix.all_right("tokens are those of a single engine", judged)
    start = mix.prompt(256)
    judged = []
    for length in (300, 290, 257):
        prompt = mix.prompt(length, start)
        judged.append(mix.judge(mix.rig.route(p, d, mix.name(), prompt, 40), prompt, 40, WINDOW))
    mix.all_right("a beginning that both have in their caches: they are, too", judged)
    prompt, before = mix.prompt(300), p.stat()["held"]
    id = mix.queue(prompt, p=p, d=d)
    held = p.stat()["held"] - before
    time.sleep(1.5 * rig.INTERVAL)
    d.stop()
    gone = p.wait_stat(lambda s: s["held"] == 0, rig.LEASE + 2 * rig.EXTENSION + 2)
    mix.promise("D is stopped past the lease: P takes the blocks of both groups back", gone is not None,
                f"{held} blocks, never" if gone is None else f"{held} blocks, after {gone:.1f} s", by="all")
    mix.overwrite(p)
    d.go_on()
    d.ask("slots", number=None)
    mix.never_wrong([mix.judge(d.wait(id), prompt, 8, WINDOW)])
    nothing_left(mix, p, d)
    mix.retire("windows")


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
