"""Measures how the engine's cost grows: ten times the work should take ten times the time, or less."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable

from pairbus.wire import ACCEPTED, SENDER, Configuration, Delivery
from tests.wire.pair import ConnectionPair

REPEATS = 5


class Pair(ConnectionPair):
    """Two engines joined in memory, with a link that takes as much as comes."""

    def __init__(self) -> None:
        super().__init__(server=Configuration(container_id="server", incoming_window=2**31 - 1))
        self.session = self.open()
        self.sender, receiver = self.attach(self.session, "growth", SENDER)
        receiver.flow(1_000_000)
        self.exchange()

    @property
    def arrived(self) -> list[Delivery]:
        return [event for event in self.server_events if isinstance(event, Delivery)]


def send_one_message(size: int) -> float:
    """Seconds for one message of ``size`` bytes, cut into frames and put together again."""
    pair = Pair()
    payload = bytes(size)
    start = time.perf_counter()
    pair.sender.send(payload, tag=b"1")
    pair.exchange()
    seconds = time.perf_counter() - start
    assert pair.arrived[0].payload == payload
    return seconds


def settle_backwards(count: int) -> float:
    """Seconds to settle ``count`` waiting deliveries one by one, last first, so that no range helps."""
    pair = Pair()
    for number in range(count):
        pair.sender.send(b"x", tag=number.to_bytes(4, "big"))
    pair.exchange()
    arrived = pair.arrived
    assert len(arrived) == count
    start = time.perf_counter()
    for delivery in reversed(arrived):
        delivery.link.settle(delivery, ACCEPTED)
    pair.exchange()
    seconds = time.perf_counter() - start
    assert pair.session.unsettled == 0
    return seconds


def dribble(size: int) -> float:
    """Seconds for a frame of ``size`` bytes that arrives byte by byte."""
    pair = Pair()
    pair.sender.send(bytes(size), tag=b"1")
    data = pair.client.data_to_send()
    start = time.perf_counter()
    for position in range(len(data)):
        pair.server.receive_data(data[position : position + 1])
    return time.perf_counter() - start


def waiting_memory(count: int) -> float:
    """Bytes that one end holds for each of ``count`` small deliveries that wait to be settled, payload included."""
    pair = Pair()
    for number in range(count):
        pair.sender.send(b"x", tag=number.to_bytes(4, "big"))
    data = pair.client.data_to_send()
    tracemalloc.start()
    events = pair.server.receive_data(data)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(events) == count
    return held / count


def median(work: Callable[[int], float], size: int) -> float:
    return statistics.median(work(size) for _ in range(REPEATS))


def report() -> None:
    """Print what ten times the work costs."""
    print(f"Ten times the work, plain Python (median of {REPEATS})")
    rows: list[tuple[str, Callable[[int], float], int]] = [
        ("one message of 100 KB, then 1 MB", send_one_message, 100_000),
        ("settle 2,000 waiting deliveries one by one, then 20,000", settle_backwards, 2_000),
        ("a frame of 6 KB byte by byte, then 60 KB", dribble, 6_000),
    ]
    for what, work, size in rows:
        small, large = median(work, size), median(work, size * 10)
        print(f"{what:60} {small * 1e3:8.2f} ms {large * 1e3:8.2f} ms   x {large / small:.1f}")
    small, large = waiting_memory(2_000), waiting_memory(20_000)
    print(f"{'memory of a waiting delivery among 2,000, then 20,000':60} {small:8.0f} B  {large:8.0f} B")
