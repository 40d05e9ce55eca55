"""Silence: what an engine does about its own and about its peer's, in a time that is only a number."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.wire import RECEIVER, SENDER, Configuration, Connection, Delivery, Open
from pairbus.wire.errors import IdleTimeoutError
from pairbus.wire.frames import AMQP_HEADER, HEADER_SIZE
from tests.wire.pair import Heard, ScriptedPeer, Side, frame

EMPTY = Heard(0, None)


def opened(side: Side, *, ours: int | None = None, theirs: int | None = None) -> ScriptedPeer:
    configuration = Configuration(container_id="engine", idle_time_out_ms=ours)
    return ScriptedPeer(side, configuration).open(idle_time_out=theirs)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("theirs", [None, 0])
def test_no_deadline_without_idle_timeouts(side: Side, theirs: int | None) -> None:
    peer = opened(side, theirs=theirs)
    for now_ms in (0, 1, 10**9, 10**15):
        assert peer.engine.tick(now_ms) is None
    assert peer.heard() == []
    assert peer.engine.is_open


def test_our_idle_timeout_is_sent_in_open() -> None:
    peer = ScriptedPeer(Side.CLIENT, Configuration(container_id="engine", idle_time_out_ms=240_000))
    peer.engine.open()
    assert peer.heard()[1].body.idle_time_out == 240_000


# Our own silence.


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("start", [0, 5, 10**12])
def test_heartbeat_is_sent_at_half_of_peers_timeout(side: Side, start: int) -> None:
    peer = opened(side, theirs=1000)
    assert peer.engine.tick(start) == start + 500
    assert peer.engine.tick(start + 499) == start + 500
    assert peer.heard() == []
    assert peer.engine.tick(start + 500) == start + 1000
    assert peer.heard() == [EMPTY]
    assert peer.engine.tick(start + 1700) == start + 2200
    assert peer.heard() == [EMPTY], "one is enough, however late"


def test_heartbeat_is_empty_frame() -> None:
    peer = opened(Side.SERVER, theirs=1000)
    peer.engine.tick(0)
    peer.engine.tick(500)
    assert peer.engine.data_to_send() == b"\x00\x00\x00\x08\x02\x00\x00\x00"


def test_other_frames_replace_heartbeats() -> None:
    peer = opened(Side.SERVER, theirs=1000)
    link = peer.attach(peer.begin(), "out", SENDER)
    peer.engine.tick(0)
    for now_ms in range(100, 5_000, 100):
        link.send(b"news", tag=b"t")
        deadline = peer.engine.tick(now_ms)
        assert deadline is not None
        assert now_ms < deadline <= now_ms + 500
        assert [heard.payload for heard in peer.heard()] == [b"news"]


def test_written_bytes_count_before_they_are_taken() -> None:
    peer = opened(Side.SERVER, theirs=1000)
    peer.engine.tick(0)
    peer.engine.tick(300)
    peer.engine.begin()
    assert peer.engine.tick(400) == 800, "it was written after 300, and perhaps right after"
    assert len(peer.heard()) == 1


def test_disposition_replaces_heartbeat() -> None:
    peer = opened(Side.SERVER, theirs=1000)
    session = peer.begin()
    link = peer.attach(session, "in", RECEIVER)
    (delivery,) = peer.transfer(session, link, b"")
    assert isinstance(delivery, Delivery)
    peer.engine.tick(0)
    peer.engine.tick(300)
    link.settle(delivery)
    peer.engine.data_to_send()
    assert peer.engine.tick(400) == 800
    assert peer.heard() == []


@pytest.mark.parametrize(("theirs", "pause"), [(1, 50), (99, 50), (102, 51), (60_000, 30_000), (2**32 - 1, 2**31 - 1)])
def test_any_idle_timeout_is_kept(theirs: int, pause: int) -> None:
    peer = opened(Side.CLIENT, theirs=theirs)
    assert peer.engine.tick(0) == pause
    assert peer.engine.tick(pause) == 2 * pause
    assert peer.heard() == [EMPTY]


def test_no_heartbeat_or_passed_deadline_before_open() -> None:
    peer = ScriptedPeer(Side.SERVER)
    peer.say(AMQP_HEADER, frame(Open(container_id="peer", idle_time_out=1000)))
    peer.heard()
    for now_ms in range(0, 3000, 500):
        deadline = peer.engine.tick(now_ms)
        assert deadline is None or deadline > now_ms, "a call at that time would do nothing else"
    assert peer.heard() == []
    peer.engine.open()
    assert isinstance(peer.heard()[0].body, Open)


@settings(deadline=None)
@given(
    theirs=st.integers(100, 160),
    words=st.lists(st.integers(0, 300), max_size=20),
)
def test_heartbeat_is_never_later_than_half_of_timeout(theirs: int, words: list[int]) -> None:
    peer = opened(Side.SERVER, theirs=theirs)
    spoken = [0]
    deadline = peer.engine.tick(0)
    peer.engine.data_to_send()
    for now_ms in range(1, 320):
        if now_ms in words:
            peer.engine._writer.write(0, b"")
        if deadline is not None and now_ms >= deadline:
            deadline = peer.engine.tick(now_ms)
        spoken += [now_ms] * (len(peer.engine.data_to_send()) // HEADER_SIZE)
    assert all(later - earlier <= theirs // 2 for earlier, later in pairwise([*spoken, 320]))


# The peer's silence.


@pytest.mark.parametrize("side", Side)
def test_silent_peer_is_closed_after_twice_our_timeout(side: Side) -> None:
    peer = opened(side, ours=1000)
    assert peer.engine.tick(0) == 2000
    assert peer.engine.tick(1999) == 2000
    with pytest.raises(IdleTimeoutError) as caught:
        peer.engine.tick(2000)
    assert caught.value.condition == "amqp:resource-limit-exceeded"
    (heard,) = peer.heard()
    assert heard.body.error.condition == "amqp:resource-limit-exceeded"
    assert "2000 ms" in heard.body.error.description
    assert peer.engine.is_closed
    assert peer.engine.tick(5000) is None, "nothing is left to wait for"
    assert peer.say(frame()) == []


def test_any_received_byte_counts_as_activity() -> None:
    peer = opened(Side.SERVER, ours=1000)
    peer.engine.tick(0)
    peer.say(frame())
    assert peer.engine.tick(1900) == 3900
    peer.say(frame()[:3])
    assert peer.engine.tick(3800) == 5800
    with pytest.raises(IdleTimeoutError):
        peer.engine.tick(5800)


def test_peer_that_never_sends_is_closed_without_close_frame() -> None:
    engine = Connection(Configuration(container_id="engine", idle_time_out_ms=1000))
    assert engine.tick(50) == 2050
    with pytest.raises(IdleTimeoutError):
        engine.tick(2050)
    assert engine.data_to_send() == b""
    assert engine.is_closed


def test_next_deadline_is_the_nearer_one() -> None:
    peer = opened(Side.SERVER, ours=200, theirs=1000)
    assert peer.engine.tick(0) == 400
    peer.say(frame())
    assert peer.engine.tick(350) == 500
    assert peer.engine.tick(500) == 750
    assert peer.heard() == [EMPTY]


def test_closed_connection_has_no_deadline() -> None:
    peer = opened(Side.SERVER, ours=300, theirs=1000)
    peer.engine.tick(0)
    peer.engine.close()
    peer.heard()
    assert peer.engine.tick(10_000) is None
    assert peer.heard() == []


def test_two_engines_keep_each_other_alive() -> None:
    left = opened(Side.CLIENT, ours=1000, theirs=1000).engine
    right = opened(Side.SERVER, ours=1000, theirs=1000).engine
    exchanged = 0
    for now_ms in range(0, 20_000, 100):
        for one, other in ((left, right), (right, left)):
            one.tick(now_ms)
            data = one.data_to_send()
            exchanged += len(data)
            other.receive_data(data)
    assert left.is_open
    assert right.is_open
    assert exchanged == 2 * 39 * HEADER_SIZE, "an empty frame every 500 ms from each"
