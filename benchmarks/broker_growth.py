"""Measures how the broker's cost of a message grows when a queue is ten times as long."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.broker import NOW, QUEUE, make_namespace
from pairbus.broker import Namespace, NewMessage, QueueDescription, SettlementKind, SettlementRequest
from pairbus.store import GroupCommitter, MemoryStore

FEW, MANY = 10_000, 100_000
SAMPLE = 5_000
REPEATS = 3
HOUR = 3_600_000


def _namespace(description: QueueDescription) -> Namespace:
    namespace = GroupCommitter(MemoryStore(), make_namespace, NOW).namespace
    namespace.create_queue("orders", description, NOW)
    return namespace


def _send(namespace: Namespace, count: int) -> None:
    for number in range(count):
        namespace.send(QUEUE, (NewMessage(b"x", str(number)),), NOW)


def receive_and_settle(count: int) -> float:
    """Seconds to lock and complete the first messages of a queue."""
    namespace = _namespace(QueueDescription())
    _send(namespace, count)
    start = time.perf_counter()
    for delivery in namespace.receive(QUEUE, SAMPLE, NOW):
        namespace.settle(QUEUE, delivery.lock_token or b"", NOW)
    return time.perf_counter() - start


def settle_last_first(count: int) -> float:
    """Seconds to complete messages while all of them are locked, the newest first."""
    namespace = _namespace(QueueDescription())
    _send(namespace, count)
    deliveries = namespace.receive(QUEUE, count, NOW)
    start = time.perf_counter()
    for delivery in reversed(deliveries[-SAMPLE:]):
        namespace.settle(QUEUE, delivery.lock_token or b"", NOW)
    return time.perf_counter() - start


def abandon(count: int) -> float:
    """Seconds to abandon messages, each of which goes back to its place."""
    namespace = _namespace(QueueDescription(max_delivery_count=1_000_000))
    _send(namespace, count)
    deliveries = namespace.receive(QUEUE, SAMPLE, NOW)
    start = time.perf_counter()
    for delivery in deliveries:
        namespace.settle(QUEUE, delivery.lock_token or b"", NOW, SettlementRequest(disposition=SettlementKind.ABANDON))
    return time.perf_counter() - start


def schedule(count: int) -> float:
    """Seconds to schedule messages for an earlier time than all that wait already, and to have them become active."""
    namespace = _namespace(QueueDescription())
    for number in range(count):
        namespace.send(QUEUE, (NewMessage(b"x", str(number), scheduled_ms=NOW + HOUR + number),), NOW)
    start = time.perf_counter()
    for number in range(SAMPLE):
        namespace.send(QUEUE, (NewMessage(b"x", str(number), scheduled_ms=NOW + HOUR - number),), NOW)
    namespace.advance(NOW + HOUR - 1)
    return time.perf_counter() - start


def expire(count: int) -> float:
    """Seconds for the first messages of a queue to expire into its dead letters."""
    namespace = _namespace(QueueDescription(dead_letter_on_expiration=True))
    for number in range(count):
        namespace.send(QUEUE, (NewMessage(b"x", str(number), time_to_live_ms=1_000 + number),), NOW)
    start = time.perf_counter()
    namespace.advance(NOW + 1_000 + SAMPLE)
    return time.perf_counter() - start


def detect_duplicates(count: int) -> float:
    """Seconds to take in new messages, and as many duplicates of old ones."""
    namespace = _namespace(QueueDescription(requires_duplicate_detection=True))
    _send(namespace, count)
    start = time.perf_counter()
    for number in range(SAMPLE // 2):
        namespace.send(QUEUE, (NewMessage(b"x", str(number)), NewMessage(b"x", f"new-{number}")), NOW)
    return time.perf_counter() - start


def work_in_sessions(count: int) -> float:
    """Seconds to accept the next session, receive and complete its message and let it go; each has one message."""
    namespace = _namespace(QueueDescription(requires_session=True))
    for number in range(count):
        namespace.send(QUEUE, (NewMessage(b"x", str(number), session_id=str(number)),), NOW)
    start = time.perf_counter()
    for _ in range(SAMPLE):
        grant = namespace.accept_session(QUEUE, None, NOW)
        assert grant is not None
        (delivery,) = namespace.receive(QUEUE, 1, NOW, session_token=grant.session_token)
        namespace.settle(QUEUE, delivery.lock_token or b"", NOW)
        namespace.release_session(QUEUE, grant.session_token, NOW)
    return time.perf_counter() - start


def peek(count: int) -> float:
    """Seconds to look at single messages from the middle of a queue."""
    namespace = _namespace(QueueDescription())
    _send(namespace, count)
    start = time.perf_counter()
    for number in range(SAMPLE):
        namespace.peek(QUEUE, count // 2 + number % 100, 1, NOW)
    return time.perf_counter() - start


WORK: list[Callable[[int], float]] = [
    receive_and_settle,
    settle_last_first,
    abandon,
    schedule,
    expire,
    detect_duplicates,
    work_in_sessions,
    peek,
]


def report() -> None:
    print(f"What one message costs among {FEW:,}, then {MANY:,}; no disk (µs, median of {REPEATS})")
    for work in WORK:
        few, many = (statistics.median(work(count) for _ in range(REPEATS)) * 1e6 / SAMPLE for count in (FEW, MANY))
        print(f"{work.__name__.replace('_', ' '):40}{few:10.1f}{many:10.1f}   x {many / few:.1f}")


if __name__ == "__main__":
    report()
