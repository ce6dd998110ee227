"""kv_transfer_params that no router should send, in requests from outside."""

import rig

from . import scene

ENDS = 12  # s within which a request whose parameters are bad must have ended, one way or the other


def without(*keys):
    return lambda kv: {k: v for k, v in kv.items() if k not in keys}


def with_(**changes):
    return lambda kv: {**kv, **changes}


BAD = [
    ("no block ids", without("remote_block_ids")), ("no host", without("remote_host")),
    ("no request id", without("remote_request_id")), ("no engine id", without("remote_engine_id")),
    ("no tp_size", without("tp_size")), ("block ids of text", with_(remote_block_ids=[["a", "b"]])),
    ("block ids that are no lists", with_(remote_block_ids=[1, 2])),
    ("blocks that P does not have", with_(remote_block_ids=[[100000, 100001]])),
    ("negative blocks", with_(remote_block_ids=[[-1, -2]])),
    ("more blocks than the prompt has", with_(remote_block_ids=[list(range(1, 60))])), ("fewer", with_(remote_block_ids=[[1]])),
    ("two groups", with_(remote_block_ids=[[1, 2], [3, 4]])), ("no group", with_(remote_block_ids=[])),
    ("a port of text", with_(remote_port="high")), ("port 0", with_(remote_port=0)),
    ("a port that nobody listens on", with_(remote_port=1, remote_engine_id="nobody")),
    ("a host that does not resolve", with_(remote_host="no.such.host.invalid", remote_engine_id="nowhere")),
    ("another engine's id", with_(remote_engine_id="someone-else")), ("tp_size 0", with_(tp_size=0)),
    ("tp_size 64", with_(tp_size=64)), ("tp_size of text", with_(tp_size="one")),
    ("an id of 2,000 characters", with_(remote_request_id="i" * 2000)), ("an id that is a number", with_(remote_request_id=7)),
    ("all keys null", lambda kv: {k: None for k in kv} | {"do_remote_prefill": True}),
    ("only the flag", lambda kv: {"do_remote_prefill": True}), ("both flags", with_(do_remote_decode=True)),
    ("a list", lambda kv: [kv]), ("text", lambda kv: "kv"), ("unknown keys", with_(tomorrow={"a": [1]})),
]
# What ends stock engines is known; each costs a start, so of the others a stock D is shown only these.
STOCK = ("no block ids", "no host", "blocks that P does not have", "a port that nobody listens on", "unknown keys")


# Blocks that P has and that are another request's.
UNKNOWABLE = ("more blocks than the prompt has", "fewer", "two groups")
SLOW = ("a port that nobody listens on", "a host that does not resolve")  # D tries for a while: begun first, waited for last


@scene("bad parameters of a request to D", about="d")
def to_d(mix):
    cases = [c for c in BAD if mix.kinds[1] != "stock" or c[0] in STOCK]
    cases.sort(key=lambda c: c[0] not in SLOW)
    fell, parked, odd, right, refused, begun = [], [], [], 0, 0, {}

    def end(what):
        nonlocal right, refused
        d, id, prompt = begun.pop(what)
        try:
            answer = d.wait(id, ENDS)
        except TimeoutError:
            parked.append(what)
            d.ask("abort", id=id)
            return
        judged = mix.judge(answer, prompt, 8)
        if judged.wrong and what not in UNKNOWABLE:
            odd.append(f"{what}: {judged.text}")
        right, refused = right + judged.right, refused + (answer.reason not in ("length", "stop"))

    for what, spoil in cases:
        prompt, id = mix.prompt(100), mix.name()
        kv, d = spoil(mix.rig.prefill(mix.p, id, prompt)), mix.d
        try:
            d.submit(id, prompt, 8, kv)
            begun[what] = d, id, prompt
            if what not in SLOW:
                end(what)
        except ValueError:
            refused += 1  # before it entered
        except rig.Died:
            fell.append(f"{what} ({str(d.why)[:60]})")
    for what in list(begun):
        try:
            end(what)
        except rig.Died:
            refused += 1  # with the engine
    mix.promise(f"D survives each of {len(cases)}", not fell, "all" if not fell else "ended by: " + "; ".join(fell), by="d")
    text = f"{right} with right tokens, {refused} refused" + (f", parked: {', '.join(parked)}" if parked else "")
    mix.promise(f"each request ends within {ENDS} s", not parked, text, by="d")
    mix.promise("never a wrong token", not odd, "; ".join(odd) or "none", by="d")
    mix.all_right("the next request is served", [mix.fresh()])


@scene("a second turn's parameters to a P that has no such mode", about="p")
def to_p(mix):
    prompt, id = mix.prompt(100), mix.name()
    kv = {
        **rig.PREFILL, "remote_block_ids": [[1, 2, 3]], "remote_engine_id": mix.d.spec["engine_id"], "remote_request_id": "turn-1",
        "remote_host": "127.0.0.1", "remote_port": mix.d.spec["port"], "tp_size": 1, "remote_num_tokens": 96, "remote_blocks_expiry_time": None,
    }
    p, free = mix.p, mix.p.stat()["free_blocks"]
    try:
        p.submit(id, prompt, 1, kv)
        answer = p.wait(id, ENDS)
        ended, text = True, f"finish_reason {answer.reason}"
    except ValueError as why:
        ended, text = True, f"refused: {why}"
    except TimeoutError:
        ended, text = False, f"parked with {free - p.stat()['free_blocks']} blocks"
        p.ask("abort", id=id)
    except rig.Died as why:
        ended, text = False, f"P ended: {why}"
    mix.promise(f"the request ends within {ENDS} s", ended, text, by="p")
