"""Requests as they should be: whatever the length, and whatever either side has cached."""

from . import scene

LENGTHS = (1, 31, 32, 33, 63, 64, 65, 127, 300, 511)  # blocks are 32 tokens


@scene("ten prompts of different lengths")
def lengths(mix):
    prompts = {mix.name(): mix.prompt(n) for n in LENGTHS}
    one_by_one = [mix.judge(mix.rig.route(mix.p, mix.d, id, prompt, 8), prompt, 8) for id, prompt in prompts.items()]
    mix.all_right("one after the other, tokens are those of a single engine", one_by_one)

    prompts = {mix.name(): mix.prompt(n) for n in LENGTHS}
    for id, prompt in prompts.items():
        mix.d.submit(id, prompt, 24, mix.rig.prefill(mix.p, id, prompt))
    mix.all_right("all at once, they are, too", [mix.judge(mix.d.wait(id), prompt, 24) for id, prompt in prompts.items()])
    back = mix.p.wait_stat(lambda s: s["held"] == 0, 3)
    mix.promise("P has its blocks back when D has read", back is not None, "at once" if back is not None else mix.p.stat(), by="all")


@scene("prompts that share a beginning")
def prefixes(mix):
    start = mix.prompt(96)  # three blocks
    for length, what in ((150, "nothing"), (150, "three blocks of five"), (97, "all but a token"), (96, "all but a block")):
        prompt, id = mix.prompt(length, start), mix.name()
        answer = mix.rig.route(mix.p, mix.d, id, prompt, 8)
        mix.all_right(f"D has {what} in its cache: tokens are right", [mix.judge(answer, prompt, 8)])
    prompt = mix.prompt(128)
    twice = [mix.judge(mix.rig.route(mix.p, mix.d, mix.name(), prompt, 8), prompt, 8) for _ in range(2)]
    mix.all_right("the same prompt again, in both caches: they are, too", twice)
    mix.all_right("P answers from its own cache rightly", [mix.judge(mix.p.generate(mix.name(), prompt, 8), prompt, 8)])
    hits = {k: v for k, v in mix.d.metrics().items() if k.startswith("vllm:prefix_cache_hits")}
    mix.promise("some of D's blocks were local", sum(hits.values()) > 0, f"{sum(hits.values()):g} tokens", by="nobody")
