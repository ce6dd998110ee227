"""A prefill and a decode engine of two kinds, and what a scene finds out about them.

A promise is a sentence, what was measured, and who must keep it: a scene is written once, and for kinds that need not keep the
promise the measurement is the stock engine's column in docs/vllm.md.
"""

import os
import random
import time
from dataclasses import asdict, dataclass
from typing import NamedTuple

import rig

KEEPERS = {
    "all": lambda p, d: True,
    "p": lambda p, d: p == "kvlease",
    "d": lambda p, d: d == "kvlease",
    "both": lambda p, d: p == d == "kvlease",
    "p of a stock d": lambda p, d: p == "kvlease" and d == "stock",
    "nobody": lambda p, d: False,
}
STATISTICS = 8  # s within which P must have said what it counted
PROVEN = rig.LEASE - rig.LEASE // 3 - rig.INTERVAL  # s for which a kvlease D holds a stock lease for certain without an answer of its P (handover_max)
GONE = rig.LEASE + 2 * rig.EXTENSION + 4  # s after which no lease of any kind can be left


class Judged(NamedTuple):
    right: bool
    wrong: int  # tokens
    text: str


@dataclass
class Finding:
    scene: str
    p: str
    d: str
    promise: str
    keeper: str
    required: bool
    held: bool
    seen: str
    final: bool = False  # broken by wrong tokens: no second try excuses that
    excused: bool = False  # held when the scene was played once more

    @property
    def verdict(self):
        if self.required:
            return "ok" if self.held else "again" if self.excused else "BROKEN"
        return "holds" if self.held else "seen"

    def row(self):
        return {**asdict(self), "verdict": self.verdict}


class Mix:
    """Engines stay up over scenes; one that has died or does not come to rest is started again."""

    def __init__(self, r, p_kind, d_kind, seed, say=print):
        self.rig, self.kinds, self.say = r, (p_kind, d_kind), say
        self.random = random.Random(seed)
        self.findings, self.scene, self.names = [], "", 0
        self.pairs, self.last_kv = {}, None

    def start(self, label="", p=None, d=None, **both):
        """The pair of a label begins to start, with other settings than the usual ones if they are given."""
        if label not in self.pairs:
            self.pairs[label] = [
                self.rig.engine(f"{side}{label}", kind, wait=False, **{
                    "blocks": 96, "engine_id": f"{side}{label}-of-{'-'.join(self.kinds)}-{os.getpid()}", **both, **(own or {})})
                for side, kind, own in zip("pd", self.kinds, (p, d))
            ]

    def side(self, i, label=""):
        """One engine of a pair, started again if it has died. The other one is left as it is."""
        engine = self.pairs[label][i]
        if not engine.alive and engine.pid:
            engine = self.pairs[label][i] = self.rig.again(engine, wait=False)
        return engine.ready()

    def pair(self, label="", **settings):
        self.start(label, **settings)
        return self.side(0, label), self.side(1, label)

    @property
    def p(self):
        self.start()
        return self.side(0)

    @property
    def d(self):
        self.start()
        return self.side(1)

    def replace(self, engine, label="", wait=True):
        """A new process in the place of one of a pair."""
        engines = self.pairs[label]
        new = self.rig.again(engine, wait)
        engines[engines.index(engine)] = new
        return new

    def retire(self, label):
        for e in self.pairs.pop(label, ()):
            e.quit()
            self.rig.engines.remove(e)

    def rest(self, label=""):
        """Both engines without requests, leases and special settings."""
        for engine in self.pair(label):
            try:
                for cmd in ("resume", "resume_scheduler"):
                    engine.ask(cmd)
                engine.ask("pace", seconds=0)
                engine.ask("slots", number=None)
                if engine.wait_stat(lambda s: s["requests"] == s["held"] == 0, GONE) is None:
                    stat = engine.stat()
                    self.say(f"  ({engine.name} kept {stat['held']} blocks and {stat['statuses']} and is started again)")
                    self.replace(engine, label)
            except (rig.Died, TimeoutError) as why:
                self.say(f"  ({why}; it is started again)")
                self.replace(engine, label)

    # ---- requests ----

    def prompt(self, length, prefix=()):
        """Bytes of chance after a beginning."""
        return list(prefix) + [self.random.randrange(256) for _ in range(length - len(prefix))]

    def name(self, stem="x"):
        self.names += 1
        return f"{stem}{self.names}"

    def queue(self, prompt, max_tokens=8, id=None, p=None, d=None):
        """P has computed the prompt, D has the request in its queue and no slot for it. Returns its id."""
        p, d, id = p or self.p, d or self.d, id or self.name()
        d.ask("slots", number=0)
        self.last_kv = self.rig.prefill(p, id, prompt)
        d.submit(id, prompt, max_tokens, self.last_kv)
        return id

    def overwrite(self, p=None):
        """Other prompts go through all of P's free blocks."""
        p = p or self.p
        size, blocks = p.spec.get("block_size", 32), p.stat()["free_blocks"]
        each = min(32, max(1, blocks - 1))
        for _ in range(blocks // each + 2):
            p.generate(self.name("fill"), self.prompt(each * size), 1)

    def judge(self, answer, prompt, max_tokens, changes=None):
        """An answer beside the single engine's. A request that was refused has no wrong token, and is not right."""
        right = self.rig.reference(prompt, max_tokens, changes)
        wrong = sum(a != b for a, b in zip(answer.tokens, right))
        if answer.reason not in ("length", "stop"):
            return Judged(False, wrong, f"finish_reason {answer.reason}, {len(answer.tokens)} tokens")
        wrong += abs(len(right) - len(answer.tokens))
        text = f"{wrong} of {len(right)} tokens wrong, finish_reason {answer.reason}" if wrong else f"{len(right)} tokens right"
        return Judged(not wrong, wrong, text)

    def fresh(self, p=None, d=None, limit=20):
        """A new request by way of both. What a busy machine has held up for so long that the lease of a stock P is not proven any more is
        refused, and must be: then another one."""
        p, d = p or self.p, d or self.d
        judged, took = self._fresh(p, d, limit)
        if (p.kind, d.kind) == ("stock", "kvlease") and took > PROVEN and not judged.right and not judged.wrong:
            again, _ = self._fresh(p, d, limit)
            return again._replace(text=f"{again.text}; one before that was not proven after {took:.1f} s")
        return judged

    def _fresh(self, p, d, limit):
        prompt, id = self.prompt(100), self.name("fresh")
        began = time.monotonic()
        try:
            answer = d.generate(id, prompt, 8, self.rig.prefill(p, id, prompt, limit=limit), limit=limit)
        except (rig.Died, TimeoutError) as why:
            return Judged(False, 0, str(why)), 0
        judged, took = self.judge(answer, prompt, 8), answer.t - began
        return judged._replace(text=f"{judged.text} after {took:.2f} s"), took

    def late(self):
        """Completions that P has had after the lease had ended, as it tells Prometheus."""
        return self.p.metrics().get("vllm:nixl_num_notifications_after_expiry_total", 0)

    def counts_late(self, before, expected, by="p of a stock d"):
        """Statistics leave an engine with its steps, those of kvlease every few seconds: requests are sent until the number is there."""
        until = time.monotonic() + (STATISTICS if KEEPERS[by](*self.kinds) else 0)
        while (got := self.late() - before) < expected and time.monotonic() < until:
            self.fresh()
            time.sleep(0.5)
        self.promise("P counts each late read", got == expected, f"{got:g} of {expected}", by)

    def wired(self, p=None):
        """P has a connection that falls with D's process, if this pair has such: one that dies before it is up can only be timed out."""
        if self.kinds == ("kvlease", "kvlease"):
            p = p or self.p
            until = time.monotonic() + rig.ANSWER
            while not p.ask("wires")["number"]:
                if time.monotonic() > until:
                    raise TimeoutError(f"{p.name} has no wire of any reader after {rig.ANSWER} s")
                time.sleep(0.02)

    # ---- findings ----

    def promise(self, text, held, seen, by="both", final=False):
        finding = Finding(self.scene, *self.kinds, text, by, KEEPERS[by](*self.kinds), bool(held), str(seen), final)
        self.findings.append(finding)
        self.say(f"  {finding.verdict:<7}{text}: {finding.seen}")
        return finding.held

    def all_right(self, text, judged, by="all"):
        self.promise(text, all(j.right for j in judged), told(judged), by, any(j.wrong for j in judged))

    def never_wrong(self, judged, when="", by="both"):
        self.promise(f"{when}never a wrong token", not any(j.wrong for j in judged), told(judged), by, True)


def told(judged):
    """What was not right, each; the rest as a number."""
    judged = list(judged)
    other = [j.text for j in judged if not j.right]
    return "; ".join([f"{len(judged) - len(other)} of {len(judged)} right", *other]) if len(judged) > 1 else judged[0].text
