"""Pairing for synchronous code, with two real namespaces."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from threading import current_thread
from typing import Any, assert_type

import pytest

import pairbus
from pairbus.blocking import (
    FAILURE_RULES,
    BrokeredMessage,
    ClosedError,
    EntityChanged,
    EntityState,
    InvalidRequestError,
    MessagingFactory,
    MessagingTimeoutError,
    NamespaceManager,
    NamespacePair,
    PairedNamespaceOptions,
    PairEvent,
    SendAvailabilityPairedNamespaceOptions,
    SyphonSettings,
    UnauthorizedError,
)
from pairbus.testing import RunningNamespace, running_namespace
from tests.blocking.make_facade import ATTRIBUTES, NOT_FOR_APPLICATIONS
from tests.waiting import eventually

AT_ONCE = timedelta()
SOON = timedelta(seconds=30)
QUEUE = "orders"
BACKLOG = ["contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Two:
    """Two namespaces, with what synchronous code has of each."""

    contoso: RunningNamespace
    fabrikam: RunningNamespace
    primary: MessagingFactory
    primary_manager: NamespaceManager
    secondary: MessagingFactory
    secondary_manager: NamespaceManager

    def options(self, **options: Any) -> SendAvailabilityPairedNamespaceOptions:
        """Return options that divert a message at the first failure, unless overridden."""
        usual = {"backlog_queue_count": 2, "failover_interval": AT_ONCE, "primary_name": "contoso"}
        return SendAvailabilityPairedNamespaceOptions(self.secondary_manager, self.secondary, **{**usual, **options})

    def receive_text(self) -> str:
        with self.primary.create_message_receiver(QUEUE) as receiver:
            (message,) = receiver.receive(max_wait_time=SOON)
            receiver.complete(message)
            return message.text()


@pytest.fixture(scope="module")
def namespaces() -> Iterator[tuple[RunningNamespace, RunningNamespace]]:
    with running_namespace(queues=[QUEUE]) as contoso, running_namespace() as fabrikam:
        yield contoso, fabrikam


@pytest.fixture
def two(namespaces: tuple[RunningNamespace, RunningNamespace]) -> Iterator[Two]:
    contoso, fabrikam = namespaces
    with ExitStack() as stack:
        yield Two(
            contoso=contoso,
            fabrikam=fabrikam,
            primary=stack.enter_context(MessagingFactory.from_connection_string(contoso.connection_string)),
            primary_manager=stack.enter_context(NamespaceManager.from_connection_string(contoso.connection_string)),
            secondary=stack.enter_context(MessagingFactory.from_connection_string(fabrikam.connection_string)),
            secondary_manager=stack.enter_context(NamespaceManager.from_connection_string(fabrikam.connection_string)),
        )


def state(pair: NamespacePair) -> EntityState:
    (entity,) = pair.status().entities
    return entity.state


def test_c3_send_is_diverted_during_outage_and_restored_after_it(two: Two) -> None:
    before = two.primary.create_message_sender(QUEUE)
    pair = assert_type(two.primary.pair_namespace(two.options()), NamespacePair)
    after = two.primary.create_queue_client(QUEUE)
    before.send(BrokeredMessage("to the primary"))
    assert two.receive_text() == "to the primary"
    assert state(pair) is EntityState.HEALTHY

    two.contoso.stop()
    try:
        before.send(BrokeredMessage("diverted"))
        after.send(BrokeredMessage("diverted too"))
        assert state(pair) is EntityState.FAILED_OVER
        assert pair.status().diverted == 2
        depth = pair.backlog_depth()
        assert [*depth] == BACKLOG
        assert sum(depth.values()) == 2
    finally:
        two.contoso.start()

    pair.release(QUEUE)
    assert state(pair) is EntityState.HEALTHY
    before.send(BrokeredMessage("to the primary again"))
    assert two.receive_text() == "to the primary again"
    assert sum(pair.backlog_depth().values()) == 2
    _empty(two)


def _empty(two: Two) -> None:
    for path in BACKLOG:
        two.secondary_manager.delete_queue(path)


def test_c21_pair_is_switched_manually(two: Two) -> None:
    pair = two.primary.pair_namespace(two.options())
    sender = two.primary.create_message_sender(QUEUE)
    pair.engage()
    assert state(pair) is EntityState.HELD_OVER
    sender.send(BrokeredMessage("diverted"))
    assert pair.status().diverted == 1
    pair.release()
    assert state(pair) is EntityState.HEALTHY
    pair.engage(QUEUE)
    assert state(pair) is EntityState.HELD_OVER
    with pytest.raises(TypeError, match="path must be str or None"):
        pair.engage(1)  # type: ignore[arg-type]
    _empty(two)


@pytest.mark.slow
def test_c21_drill_proves_pair(two: Two) -> None:
    pair = two.primary.pair_namespace(two.options(enable_syphon=True))
    report = pair.drill(two.primary_manager, SOON)
    assert report.total < SOON
    assert not two.primary_manager.queue_exists(report.path)
    syphon = pair.status().syphon
    assert syphon is not None
    assert syphon.syphoned == 1


def test_c21_drill_without_syphon_reports_missing_syphon(two: Two) -> None:
    pair = two.primary.pair_namespace(two.options())
    with pytest.raises(MessagingTimeoutError, match="is a syphon running"):
        pair.drill(two.primary_manager, max_wait_time=timedelta(milliseconds=10))
    with pytest.raises(TypeError, match="primary_namespace_manager must be NamespaceManager"):
        pair.drill(two.primary)  # type: ignore[arg-type]
    _empty(two)


def test_c19_listener_is_called_on_loop_thread_until_unsubscribed(two: Two) -> None:
    pair = two.primary.pair_namespace(two.options())
    heard: list[tuple[str, PairEvent]] = []
    unsubscribe = pair.subscribe(lambda event: heard.append((current_thread().name, event)))
    pair.engage(QUEUE)
    unsubscribe()
    pair.release(QUEUE)
    ((thread, event),) = heard
    assert thread == "pairbus-blocking"
    assert isinstance(event, EntityChanged)
    assert (event.path, event.state) == (QUEUE, EntityState.HELD_OVER)
    with pytest.raises(TypeError, match="must be callable"):
        pair.subscribe(None)  # type: ignore[arg-type]


def test_listener_with_blocking_call_raises(two: Two) -> None:
    pair = two.primary.pair_namespace(two.options())
    refused: list[BaseException] = []

    def listener(event: PairEvent) -> None:
        with pytest.raises(RuntimeError, match="or a listener") as caught:
            pair.status()
        refused.append(caught.value)

    pair.subscribe(listener)
    pair.engage(QUEUE)
    assert len(refused) == 1


def test_c19_events_iterate_until_factory_is_closed(two: Two) -> None:
    pair = two.primary.pair_namespace(two.options())
    heard: SimpleQueue[PairEvent] = SimpleQueue()

    def listen() -> int:
        number = 0
        for number, event in enumerate(pair.events(), 1):  # noqa: B007 (how many there were)
            heard.put(event)
        return number

    with ThreadPoolExecutor(1) as threads:
        listening = threads.submit(listen)
        eventually(lambda: not heard.empty(), step=lambda: _switch_back_and_forth(pair))
        two.primary.close()
        assert listening.result(timeout=60) == heard.qsize()
    assert isinstance(heard.get(), EntityChanged)


def _switch_back_and_forth(pair: NamespacePair) -> None:
    pair.engage(QUEUE)
    pair.release(QUEUE)


def test_abandoned_event_iteration_stops_collecting(two: Two) -> None:
    pair = two.primary.pair_namespace(two.options())
    inner = pair._inner
    with ThreadPoolExecutor(1) as threads:
        listening = threads.submit(_first, pair)
        eventually(listening.done, step=lambda: _switch_back_and_forth(pair))
        assert isinstance(listening.result(), EntityChanged)
    eventually(lambda: not inner._listeners._listeners)


def _first(pair: NamespacePair) -> PairEvent:
    for event in pair.events():
        return event
    pytest.fail("the pair was closed")


def test_options_keep_their_arguments(two: Two) -> None:
    options = two.options(failover_interval=SOON, enable_syphon=True, preserve_session_order=True)
    assert options.secondary_namespace_manager is two.secondary_manager
    assert options.messaging_factory is two.secondary
    assert (options.backlog_queue_count, options.failover_interval) == (2, SOON)
    assert (options.enable_syphon, options.preserve_session_order) == (True, True)
    assert (options.ping_interval, options.attempt_timeout) == (timedelta(minutes=1), timedelta(seconds=5))
    assert (options.failure_rules, options.syphon) == (FAILURE_RULES, SyphonSettings())
    assert (options.primary_name, options.syphon_engine) == ("contoso", "in-process")


def test_options_have_attributes_and_signature_of_asyncio_options(two: Two) -> None:
    theirs = pairbus.SendAvailabilityPairedNamespaceOptions
    options = two.options()
    assert vars(options._inner).keys() == ATTRIBUTES[theirs].keys()
    assert inspect.signature(SendAvailabilityPairedNamespaceOptions) == inspect.signature(theirs)


def test_options_are_paired_namespace_options(two: Two) -> None:
    assert isinstance(two.options(), PairedNamespaceOptions)
    assert issubclass(SendAvailabilityPairedNamespaceOptions, PairedNamespaceOptions)


@pytest.mark.parametrize("kind", [MessagingFactory, NamespacePair, SendAvailabilityPairedNamespaceOptions])
def test_internal_methods_are_hidden(kind: type) -> None:
    hidden = NOT_FOR_APPLICATIONS[getattr(pairbus, kind.__name__)]
    assert not [name for name in hidden if hasattr(kind, name)]


BAD = [
    ({"backlog_queue_count": 0}, ValueError),
    ({"backlog_queue_count": "ten"}, TypeError),
    ({"failover_interval": timedelta(minutes=61)}, ValueError),
    ({"failover_interval": 60}, TypeError),
    ({"ping_interval": AT_ONCE}, ValueError),
    ({"enable_syphon": 1}, TypeError),
    ({"failure_rules": {"a": "b"}}, TypeError),
    ({"primary_name": ""}, ValueError),
]


@pytest.mark.parametrize(("bad", "error"), BAD, ids=str)
def test_c4_invalid_options_raise_as_with_asyncio(two: Two, bad: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as ours:
        two.options(**bad)
    with pytest.raises(error) as theirs:
        pairbus.SendAvailabilityPairedNamespaceOptions(
            pairbus.NamespaceManager.from_connection_string(two.fabrikam.connection_string),
            pairbus.MessagingFactory.from_connection_string(two.fabrikam.connection_string),
            **bad,
        )
    assert str(ours.value) == str(theirs.value)


def test_c4_options_require_blocking_objects(two: Two) -> None:
    make: Callable[..., object] = SendAvailabilityPairedNamespaceOptions
    with pytest.raises(TypeError, match="secondary_namespace_manager must be NamespaceManager, got None"):
        make(None, two.secondary)
    with pytest.raises(TypeError, match="messaging_factory must be MessagingFactory"):
        make(two.secondary_manager, two.secondary_manager)
    with pytest.raises(TypeError, match="secondary_namespace_manager must be NamespaceManager"):
        make(pairbus.NamespaceManager.from_connection_string(two.fabrikam.connection_string), two.secondary)
    with pytest.raises(TypeError, match="options must be SendAvailabilityPairedNamespaceOptions"):
        two.primary.pair_namespace(None)  # type: ignore[arg-type]


def test_c4_namespace_is_paired_once_with_another(two: Two) -> None:
    to_itself = SendAvailabilityPairedNamespaceOptions(two.primary_manager, two.primary)
    with pytest.raises(ValueError, match="is the primary"):
        two.primary.pair_namespace(to_itself)
    two.primary.pair_namespace(two.options())
    with pytest.raises(InvalidRequestError, match="is already paired"):
        two.primary.pair_namespace(two.options())


def test_c3_failed_pairing_raises_and_can_be_retried(two: Two) -> None:
    wrong = two.fabrikam.connection_string.replace(two.fabrikam.key, "d3Jvbmc=")
    with NamespaceManager.from_connection_string(wrong) as unproven_peer, pytest.raises(UnauthorizedError):
        two.primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(unproven_peer, two.secondary, primary_name="contoso")
        )
    assert two.primary.pair_namespace(two.options()).status().entities == ()


def test_pair_closes_with_its_factory(two: Two) -> None:
    pair = two.primary.pair_namespace(two.options())
    two.primary.close()
    with pytest.raises(ClosedError):
        pair.engage()
    assert not two.secondary.is_closed


FORK = """
import os, sys
from pairbus.blocking import (
    ClosedError, MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions
)
primary, secondary = map(MessagingFactory.from_connection_string, sys.argv[1:])
manager = NamespaceManager.from_connection_string(sys.argv[2])
options = SendAvailabilityPairedNamespaceOptions(manager, secondary, primary_name="contoso")
manager.get_queues()
child = os.fork()
if child == 0:
    try:
        primary.pair_namespace(options)
    except ClosedError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no forks")
def test_objects_used_before_fork_cannot_be_paired_in_child(two: Two) -> None:
    # Newer versions of Python warn of any fork beside threads, which is what this is about.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]
    namespaces = [two.contoso.connection_string, two.fabrikam.connection_string]
    done = subprocess.run([*command, *namespaces], capture_output=True, text=True, check=True, timeout=60)
    assert "was used before this process was forked" in done.stdout
