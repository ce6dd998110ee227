"""A close beside a register of another thread, which it cuts off: over a driver whose copies wait, and over loopback at any moment."""

import contextlib
import os
import signal
import threading

import kvlease as k
import lab
import pytest

READ = "cuMemcpyDtoH"  # how a registration looks at both ends of device memory


class Registration:
    """A thread in register, and what it was told; None: nothing."""

    def __init__(self, context, region):
        self.told, self._call = [], lambda: context.register([region])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            self.told.append(self._call())
        except Exception as e:
            self.told.append(e)

    def ended(self):
        self._thread.join()
        return self.told[0]


@pytest.fixture
def slow(gpu):
    """A context, and a registration that stands still amid the call until the gate is open."""
    context = k.Context({"transport": "loopback", "engine_id": lab.unique("S"), "self_read": "off"})
    producer = context.producer()
    producer.grant("held", [[1]])
    gpu.do(f"gate {READ} 1")
    registration = Registration(context, gpu.region())
    while not gpu.do(f"count {READ}"):
        assert not registration.told, registration.told
    yield context, producer, registration
    gpu.do(f"gate {READ} 0")
    registration.ended()
    context.close()


@contextlib.contextmanager
def once_it_closes(context, what):
    """Does something on another thread when the context is being closed. That runs only if the close gives the interpreter up."""
    over = []

    def run():
        while not context.closed:
            if over:
                return
        what()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.append(True)
        thread.join()


def cut_off(told):
    return isinstance(told, k.Closed) and "kvl_close has cut the registration off" in str(told)


def test_a_close_that_may_not_wait_cuts_a_register_off_all_the_same(gpu, slow):
    context, _, registration = slow
    for _ in range(2):
        with pytest.raises(k.Busy, match="still inside register"):
            context.close(0)
        assert not context.closed and not registration.told
    gpu.do(f"gate {READ} 0")
    assert cut_off(registration.ended())
    with pytest.raises(k.Closed):
        context.register([gpu.region()])
    context.close()
    assert context.closed


def test_a_close_waits_until_the_other_thread_has_left_register(gpu, slow):
    context, _, registration = slow
    with once_it_closes(context, lambda: gpu.do(f"gate {READ} 0")):
        context.close(60)
    assert context.closed
    told = registration.ended()
    assert told is None or cut_off(told)  # the gate may have been faster than the cut
    with pytest.raises(k.Closed):
        context.stats()


def test_a_with_block_ends_a_register_of_another_thread(gpu, slow):
    context, _, registration = slow
    with once_it_closes(context, lambda: gpu.do(f"gate {READ} 0")), context:
        pass
    assert context.closed and (registration.ended() is None or cut_off(registration.ended()))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_amid_a_register_is_told_so_by_close(slow):
    context, _, registration = slow
    assert lab.in_child(context.close).startswith("Forked") and not registration.told


def test_a_signal_interrupts_a_close_that_waits_for_a_register(gpu, slow):
    context, _, registration = slow
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have left it ignored
    try:
        with once_it_closes(context, lambda: os.kill(os.getpid(), signal.SIGINT)), pytest.raises(KeyboardInterrupt):
            context.close(600)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not context.closed and not registration.told
    with pytest.raises(k.Busy):
        context.close(0)
    gpu.do(f"gate {READ} 0")
    assert cut_off(registration.ended())


def test_beside_another_call_a_close_is_busy_and_cuts_nothing_off(gpu, slow):
    context, producer, registration = slow
    drained = []

    def drain():
        try:
            context.drain(2)
        except k.Error as e:
            drained.append(type(e))

    thread = threading.Thread(target=drain)
    thread.start()
    with pytest.raises(k.Closed, match="draining"):  # it has begun
        while True:
            producer.pressure(1)
            context.poll()
    with pytest.raises(k.Busy, match="another thread is inside a call"):
        context.close()
    gpu.do(f"gate {READ} 0")
    assert registration.ended() is None
    thread.join()
    assert drained == [k.Timeout]


def test_a_close_beside_a_register_at_any_moment():
    """Whatever the other thread is at, the close succeeds, and who registers is told that or nothing."""
    caches, told = [lab.Cache(), lab.Cache()], []
    for _ in range(50):
        context = k.Context({"transport": "loopback", "engine_id": lab.unique("S")})
        others = [Registration(context, cache.region()) for cache in caches]  # of two one may be refused
        context.close()
        assert context.closed
        told += [other.ended() for other in others]
    assert {type(t) for t in told} <= {type(None), k.Closed, k.Busy, k.Invalid}, told
    assert all("inside this call" in str(t) or "on another thread" in str(t) for t in told if type(t) is k.Busy)
    assert all("has registered memory" in str(t) for t in told if type(t) is k.Invalid)
