"""Requests as they should be: whatever the length, and whatever either side has cached."""

from . import scene

LENGTHS = (1, 31, 32, 33, 63, 64, 65, 127, 300, 511)  # blocks are 32 tokens


@scene("ten prompts of different lengths")
def lengths(mix):
    prompts = {mix.name(): mix.prompt(n) for n in LENGTHS}
    one_by_one = {id: mix.judge(mix.rig.route(mix.p, mix.d, id, prompt, 8), prompt, 8)[0] for id, prompt in prompts.items()}
    mix.promise("one after the other, tokens are those of a single engine", not any(one_by_one.values()), right(one_by_one), by="all")

    prompts = {mix.name(): mix.prompt(n) for n in LENGTHS}
    for id, prompt in prompts.items():
        mix.d.submit(id, prompt, 24, mix.rig.prefill(mix.p, id, prompt))
    at_once = {id: mix.judge(mix.d.wait(id), prompt, 24)[0] for id, prompt in prompts.items()}
    mix.promise("all at once, they are, too", not any(at_once.values()), right(at_once), by="all")
    back = mix.p.wait_stat(lambda s: s["held"] == 0, 3)
    mix.promise("P has its blocks back when D has read", back is not None, "at once" if back is not None else mix.p.stat(), by="all")


@scene("prompts that share a beginning")
def prefixes(mix):
    start = mix.prompt(96)  # three blocks
    cached = []
    for length, what in ((150, "none"), (150, "partial"), (97, "all but a token"), (96, "all but a block")):
        prompt, id = mix.prompt(length, start), mix.name()
        answer = mix.rig.route(mix.p, mix.d, id, prompt, 8)
        cached.append((what, mix.judge(answer, prompt, 8)))
    mix.promise("with one in D's cache, tokens are right", not any(wrong for _, (wrong, _) in cached),
                "; ".join(f"{what}: {text}" for what, (_, text) in cached), by="all")
    prompt = mix.prompt(128)
    twice = [mix.judge(mix.rig.route(mix.p, mix.d, mix.name(), prompt, 8), prompt, 8) for _ in range(2)]
    mix.promise("the same prompt again, in both caches, too", not any(w for w, _ in twice), "; ".join(t for _, t in twice), by="all")
    answer = mix.p.generate(mix.name(), prompt, 8)
    wrong, text = mix.judge(answer, prompt, 8)
    mix.promise("P answers from its own cache rightly", not wrong, text, by="all")
    hits = {k: v for k, v in mix.d.metrics().items() if k.startswith("vllm:prefix_cache_hits")}
    mix.promise("some of D's blocks were local", sum(hits.values()) > 0, f"{sum(hits.values()):g} tokens", by="nobody")


def right(results):
    return f"{sum(not wrong for wrong in results.values())} of {len(results)} prompts"
