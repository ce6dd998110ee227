"""Parameters as a dict: the extension writes plain ones itself, and must be understood as json's text of them is."""

import collections
import enum
import json
import random
import sys

import pytest

import kvlease as k

PARAMS = {
    "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3], [7]], "remote_engine_id": "P", "remote_request_id": "r", "remote_host": "h",
    "remote_port": 5600, "tp_size": 2, "remote_num_tokens": 64, "kvlease": {"v": 1, "epoch": "00000000000000ff", "slot": 3, "g": 4, "key": "000000000000000a"},
}  # fmt: skip
ATTRIBUTES = ("id", "engine_id", "host", "port", "tp_size", "pp_size", "tokens", "groups", "native", "epoch", "slot", "generation", "key", "expires_ns")


def read(params):
    """What is understood, or why not."""
    try:
        remote = k.params_read(params)
    except k.Error as e:
        return type(e), str(e)
    return [getattr(remote, name) for name in ATTRIBUTES]


class Text(str):
    pass


class Number(enum.IntEnum):
    SEVEN = 7


TEXTS = ["", "a", "a" * 3000, '"', "\\", "\\\"", "\x00", "\x1f\n\t", "\x7f", "ä", "漢字" * 400, "😀", "\ud800", "x\udc00", " ", "\b\f\r", Text("own"), "," * 1500]
NUMBERS = [0, 1, -1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**30, 10**5000, True, False, Number.SEVEN]
FLOATS = [0.0, -0.0, 1.0, 1e300, 5e-324, 0.1, 1e16, 123456.789, 1e22, sys.float_info.max, float("inf"), float("-inf"), float("nan")]
OTHERS = [None, [], {}, (), [[]], [[], [1]], ([1], (2,)), [None], {"": None}, {1: 2}, {None: 1}, {Text("k"): 1}, collections.OrderedDict(a=1), {"a": {"b": [{"c": ()}]}}]
DEEP = [[]]
for _ in range(30):
    DEEP = [DEEP]


@pytest.mark.parametrize("key", [*PARAMS, "remote_blocks_expiry_time", "pp_size", "of nobody"])
@pytest.mark.parametrize("values", [TEXTS, NUMBERS, FLOATS, OTHERS, [DEEP, [DEEP], [[1] * 3000], [[1]] * 40]], ids=["texts", "numbers", "floats", "others", "large"])
def test_a_dict_is_understood_as_its_text(key, values):
    for value in values:
        params = {**PARAMS, key: value}
        try:
            text = json.dumps(params)
        except ValueError:  # more digits than Python makes a text of
            with pytest.raises(k.Invalid):
                k.params_read(params)
            continue
        want, got = read(text), read(params)
        assert got == want or want[0] is got[0] is k.Invalid, (key, value if len(repr(value)) < 80 else type(value))


def test_a_key_of_a_dict_is_written_as_any_text():
    for key in TEXTS:
        params = {**PARAMS, key: 1, "nested": {key: [key]}}
        assert read(params) == read(json.dumps(params)), key


def test_random_dicts_are_understood_as_their_text():
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)

    def value(depth):
        kind = rng.randrange(7 if depth < 4 else 5)
        if kind == 0:
            return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0xD800), rng.randrange(0x10000, 0x110000)))) for _ in range(rng.randrange(20)))
        if kind == 1:
            return rng.randrange(-(2 ** rng.randrange(1, 64)), 2 ** rng.randrange(1, 64))
        if kind == 2:
            return rng.choice((None, True, False))
        if kind == 3:
            return rng.uniform(-1, 1) * 10.0 ** rng.randrange(-30, 30)
        if kind == 4:
            return rng.choice(TEXTS)
        if kind == 5:
            return rng.choice((list, tuple))(value(depth + 1) for _ in range(rng.randrange(5)))
        return {value(9) if rng.random() < 0.1 else f"k{i}": value(depth + 1) for i in range(rng.randrange(5))}

    for _ in range(3000):
        params = {**PARAMS, "remote_request_id": rng.choice(TEXTS) or "r", **{f"key {i}": value(0) for i in range(rng.randrange(6))}}
        if rng.random() < 0.3:
            params[rng.choice([*PARAMS])] = value(0)
        want, got = read(json.dumps(params)), read(params)
        assert got == want or want[0] is got[0] is k.Invalid, params
