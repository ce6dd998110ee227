"""Two turns: D keeps what it has decoded, P reads it for the next prompt of the same talk."""

import rig
from mix import Judged

from . import scene

KEPT = 12  # decoder_kv_blocks_ttl, s; stock declines a second turn whose blocks have less than 5 s left
ENDS = 10  # s within which P must have answered
TURNED = {"do_remote_decode": True, "do_remote_prefill": False}


def talk(mix, p, d, length=150):
    """A first turn: (its prompt and answer, D's parameters)."""
    prompt, id = mix.prompt(length), mix.name("turn")
    answer = mix.rig.route(p, d, id, prompt, 40)
    return prompt + answer.tokens, mix.judge(answer, prompt, 40), answer.kv


def second(mix, p, d, said, kv, max_tokens=8):
    prompt, id = mix.prompt(len(said) + 50, said), mix.name("turn")
    try:
        turn = p.generate(id, prompt, 1, {**kv, **TURNED}, limit=ENDS)
    except (TimeoutError, rig.Died) as why:
        return Judged(False, 0, str(why))
    if not turn.kv:
        return Judged(False, 0, f"P gave no parameters, finish_reason {turn.reason}")
    return mix.judge(d.generate(id, prompt, max_tokens, turn.kv), prompt, max_tokens)


@scene("two turns of a talk")
def two_turns(mix):
    both = {"extra": {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": KEPT}, "policy": "recompute", "prefix_caching": False}
    p, d = mix.pair("2", **both)
    said, first, kv = talk(mix, p, d)
    mix.all_right("first turn: tokens are right", [first])
    before = p.metrics().get("vllm:external_prefix_cache_hits_total", 0)
    mix.all_right("second turn: tokens are right", [second(mix, p, d, said, kv)])
    read = p.metrics().get("vllm:external_prefix_cache_hits_total", 0) - before
    mix.promise("P has read D's blocks for it", read > 0, f"{read:g} tokens", by="all")

    said, _, kv = talk(mix, p, d)
    back = d.wait_stat(lambda s: s["held"] == 0, KEPT + rig.EXTENSION + 4)
    mix.promise(f"what is not used is D's own again after {KEPT} s", back is not None,
                "never" if back is None else f"after {back:.1f} s", by="all")
    mix.overwrite(d)
    judged = second(mix, p, d, said, kv)
    mix.never_wrong([judged], "a second turn after that, D has used the blocks again: ")
    mix.all_right("and it is answered", [judged], by="p")

    said, _, kv = talk(mix, p, d)
    d.kill()
    d = mix.replace(d, "2")
    judged = second(mix, p, d, said, kv)
    mix.never_wrong([judged], "D is killed and started again between the turns: ")
    mix.all_right("and it is answered, too", [judged], by="p")
    mix.retire("2")
