"""P is gone and comes back as another process with the same ports and engine id."""

import time

import rig
from mix import Judged

from . import scene


@scene("P is killed and started again with the same ports and engine id, requests of the old one wait in D's queue")
def p_restarted(mix):
    mix.fresh()  # D knows the old one
    prompts = [mix.prompt(n) for n in (200, 64)]
    ids = [mix.queue(prompt) for prompt in prompts]
    time.sleep(1.5 * rig.INTERVAL)
    mix.replace(mix.p)
    mix.overwrite()
    mix.d.ask("slots", number=None)
    results, late = [], 0
    for id, prompt in zip(ids, prompts):
        try:
            results.append(mix.judge(mix.d.wait(id, 15), prompt, 8))
        except (TimeoutError, rig.Died) as why:
            late += 1
            results.append(Judged(False, 0, str(why)))
    mix.never_wrong(results)
    mix.promise("the old one's requests end", not late, f"{len(ids) - late} of {len(ids)} within 15 s", by="d")
    judged = mix.fresh(limit=15)
    mix.all_right("the new P is read from", [judged], by="both")  # a stock P names no boot: until it is met anew all requests count as the old one's
    if not judged.right:
        began = time.monotonic()
        while not judged.right and time.monotonic() - began < 15:
            judged = mix.fresh(limit=15)
        mix.promise("the pair heals by itself", judged.right, f"{judged.text}, tried for {time.monotonic() - began:.0f} s", by="d")
    if not judged.right:
        mix.replace(mix.d)
