"""Ready events: a grant whose blocks kernels still write, over a driver that is not real."""

import gc
import weakref

import device
import kvlease as k
import pytest
from lab import until


@pytest.fixture
def owner(gpu, engines):
    return engines("G", cache=gpu, self_read="off")  # over loopback nobody reads device memory


def offered(owner, lease, id):
    """The parameters, if the event has fired."""
    try:
        return owner.context.params(lease, id, [[3]])
    except k.Busy as e:
        assert "ready_event has not fired" in str(e)
        with pytest.raises(k.Busy, match="ready_event has not fired"):
            owner.context.params_key(lease)
        return None


@pytest.mark.parametrize("given", [lambda event: event, lambda event: event.cuda_event], ids=["an object", "a handle"])
def test_blocks_are_offered_when_their_event_has_fired(gpu, owner, given):
    gpu.do("hold 1")
    gpu.write(3, 9)
    event = device.Event(gpu).record()
    lease = owner.producer.grant("r", [[3]], ready_event=given(event))
    for _ in range(3):
        owner.turn()
        assert offered(owner, lease, "r") is None and gpu.byte(3) != 9
    gpu.do("hold 0")
    text = until(lambda: offered(owner, lease, "r"), owner)
    assert gpu.byte(3) == 9 and k.params_read(text).id == "r"
    owner.producer.cancel(lease)
    until(lambda: owner.seen(k.EV_FREED, handle=lease), owner)


def test_an_event_that_has_fired_is_as_good_as_none(gpu, owner):
    for event in (device.Event(gpu).record(), None, 0):
        lease = owner.producer.grant("r", [[3]], 0, 0.0, 0, 0, False, event)
        owner.turn()
        assert offered(owner, lease, "r")
        owner.producer.cancel(lease)
        until(lambda: owner.seen(k.EV_FREED, handle=lease), owner)


def test_an_object_is_kept_until_nobody_asks_for_its_event(gpu, owner):
    def dropped(id):
        event = device.Event(gpu).record()
        return owner.producer.grant(id, [[3]], ready_event=event), weakref.ref(event)

    gpu.do("hold 1")
    lease, event = dropped("answered")
    ended, of_ended = dropped("ended")
    late, of_late = dropped("late")
    owner.turn()
    gc.collect()
    assert event() and of_ended() and of_late() and gpu.events_destroyed() == 0
    owner.producer.cancel(ended)
    until(lambda: owner.seen(k.EV_FREED, handle=ended), owner)
    assert of_ended() is None and event()
    gpu.do("hold 0")
    until(lambda: offered(owner, lease, "answered"), owner)
    assert event() is None and of_late() and gpu.events_destroyed() == 2
    assert owner.context.params_key(late) and of_late() is None
    _, open_still = dropped("open still")
    owner.close()
    assert open_still() is None and gpu.events_destroyed() == 4


def test_a_grant_that_is_refused_keeps_no_event(gpu, owner):
    event = device.Event(gpu).record()
    seen = weakref.ref(event)
    for wrong in (dict(id=""), dict(groups=[[1 << 31]])):
        with pytest.raises(k.Invalid):
            owner.producer.grant(**{"id": "r", "groups": [[3]], "ready_event": event, **wrong})
    del event
    assert seen() is None


def test_an_event_of_which_nothing_is_known_is_never_offered(gpu, owner):
    event = device.Event(gpu).record()
    lease = owner.producer.grant("r", [[3]], ready_event=event.cuda_event)
    del event  # a number is nobody's: whoever gives one keeps the event
    for _ in range(3):
        owner.turn()
        assert offered(owner, lease, "r") is None
    assert owner.context.stats()["ready_failed"] == 1


def test_what_is_no_event_is_refused(gpu, owner):
    class Unrecorded:
        cuda_event = 0

    class Broken:
        @property
        def cuda_event(self):
            raise KeyError("mine")

    for wrong, exception, words in ((device.Event(gpu), ValueError, "never recorded"), (Unrecorded(), ValueError, "never recorded"),
                                    (Broken(), KeyError, "mine"), ("event", TypeError, "ready_event"), (1.5, TypeError, "ready_event"),
                                    (object(), TypeError, "cuda_event"), (-1, OverflowError, "ready_event"),
                                    (1 << 64, OverflowError, "ready_event"), (True, TypeError, "not bool"), (False, TypeError, "not bool")):
        with pytest.raises(exception, match=words):
            owner.producer.grant("r", [[3]], ready_event=wrong)
    owner.turn()
    assert owner.context.stats()["lease_grants"] == 0


def test_device_memory_that_nobody_could_read_is_refused_or_told(gpu):
    """The loopback transport fails the read. Where this process has no NIC its peers have another way, and that refuses nothing."""
    with k.Context({"transport": "loopback"}) as context:
        try:
            context.register([gpu.region()])
        except k.TransportError as e:
            assert "peers could not read it" in str(e)
        else:
            stats = context.stats()
            assert (stats["regions_proven"], stats["regions_unproven"]) == (0, 1)


def test_without_device_memory_there_is_nobody_to_ask(engines):
    with pytest.raises(k.Invalid, match="no device memory is registered"):
        engines("P").producer.grant("r", [[3]], ready_event=1)
