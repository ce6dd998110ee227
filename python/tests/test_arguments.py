"""Wrong arguments of every call: a clear exception, and nothing changed."""

import array
import json
import math

import kvlease as k
import lab
import pytest

PARAMS = {"remote_block_ids": [[1]], "remote_engine_id": "P", "remote_request_id": "r", "remote_host": "h", "remote_port": 1}
REMOTE = k.params_read(PARAMS)


@pytest.fixture(scope="module")
def engine():
    engine = lab.Engine("P", ring_bytes=1 << 20)
    yield engine
    engine.close()


# Calls of a producer, complete with arguments that would be taken.
HOOKS = {
    "expect": ["id"],
    "grant": ["id", [[1]], 0, 0.0, 0, 0, False, None],
    "cancel": [1 << 32],
    "revoke": [1 << 32],
    "pressure": [1],
    "track": [1 << 32, REMOTE, "local", 0],
    "untrack": [1 << 32],
    "reject": [1 << 32, REMOTE],
    "read": [1 << 32, [[1]], [[1]]],
}
CALLS = {
    "pause": [0.0],
    "poll": [1],
    "close": [0.0],
    "drain": [0.0],
    "register": [[]],
    "engine_add": ["Q", 1, "", 0, 1, 0],
    "engine_remove": [1 << 32],
    "engine_handshake": [1 << 32, 0, b"map"],
    "handshake_get": [0],
    "handshake_set": [0, b"map"],
    "delta_take": [0],
    "delta_put": [0, b"data"],
    "delta_lost": [0],
    "params": [1 << 32, "id", [[1]], 0, 0.0, False],
    "params_key": [1 << 32],
}
# By the value of a good argument: what is no such argument, and the exception.
WRONG = {
    int: [(-1, OverflowError), (1 << 64, OverflowError), (1 << 200, OverflowError), (1.0, TypeError), ("1", TypeError),
          (None, TypeError), (b"1", TypeError), ([1], TypeError)],
    float: [(-1.0, ValueError), (math.nan, ValueError), (math.inf, OverflowError), (1e300, OverflowError), ("1", TypeError),
            (None, TypeError), (-1, ValueError), (1 << 2000, OverflowError)],
    str: [(1, TypeError), (None, TypeError), (bytearray(b"id"), TypeError), (["id"], TypeError), ("\ud800", UnicodeEncodeError)],
    bytes: [("map", TypeError), (1, TypeError), (None, TypeError), ([1], TypeError)],
    list: [(None, TypeError), (1, TypeError), ("12", TypeError), (b"12", TypeError)],
    k.Remote: [(None, TypeError), (PARAMS, TypeError), ("remote", TypeError), (object(), TypeError)],
}


def wrong_calls(calls):
    for name, good in calls.items():
        for place, value in enumerate(good):
            for wrong, exception in WRONG.get(type(value), []):
                yield name, [*good[:place], wrong, *good[place + 1:]], exception


def shown(case):
    name, arguments, _ = case
    return f"{name}{arguments!r}"[:80]


@pytest.mark.parametrize("case", wrong_calls(HOOKS), ids=shown)
def test_a_hook_names_a_wrong_argument(engine, case):
    name, arguments, exception = case
    with pytest.raises(exception) as raised:
        getattr(engine.producer, name)(*arguments)
    assert type(raised.value) is exception and str(raised.value)


@pytest.mark.parametrize("case", wrong_calls(CALLS), ids=shown)
def test_a_call_names_a_wrong_argument(engine, case):
    name, arguments, exception = case
    with pytest.raises((exception, AttributeError) if name == "register" else exception) as raised:
        getattr(engine.context, name)(*arguments)
    assert str(raised.value)
    assert not engine.context.closed


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_counts_its_arguments(engine, name):
    hook = getattr(engine.producer, name)
    for arguments in ([], [*HOOKS[name], 1]):
        with pytest.raises(TypeError):
            hook(*arguments)
    with pytest.raises(TypeError):
        hook(*HOOKS[name], nonsense=1)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_counts_its_arguments(engine, name):
    call = getattr(engine.context, name)
    if name not in ("poll", "close", "handshake_get"):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        call(*CALLS[name], 1)
    with pytest.raises(TypeError):
        call(nonsense=1)


def test_keywords_find_their_places(engine):
    lease = engine.producer.grant(groups=[[1]], id="keywords", user=3, expected=engine.producer.expect("keywords"))
    engine.producer.cancel(lease)
    with pytest.raises(TypeError, match="twice"):
        engine.producer.grant("id", [[1]], id="id")
    with pytest.raises(TypeError, match="groups is missing"):
        engine.producer.grant("id", user=1)
    with pytest.raises(TypeError, match="'usr'"):
        engine.producer.grant("id", [[1]], usr=1)
    with pytest.raises(TypeError, match="at most 8"):
        engine.producer.grant(*range(9))


@pytest.mark.parametrize("name, arguments, field", [
    ("pressure", [1 << 32], "blocks"), ("grant", ["id", [[1]], 1 << 32], "tokens"), ("grant", ["id", [[1 << 32]]], r"groups\[0\]\[0\]"),
    ("grant", ["id", [[1], [2, -1]]], r"groups\[1\]\[1\]"), ("read", [1, [([1], 1 << 32)], [[1]]], "first"),
    ("track", [1, REMOTE, "local", -1], "user")
])
def test_numbers_have_the_width_of_their_field(engine, name, arguments, field):
    with pytest.raises(OverflowError, match=field):
        getattr(engine.producer, name)(*arguments)


@pytest.mark.parametrize("id", ["", b"", "x" * (k.ID_MAX + 1), b"x" * (k.ID_MAX + 1), "é" * (k.ID_MAX // 2 + 1)])
def test_an_id_has_1_to_1024_bytes(engine, id):
    for call in (lambda: engine.producer.expect(id), lambda: engine.producer.grant(id, [[1]])):
        with pytest.raises(k.Invalid, match="1 to 1024 bytes") as raised:
            call()
        assert raised.value.status == -2 and raised.value.name == "KVL_ERR_INVALID"
    if len(id) > 1:
        with pytest.raises(k.Invalid, match="local_id"):
            engine.producer.track(1 << 32, REMOTE, id)


@pytest.mark.parametrize("group", [
    [1, 2, 3], (1, 2, 3), range(1, 4), array.array("i", [1, 2, 3]), array.array("I", [1, 2, 3]), array.array("l", [1, 2, 3]),
    array.array("Q", [1, 2, 3]), memoryview(array.array("q", [1, 9, 2, 9, 3]))[::2], ([1, 2, 3], 0), (array.array("i", [1, 2, 3]), 0),
    ((1, 2, 3), 0), [True, 2, 3]
], ids=repr)
def test_block_ids_come_in_many_forms(engine, group):
    lease = engine.producer.grant("forms", [group])
    assert k.params_read(engine.context.params(lease, "forms", (group,))).groups == [[1, 2, 3]]
    engine.producer.cancel(lease)


def test_numpy_arrays_are_block_ids(engine):
    import numpy
    for form in ("int32", "uint32", "int64", "uint64"):
        ids = numpy.array([[1, 2, 3], [4, 5, 6]], form)
        lease = engine.producer.grant("numpy", ids)
        assert k.params_read(engine.context.params(lease, "numpy", ids)).groups == [[1, 2, 3], [4, 5, 6]]
        assert k.params_read(engine.context.params(lease, "numpy", [list(ids[0]), (ids[1], numpy.int64(0))])).groups[0] == [1, 2, 3]
        engine.producer.cancel(lease)


@pytest.mark.parametrize("group, exception", [
    (array.array("i", [1, -1]), OverflowError), (array.array("q", [1 << 32]), OverflowError), (array.array("Q", [1 << 63]), OverflowError),
    (array.array("d", [1.0]), TypeError), (array.array("h", [1]), TypeError), (b"123", TypeError), ("123", TypeError),
    (bytearray(b"123"), TypeError), ({1: 2}, (TypeError, KeyError)), (None, TypeError), (7, TypeError), ([1, "2"], TypeError),
    ([1, None], TypeError), ([1.5], TypeError), (([1], -1), OverflowError), (([1], "0"), TypeError), (([1], None), TypeError),
    (memoryview(array.array("i", [1, 2, 3, 4])).cast("B").cast("i", (2, 2)), TypeError)
], ids=repr)
def test_what_is_no_sequence_of_block_ids_is_refused(engine, group, exception):
    with pytest.raises(exception):
        engine.producer.grant("id", [[1], group])


def test_groups_stand_in_a_sequence(engine):
    for groups in ({1}, {1: [1]}, iter([[1]]), 1, None):
        with pytest.raises(TypeError, match="groups"):
            engine.producer.grant("id", groups)


def test_too_many_groups_are_refused(engine):
    with pytest.raises(ValueError, match="at most 4096"):
        engine.producer.grant("id", [[]] * 4097)
    engine.producer.cancel(engine.producer.grant("groups", [[]] * 4096))


def test_blocks_outside_the_cache_are_refused(engine):
    with pytest.raises(k.Invalid, match=r"groups\[0\].ids\[1\]: block 64 of 64"):
        engine.producer.grant("id", [[0, lab.BLOCKS]])


def test_both_sides_of_a_read_have_as_many_groups(engine):
    with pytest.raises(ValueError, match="1 and 2 groups"):
        engine.producer.read(1 << 32, [[1]], [[1], [2]])
    with pytest.raises(k.Error):
        engine.producer.read(1 << 32, [[1]], [[1]])


@pytest.mark.parametrize("change, exception", [
    ({"addr": -1}, OverflowError), ({"addr": "0"}, TypeError), ({"bytes": 1 << 64}, OverflowError), ({"blocks": 1 << 32}, OverflowError),
    ({"group": 1 << 31}, OverflowError), ({"group": "0"}, TypeError), ({"mem": "hbm"}, ValueError), ({"mem": 0}, ValueError),
    ({"name": 5}, TypeError), ({"parts": -1}, OverflowError), ({"device": None}, TypeError), ({"blocks": 0}, k.Invalid),
    ({"block_stride": 1}, k.Invalid), ({"addr": 0}, k.Invalid)
], ids=repr)
def test_a_wrong_region_is_named(change, exception):
    cache = lab.Cache()
    with k.Context({"engine_id": lab.unique("R"), "transport": "loopback"}) as context:
        with pytest.raises(exception):
            context.register([cache.region(**change)])
        context.register([cache.region()])


def test_regions_are_named_tuples(engine):
    with pytest.raises(AttributeError):
        engine.context.register([(1, 2, 3)])
    with pytest.raises(TypeError):
        engine.context.register(5)
    with pytest.raises(k.Invalid, match="4096"):
        engine.context.register([lab.Cache().region()] * 4097)
    with pytest.raises(k.Invalid, match="has registered memory"):
        engine.context.register([engine.cache.region()])


@pytest.mark.parametrize("config, exception, text", [
    ({}, None, ""), ("{}", None, ""), (b"{}", None, ""), ({"nonsense": 1}, k.ConfigError, "nonsense"), ("{", k.ConfigError, ""),
    ({"role": 5}, k.ConfigError, "role"), ({"engine_id": object()}, TypeError, "JSON"), (None, TypeError, "None"),
    (5, TypeError, "int"), ([], TypeError, "list"), ("{\"engine_id\":\"a\\u0000\0\"}", k.ConfigError, ""), ("\ud800", UnicodeEncodeError, ""),
    ({"transport": "pigeon"}, k.ConfigError, "pigeon"), (" " * (1 << 20) + "{}", k.Invalid, "1 MiB")
], ids=lambda v: repr(v)[:40])
def test_a_configuration_is_a_dict_or_json(config, exception, text):
    if exception is None:
        if isinstance(config, dict):
            config = {**config, "transport": "loopback"}
        else:
            config = config.replace(*(b"{}", b'{"transport":"loopback"}') if isinstance(config, bytes) else ("{}", '{"transport":"loopback"}'))
        k.Context(config).close()
        k.Context(config=config).close()
        return
    with pytest.raises(exception, match=text or None):
        k.Context(config)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_text_that_was_cut_within_a_character_is_a_text(shift):
    with pytest.raises(k.ConfigError, match="unknown key") as raised:
        k.Context(json.dumps({"x" * shift + "é" * 600: 1}, ensure_ascii=False))
    assert len(str(raised.value)) > 250


def test_a_context_is_made_of_one_configuration():
    for arguments, named in (((), {}), (({}, {}), {}), (({},), {"config": {}}), ((), {"cfg": {}})):
        with pytest.raises(TypeError):
            k.Context(*arguments, **named)


@pytest.mark.parametrize("params, text", [
    ("", ""), ("[]", ""), ("{}", "remote_block_ids"), (b"\xff", ""), ({}, "is missing"), ({**PARAMS, "remote_port": -1}, "remote_port"),
    ({**PARAMS, "remote_port": 1 << 70}, "remote_port"), ({**PARAMS, "remote_block_ids": [[-1]]}, "remote_block_ids"),
    ({**PARAMS, "remote_request_id": "x" * 1025}, "remote_request_id"), ({**PARAMS, "extra": object()}, "parameters: "),
    ({**PARAMS, "extra": math.nan}, ""), ({**PARAMS, "kvlease": {"v": 1}}, "kvlease"), ({**PARAMS, "remote_engine_id": None}, "remote_engine_id"),
    (json.dumps(PARAMS) + " x", "")
], ids=lambda v: repr(v)[:40])
def test_parameters_that_are_none_are_named(params, text):
    with pytest.raises(k.Invalid, match=text or None):
        k.params_read(params)


def test_parameters_that_contain_themselves_are_refused():
    params = dict(PARAMS)
    params["extra"] = params
    with pytest.raises(k.Invalid, match="parameters: "):
        k.params_read(params)
    for wrong in (None, 5, [PARAMS]):
        with pytest.raises(TypeError):
            k.params_read(wrong)


MANY = [1] * 300_000
DOUBLED, DEEP = [1], [1]
for _ in range(30):
    DOUBLED = [DOUBLED, DOUBLED]
for _ in range(40):
    DEEP = [DEEP]


@pytest.mark.parametrize("value", [
    MANY, [MANY], [[MANY]], [MANY[:200_000], MANY[:200_000]], tuple(MANY), dict.fromkeys(range(300_000)), {"v": 1, "x": MANY}, "x" * 5_000_000, ["x" * 1000] * 5000,
    {"x" * 5_000_000: 1}, DOUBLED, DEEP,
], ids=range(12))
@pytest.mark.parametrize("key", ["remote_block_ids", "kvlease", "tp_size", "of nobody"])
def test_parameters_that_hold_more_than_any_request_needs_are_refused_by_their_key(key, value):
    with pytest.raises(k.Invalid, match=f"key {key} holds more"):
        k.params_read({**PARAMS, key: value})
    with pytest.raises(k.Invalid, match="a key holds more"):
        k.params_read({**PARAMS, "x" * 100: value})


@pytest.mark.parametrize("engine_id, ranks, more, text", [
    ("", 1, {}, "engine_id"), ("Q", 0, {}, "ranks"), ("Q", 65537, {}, ""), ("Q", 3, {"pp_size": 1 << 20}, ""),
    ("Q", 1, {"host": "h", "port": 0}, "port"), ("Q", 1, {"host": "h", "port": 70000}, "port"), ("x" * 5000, 1, {}, "engine_id"),
])
def test_an_engine_that_cannot_be_is_refused(engine, engine_id, ranks, more, text):
    with pytest.raises(k.Error, match=text or None):
        engine.context.engine_add(engine_id, ranks, **more)


def test_the_own_engine_is_no_remote_one(engine):
    with pytest.raises(k.Invalid):
        engine.context.engine_add(engine.id, 1)


def test_maps_that_are_none_are_refused(engine):
    other = engine.context.engine_add("Q-of-maps", 1)
    for map in (b"", b"\xc1", b"x" * (1 << 20), b"x" * ((1 << 20) + 1)):
        with pytest.raises(k.Invalid):
            engine.context.engine_handshake(other, 0, map)
        with pytest.raises(k.Invalid):
            engine.context.handshake_set(0, map)
    with pytest.raises(k.Invalid):
        engine.context.handshake_get(1)


def test_other_carriers_are_refused(engine):
    for call in (lambda: engine.context.delta_take(0), lambda: engine.context.delta_put(0, b"data"), lambda: engine.context.delta_lost(0)):
        with pytest.raises(k.Invalid):
            call()


class Index:
    """An int to Python, that does something when it is asked."""

    def __init__(self, what, value=1):
        self.what, self.value = what, value

    def __index__(self):
        self.what()
        return self.value


def test_an_argument_may_close_the_context():
    for call in (lambda e, i: e.producer.grant("id", [[1, i]]), lambda e, i: e.producer.grant("id", [[1]], user=i),
                 lambda e, i: e.producer.track(i, REMOTE, "local"), lambda e, i: e.producer.untrack(i),
                 lambda e, i: e.producer.read(1, [[1]], [[i]]), lambda e, i: e.producer.pressure(i), lambda e, i: e.context.poll(i),
                 lambda e, i: e.context.engine_add("Q", i), lambda e, i: e.context.engine_remove(i),
                 lambda e, i: e.context.params(1 << 32, "id", [[i]]), lambda e, i: e.context.params_key(i),
                 lambda e, i: e.context.handshake_get(i), lambda e, i: e.context.delta_take(i),
                 lambda e, i: e.context.register([e.cache.region(blocks=i)]), lambda e, i: e.context.engine_handshake(i, 0, b"map")):
        engine = lab.Engine("P")
        with pytest.raises(k.Closed):
            call(engine, Index(engine.close))
        assert engine.context.closed


def test_an_argument_may_change_its_list():
    engine = lab.Engine("P")
    ids = [1] * 2000
    ids[5] = Index(ids.clear)
    with pytest.raises(IndexError):
        engine.producer.grant("id", [ids])
    groups = [[1], [2], [3]]
    groups[0] = [Index(groups.clear)]
    with pytest.raises(IndexError):
        engine.producer.grant("id", groups)
    grown = [1, 2]
    grown[0] = Index(lambda: grown.extend([3] * 100_000))
    lease = engine.producer.grant("id", [grown])
    nested = [Index(lambda: engine.producer.grant("inner", [list(range(64)) * 40])), 2]
    assert engine.producer.grant("outer", [nested]) != lease

    def fails():
        raise RuntimeError("no number")

    with pytest.raises(RuntimeError, match="no number"):
        engine.producer.grant("id", [[Index(fails)]])
    with pytest.raises(RuntimeError, match="no number"):
        engine.producer.cancel(Index(fails))
    with pytest.raises(OverflowError):
        engine.producer.grant("id", [[Index(lambda: None, -5)]])
    engine.close()
