"""Threads, the interpreter lock, signals, forks and subinterpreters."""

import functools
import operator
import os
import signal
import subprocess
import sys
import threading
import time

import kvlease as k
import lab
import pytest


@pytest.fixture
def runner():
    """The count of a thread that counts whenever it has the interpreter."""
    interval = sys.getswitchinterval()
    count, stop, up = [0], [], threading.Event()

    def run():
        while not stop:
            count[0] += 1
            up.set()

    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=run)
    thread.start()
    up.wait()
    yield count
    stop.append(True)
    sys.setswitchinterval(interval)
    thread.join()


TRIES = 20  # the other thread may get no CPU for as long as the sum takes


def gives_up(count, call):
    """Whether a call gives the interpreter up, and what it returned. The chain runs in C without a look at who else wants the
    interpreter; the sum lasts until the other thread does, and whoever gives it up then goes behind that thread.
    """
    look = functools.partial(operator.itemgetter(0), count)
    chain = [functools.partial(sum, range(500_000)), look, functools.partial(call), look]
    _, before, result, after = list(map(functools.partial.__call__, chain))
    return before != after, result


def test_short_steps_hooks_and_polls_keep_the_interpreter(pair, runner):
    owner, reader, engine = pair
    remote = k.params_read({"remote_block_ids": [[1]], "remote_engine_id": owner.id, "remote_request_id": "r", "remote_host": "h",
                            "remote_port": 1})
    for _ in range(20):  # until no connection is being made
        owner.turn(), reader.turn()
    c, p, q = owner.context, owner.producer, reader.producer
    for i in range(3):
        kept, lease = [], 0

        def call(f, *arguments):
            given, result = gives_up(runner, functools.partial(f, *arguments))
            kept.append((f.__name__, not given))
            return result

        lease = call(p.grant, f"{i}", [[1, 2, 3]], 0, 0.0, call(p.expect, f"{i}"))
        call(c.params, lease, f"{i}", [[1, 2, 3]]), call(c.params_key, lease)
        call(p.cancel, lease), call(p.pressure, 1)
        track = call(q.track, engine, remote, "local")
        call(q.untrack, track), call(q.reject, engine, remote)
        call(c.step), call(reader.context.step), call(c.poll), call(c.beat), call(c.pause, 0), call(c.wait_fd)
        call(k.params_read, '{"remote_block_ids":[[1]],"remote_engine_id":"P","remote_request_id":"r","remote_host":"h",'
                              '"remote_port":1}')
        assert not [name for name, is_kept in kept if not is_kept]


def test_a_step_that_makes_a_connection_gives_the_interpreter_up(engines, runner):
    reader = engines("D")
    reader.turn()
    for _ in range(TRIES):
        owner = engines("P")
        assert gives_up(runner, reader.context.step) == (False, None)
        engine = reader.context.engine_add(owner.id, 1)
        reader.context.engine_handshake(engine, 0, owner.context.handshake_get())
        given, _ = gives_up(runner, reader.context.step)
        lab.until(lambda: reader.seen(k.EV_ENGINE_UP, handle=engine), owner, reader)
        if given:
            return
    pytest.fail("never")


def test_a_pump_makes_connections_itself(engines, runner):
    reader, owner = engines("D", drive="pump"), engines("P")
    engine = reader.context.engine_add(owner.id, 1)
    reader.context.engine_handshake(engine, 0, owner.context.handshake_get())
    assert gives_up(runner, reader.context.step) == (False, None)
    lab.until(lambda: reader.seen(k.EV_ENGINE_UP), owner, reader)


def test_long_calls_give_the_interpreter_up(runner):
    missing = {"open", "register", "unregister", "drain", "close"}
    for _ in range(TRIES):
        given, context = gives_up(runner, functools.partial(k.Context, {"transport": "loopback", "engine_id": lab.unique("P")}))
        cache, seen = lab.Cache(), {"open": given}
        for name, *arguments in (("register", [cache.region()]), ("unregister",), ("drain", 1), ("close",)):
            seen[name], _ = gives_up(runner, functools.partial(getattr(context, name), *arguments))
        missing -= {name for name in seen if seen[name]}
        if not missing:
            return
    pytest.fail(f"never: {missing}")


def test_a_producer_may_be_used_by_several_threads_in_turn(engines):
    owner = engines("P", requests_max=4096)
    leases, failed = [], []

    def work(n):
        try:
            for i in range(500):
                leases.append(owner.producer.grant(f"{n}-{i}", [[i % lab.BLOCKS]], user=n))
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        owner.turn()
    for t in threads:
        t.join()
    assert not failed and len(set(leases)) == 4000
    for lease in leases:
        owner.producer.cancel(lease)
    lab.until(lambda: len(owner.seen(k.EV_FREED)) == 4000, owner)
    assert sorted(e.handle for e in owner.events) == sorted(leases)


def test_leases_go_through_one_producer(engines):
    owner = engines("P")
    owner.producer.grant("a", [[1]])
    with pytest.raises(k.WrongProducer):
        owner.context.producer().grant("b", [[1]])
    with pytest.raises(k.Full, match="producers_max"):
        [owner.context.producer() for _ in range(20)]


def test_a_close_beside_other_threads_ends_them_with_closed():
    for _ in range(20):
        engine = lab.Engine("P")
        ended, started = [], threading.Barrier(5)

        def work(call):
            started.wait()
            try:
                while True:
                    call()
            except k.Error as e:
                ended.append(type(e))

        calls = [engine.context.step, engine.context.poll, engine.context.stats,
                 lambda: engine.producer.cancel(engine.producer.grant("a", [[1]]))]

        def quiet(call):
            def run():
                try:
                    call()
                except (k.Busy, k.Full):
                    pass
            return run

        threads = [threading.Thread(target=work, args=(quiet(c),)) for c in calls]
        for t in threads:
            t.start()
        started.wait()
        while True:
            try:
                engine.close()
                break
            except k.Busy:
                pass
        for t in threads:
            t.join()
        assert set(ended) == {k.Closed} and len(ended) == 4


def test_a_call_beside_a_drain_is_busy_and_close_waits_its_turn(engines):
    owner = engines("P")
    owner.producer.grant("a", [[1]])
    result = []

    def drain():
        while not result:
            try:
                owner.context.drain(1)
            except (k.Busy, k.Timeout) as e:  # busy: it met a step before it began
                result.extend([type(e)] * (type(e) is k.Timeout))

    thread = threading.Thread(target=drain)
    thread.start()
    with pytest.raises(k.Closed, match="draining"):  # it has begun
        while thread.is_alive():
            owner.producer.pressure(1)
            time.sleep(0.001)
    seen = set()
    while thread.is_alive():
        for name, call in (("step", owner.context.step), ("close", owner.context.close)):
            try:
                call()
            except k.Busy as e:
                seen.add(name if name == "step" else str(e))
    thread.join()
    assert result == [k.Timeout] and seen == {"step", "another thread is inside a call"}


@pytest.fixture
def interruptible():
    """A shell starts what runs behind it with SIGINT ignored, and Python leaves that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_interrupts_a_drain_and_the_context_goes_on(engines, interruptible):
    owner = engines("P")
    owner.producer.grant("a", [[1]])
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        owner.context.drain(600)
    timer.join()
    owner.context.poll()
    assert not owner.context.closed


# ---- fork ----

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_a_fork_is_refused_by_every_call_and_the_parent_goes_on(pair):
    owner, reader, engine = pair
    lease = owner.producer.grant("a", [[1]])
    remote = k.params_read(owner.context.params(lease, "a", [[1]]))
    track = reader.producer.track(engine, remote, "local")

    def child():
        said = []
        for call in (owner.context.step, owner.context.poll, owner.context.stats, owner.context.close, owner.context.fence_all,
                     owner.context.beat, owner.context.wait_fd, owner.context.unregister, owner.context.handshake_get,
                     lambda: owner.context.drain(1), lambda: owner.producer.grant("b", [[1]]), lambda: owner.producer.cancel(lease),
                     lambda: reader.producer.untrack(track), lambda: reader.producer.read(track, [[1]], [[1]]),
                     lambda: reader.producer.track(engine, remote, "other"), lambda: k.Context({"transport": "loopback"})):
            try:
                call()
                said.append("nothing")
            except k.Error as e:
                said.append(e.name)
        assert remote.groups == [[1]] and k.params_read(owner_text).id == "a"
        return " ".join(sorted(set(said)))

    owner_text = owner.context.params(lease, "a", [[1]])
    assert lab.in_child(child) == "KVL_ERR_FORKED"
    reader.producer.read(track, [[2]], [[1]])
    lab.until(lambda: owner.seen(k.EV_FREED, status=k.FREED_COMPLETED), owner, reader)


def test_a_forked_child_may_drop_what_it_inherited(engines):
    owner = engines("P")
    held = [owner.context, owner.producer]

    def child():
        import warnings
        warnings.simplefilter("ignore")
        held.clear()
        owner.__dict__.clear()
        return "dropped"

    assert lab.in_child(child) == "dropped"


# ---- subinterpreters ----

SUB = """
import sys
sys.path[:0] = %r
import kvlease
try:
    kvlease.Context
except ImportError as e:
    print(type(e).__name__, e)
else:
    print("loaded")
"""


def test_subinterpreters_are_refused():
    script = SUB % ([p for p in sys.path if p],)
    main = f"""
import importlib
for name in ("_interpreters", "_xxsubinterpreters"):  # 3.13, before
    try:
        sub = importlib.import_module(name)
    except ImportError:
        continue
    for isolated in (True, False):
        try:
            i = sub.create(isolated=isolated) if name == "_xxsubinterpreters" else sub.create("isolated" if isolated else "legacy")
        except TypeError:
            i = sub.create()
        failed = sub.run_string(i, {script!r})
        if failed: print(failed)
        sub.destroy(i)
    break
import kvlease
print(kvlease.version())
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", main], capture_output=True, text=True, timeout=60)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, run.stderr
    assert lines[-1] == k.version() and len(lines) == 3
    assert all(line.startswith("ImportError") and "interpreter" in line for line in lines[:-1]), lines
