"""Whole lives of leases between two contexts of one process."""

import json
import select
import urllib.request

import kvlease as k
import lab
import pytest
from lab import until


def granted(owner, id, blocks, **more):
    """A lease and what its reader makes of the parameters."""
    lease = owner.producer.grant(id, [blocks], tokens=8 * len(blocks), **more)
    return lease, k.params_read(owner.context.params(lease, id, [blocks], 8 * len(blocks)))


def test_what_is_granted_is_tracked_read_and_freed(pair):
    owner, reader, engine = pair
    for block in (5, 6, 7):
        owner.cache.fill(block, f"block {block}")
    lease, remote = granted(owner, "request", [5, 6, 7], user=11)
    assert (remote.id, remote.engine_id, remote.native, remote.groups, remote.tokens) == ("request", owner.id, True, [[5, 6, 7]], 24)
    track = reader.producer.track(engine, remote, "local", user=12)
    reader.producer.read(track, [([20, 21], 1)], [remote.groups[0]])
    done, = until(lambda: reader.seen(k.EV_READ_DONE), owner, reader)
    assert (done.handle, done.user, done.status, done.value0) == (track, 12, k.READ_OK, 2 * lab.BLOCK)
    freed, = until(lambda: owner.seen(k.EV_FREED), owner, reader)
    assert (freed.handle, freed.user, freed.status, freed.value0) == (lease, 11, k.FREED_COMPLETED, 3)
    assert freed.reasons == k.FREED_COMPLETED
    assert [reader.cache.text(b) for b in (20, 21)] == ["block 6", "block 7"]  # matched by position
    with pytest.raises(k.Stale):
        owner.producer.cancel(lease)
    with pytest.raises(k.Stale):
        reader.producer.untrack(track)


def test_a_lease_that_was_taken_back_makes_its_read_stale(pair):
    owner, reader, engine = pair
    lease, remote = granted(owner, "request", [1, 2])
    track = reader.producer.track(engine, remote, "local")
    until(lambda: owner.context.stats()["beats_applied"], owner, reader)  # the owner knows that its reader checks the fence
    owner.producer.revoke(lease)
    until(lambda: owner.seen(k.EV_FREED, handle=lease, status=k.FREED_REVOKED), owner)
    reader.producer.read(track, [[3, 4]], [[1, 2]])
    failed, = until(lambda: reader.seen(k.EV_READ_FAILED), owner, reader)
    assert (failed.handle, failed.status) == (track, k.READ_STALE)


def test_an_aborted_request_gives_the_blocks_back(pair):
    owner, reader, engine = pair
    lease, remote = granted(owner, "request", [1])
    reader.producer.untrack(reader.producer.track(engine, remote, "local"))
    until(lambda: owner.seen(k.EV_FREED, handle=lease, status=k.FREED_RELEASED), owner, reader)


def test_a_rejected_request_gives_the_blocks_back(pair):
    owner, reader, engine = pair
    lease, remote = granted(owner, "request", [1])
    reader.producer.reject(engine, remote)
    until(lambda: owner.seen(k.EV_FREED, handle=lease, status=k.FREED_RELEASED), owner, reader)


def test_an_expected_request_becomes_the_grant_or_is_cancelled(engines):
    owner = engines("P")
    lease = owner.producer.expect("a")
    assert owner.producer.grant("a", [[1]], expected=lease) == lease
    gone = owner.producer.expect("b")
    owner.producer.cancel(gone)
    owner.producer.cancel(lease)
    until(lambda: owner.seen(k.EV_FREED, handle=lease, status=k.FREED_REVOKED), owner)
    assert not owner.seen(k.EV_FREED, handle=gone)


def test_an_id_that_holds_a_lease_is_not_granted_twice(engines):
    owner = engines("P")
    first = owner.producer.grant("a", [[1]])
    second = owner.producer.grant("a", [[2]])
    until(lambda: owner.seen(k.EV_FREED, handle=second, status=k.FREED_DUPLICATE), owner)
    assert not owner.seen(k.EV_FREED, handle=first)


def test_a_lease_that_nobody_renews_expires(engines):
    owner = engines("P", kv_lease_duration=0.3, allow_short_leases=True, step_max=0.05)
    lease = owner.producer.grant("a", [[1]])
    freed, = until(lambda: owner.seen(k.EV_FREED), owner)
    assert (freed.handle, freed.status) == (lease, k.FREED_EXPIRED) and freed.value1 >= 300_000_000


def test_a_fixed_lease_names_its_end(pair):
    owner, reader, engine = pair
    lease = owner.producer.grant("a", [[1]], ttl=100, fixed=True)
    text = owner.context.params(lease, "a", [[1]], fixed=True)
    remote = k.params_read(text)
    assert remote.expires_ns > 0 and json.loads(text)["remote_blocks_expiry_time"] == pytest.approx(remote.expires_ns / 1e9)


def test_pressure_takes_back_what_readers_check(pair):
    owner, reader, engine = pair
    lease, remote = granted(owner, "request", [1, 2])
    reader.producer.track(engine, remote, "local")
    until(lambda: owner.context.stats()["beats_applied"], owner, reader)
    owner.producer.pressure(1)
    until(lambda: owner.seen(k.EV_FREED, handle=lease, status=k.FREED_REVOKED), owner, reader)


def test_ids_of_any_bytes_come_back_as_they_were(pair):
    owner, reader, engine = pair
    for id in ("a,b", "é" * 512, "x" * k.ID_MAX, "nul\0inside", "\t\"\\", "名前"):
        lease, remote = granted(owner, id, [1])
        assert remote.id == id
        track = reader.producer.track(engine, remote, id)
        reader.producer.read(track, [[2]], [[1]])
        until(lambda: owner.seen(k.EV_FREED, handle=lease, status=k.FREED_COMPLETED), owner, reader)
    lease = owner.producer.grant(b"\xff\xfe", [[1]])  # bytes that are no text: only parameters need text
    with pytest.raises(k.Invalid, match="UTF-8"):
        owner.context.params(lease, b"\xff\xfe", [[1]])


def test_parameters_are_read_as_text_bytes_or_object(engines):
    owner = engines("P")
    lease = owner.producer.grant("a", [[1, 2], [], [3]])
    text = owner.context.params(lease, "a", [[1, 2], [], [3]], tokens=5)
    for form in (text, text.encode(), json.loads(text)):
        remote = k.params_read(form)
        assert remote.groups == [[1, 2], [], [3]] and remote.host == "localhost" and remote.port == 5600
        assert (remote.tp_size, remote.pp_size, remote.expires_ns) == (1, 1, 0)
        key = json.loads(owner.context.params_key(lease))
        assert (f"{remote.epoch:016x}", remote.slot, remote.generation, f"{remote.key:016x}") == tuple(
            key[name] for name in ("epoch", "slot", "g", "key"))


def test_parameters_of_many_blocks(engines):
    owner = engines("P")
    many = [i % lab.BLOCKS for i in range(100_000)]
    lease = owner.producer.grant("a", [many])
    assert k.params_read(owner.context.params(lease, "a", [many])).groups == [many]


def test_memory_sleeps_and_wakes(engines):
    owner = engines("P")
    lease = owner.producer.grant("a", [[1]])
    before = owner.context.params_key(lease)
    owner.context.unregister()
    until(lambda: owner.seen(k.EV_FREED, handle=lease, status=k.FREED_CLOSED), owner)
    owner.context.register([owner.cache.region()])
    lease = owner.producer.grant("a", [[1]])
    assert json.loads(owner.context.params_key(lease))["epoch"] != json.loads(before)["epoch"]


def test_a_fenced_context_refuses_and_tells_the_ends(engines):
    owner = engines("P", all_peers_check=True)
    lease = owner.producer.grant("a", [[1]])
    owner.turn()
    owner.context.fence_all()
    with pytest.raises(k.Poisoned):
        owner.producer.grant("b", [[2]])
    with pytest.raises(k.Poisoned):
        owner.context.step()
    owner.events = owner.context.poll()
    assert owner.events[0].kind == k.EV_POISONED
    assert owner.seen(k.EV_FREED, handle=lease, status=k.FREED_POISONED)


def test_a_drained_context_takes_nothing_new(engines):
    owner = engines("P")
    owner.context.drain(1)
    with pytest.raises(k.Closed, match="draining"):
        owner.producer.grant("a", [[1]])


def test_a_drain_with_a_lease_left_runs_into_its_time(engines):
    owner = engines("P")
    owner.producer.grant("a", [[1]])
    with pytest.raises(k.Timeout):
        owner.context.drain(0.25)
    with pytest.raises(TimeoutError):
        owner.context.drain(0)


def test_the_descriptor_is_readable_when_there_is_something_to_step_or_poll_for(engines):
    owner = engines("P")
    fd = owner.context.wait_fd()
    assert fd == owner.context.wait_fd()
    owner.producer.grant("a", [[1]])
    assert select.select([fd], [], [], 10)[0] == [fd]
    owner.producer.grant("a", [[2]])
    owner.context.step()
    assert select.select([fd], [], [], 10)[0] == [fd]
    assert owner.context.poll()


def test_a_pump_steps_by_itself(engines):
    owner = engines("P", drive="pump")
    lease = owner.producer.grant("a", [[1]])
    owner.producer.cancel(lease)
    owner.context.beat()
    owner.context.pause(0.5)
    until(lambda: owner.seen(k.EV_FREED, handle=lease), owner)


def test_poll_gives_no_more_than_was_asked_for(engines):
    owner = engines("P")
    for i in range(700):
        owner.producer.cancel(owner.producer.grant(f"{i}", [[1]]))
    for _ in range(10):  # a step has at most 256 ends
        owner.context.step()
    assert owner.context.poll(0) == []
    assert len(owner.context.poll(3)) == 3
    assert len(owner.context.poll()) == 256
    assert len(owner.context.poll(max=400)) == 400
    assert len(owner.context.poll(2**32 - 1)) == 41
    assert owner.context.poll() == []


@pytest.mark.parametrize("carrier", ["process", "shm", "delta"])
def test_a_host_and_its_ranks(engines, carrier):
    reader, id = engines("D"), lab.unique("P")
    common = {"engine_id": id, "transport": "loopback", "carrier": carrier, "tp_size": 2, "carrier_path": ""}
    if carrier != "shm":
        del common["carrier_path"]
    caches = [lab.Cache(), lab.Cache()]
    with k.Context({**common, "role": "host"}) as host:
        ranks = [k.Context({**common, "role": "rank", "tp_rank": i}) for i in range(2)]

        class Owner:
            id, events, context = common["engine_id"], [], host

            def turn(self):
                for i, rank in enumerate(ranks):
                    rank.step()
                    if carrier == "delta" and (message := rank.delta_take(i)):
                        host.delta_put(i, message)
                host.step()
                for i, rank in enumerate(ranks):
                    if carrier == "delta" and (message := host.delta_take(i)):
                        rank.delta_put(i, bytearray(message))
                self.events += host.poll()

        owner = Owner()
        with pytest.raises(k.Invalid, match="host context"):
            ranks[0].producer()
        for rank, cache in zip(ranks, caches):
            rank.register([cache.region(block_len=lab.BLOCK // 2, block_stride=lab.BLOCK)])
        until(lambda: len([e for e in owner.events if e.kind == k.EV_RANK_UP]) == 2, owner)
        producer = host.producer()
        engine = reader.context.engine_add(id, 2)
        for i in range(2):
            reader.context.engine_handshake(engine, i, host.handshake_get(i))
        lease = producer.grant("a", [[9]])
        remote = k.params_read(host.params(lease, "a", [[9]]))
        assert remote.tp_size == 2
        track = reader.producer.track(engine, remote, "local")
        caches[0].fill(9, "left")
        caches[1].fill(9, "right")
        reader.producer.read(track, [[4]], [[9]])
        until(lambda: reader.seen(k.EV_READ_DONE), owner, reader)
        freed, = until(lambda: [e for e in owner.events if e.kind == k.EV_FREED], owner, reader)
        assert (freed.status, freed.reasons) == (k.FREED_COMPLETED, k.FREED_COMPLETED * 0x11)
        half = lab.BLOCK // 2
        data = reader.cache.memory[4 * lab.BLOCK:5 * lab.BLOCK]
        assert (data[:half].rstrip(b"."), data[half:].rstrip(b".")) == (b"left", b"right")
        ranks[1].close()
        if carrier == "delta":
            host.delta_lost(1)
        until(lambda: [e for e in owner.events if e.kind == k.EV_RANK_DOWN], Lone(owner, host, ranks, carrier))
        ranks[0].close()


class Lone:
    """What is left of an engine whose second rank has gone."""

    def __init__(self, owner, host, ranks, carrier):
        self.events, self.host, self.rank, self.carrier = owner.events, host, ranks[0], carrier

    def turn(self):
        self.rank.step()
        self.host.step()
        self.events += self.host.poll()


def test_maps_of_the_engine_itself_go_out_with_our_key(pair):
    owner, reader, engine = pair
    own = owner.context.handshake_get()
    owner.context.handshake_set(0, memoryview(own))
    assert owner.context.handshake_get(rank=0)
    reader.context.engine_remove(engine)
    with pytest.raises(k.Stale):
        reader.context.engine_remove(engine)


def test_statistics_and_configuration_are_plain_objects(engines):
    owner = engines("P", kv_lease_duration=12)
    stats, config = owner.context.stats(), owner.context.config()
    assert config["engine_id"] == owner.id and config["kv_lease_duration"] == 12
    assert stats["steps"] == 0 and all(isinstance(v, (int, float, list)) for v in stats.values())
    owner.turn()
    assert owner.context.stats()["steps"] == 1


def test_metrics_are_text_and_can_be_scraped_until_the_context_closes(engines):
    owner = engines("P")
    owner.turn()
    text = owner.context.metrics_text()
    assert f'kvlease_up{{engine="{owner.id}",rank="0",role="engine"}} 1' in text.splitlines()
    port = owner.context.metrics_listen("127.0.0.1:0")
    scrape = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(scrape, timeout=10) as answer:
        assert "kvlease_leases_held" in answer.read().decode()
    with pytest.raises(k.Invalid, match=f"already at 127.0.0.1:{port}"):
        owner.context.metrics_listen()
    with engines("Q").context as other:
        with pytest.raises(k.Unavailable, match="the port is in use"):
            other.metrics_listen(f":{port}")
        with pytest.raises(k.Invalid, match="the host is"):
            other.metrics_listen("example.org:0")
        other.step()  # and all else goes on
    owner.context.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(scrape, timeout=10)
