"""B4: a component that hangs is noticed: a task is restarted, and a thread, which cannot be, is reported as stuck."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pairbus.console.sampler import Sampler
from pairbus.fault_kinds import CrashComponent, FaultKind
from pairbus.ledger.files import LedgerFiles
from pairbus.server import components, jwt, scrubbing
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.audit import NOBODY
from pairbus.server.listener import Listener
from pairbus.server.scrubbing import Scrubber
from pairbus.server.side_buffer.replayer import Replayer
from pairbus.server.supervision.supervisor import CHECK_EVERY_S, MAX_RESTARTS, Problem, SupervisedTask
from pairbus.server.supervision.watchdog import LoopWatchdog
from pairbus.store.bundles import BundleDirectory
from pairbus.store.rotating_log import RotatingLog
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED
from tests.server.amqp.test_failed_commits import condition_of
from tests.server.amqp.wire_client import body_of, connect, text_message
from tests.server.supervision.test_b4_self_repair import (
    NOTICED_S,
    bundle_about,
    drained,
    fill,
    has_restarted,
    health,
    on_loop,
    repaired,
    services_of,
    status_of,
)
from tests.server.supervision.traffic import Traffic
from tests.server.test_jwt import DOCUMENT
from tests.waiting import eventually

LIMIT_S = 0.5


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNamespace]:
    """Run a namespace with all components, and a scrubber that does not pause."""
    monkeypatch.setattr(scrubbing, "_LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(scrubbing, "_RETRY_S", 0.02)
    keys = tmp_path / "keys.json"
    keys.write_bytes(DOCUMENT)
    with running_namespace(
        queues=["orders", "other"],
        side_buffer=tmp_path / "buffer",
        ledger=tmp_path / "ledger",
        jwt_keys=str(keys),
        jwt_issuer="https://issuer.example",
        scrub_days=0.02 / 86_400,
    ) as opened:
        yield opened


def hang_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[bool]:
    """Let the next call of a coroutine function hang, once the returned list is filled."""
    original = getattr(owner, name)
    armed: list[bool] = []

    async def method(self: Any, *args: Any) -> Any:
        if armed:
            armed.pop()
            await asyncio.Event().wait()
        return await original(self, *args)

    monkeypatch.setattr(owner, name, method)
    return armed


def sample_at_all_times(services: AmqpServices) -> None:
    sampler = Sampler(services)
    sampler.viewing().__enter__()
    sampling = SupervisedTask("pairbus-console", sampler.run, sampler.heartbeat)
    sampling.start()
    services.supervisor.add(components.console(sampling, services.host))


@pytest.mark.parametrize(
    ("name", "owner", "method"),
    [
        ("console", Sampler, "_sample"),
        ("scrubber", Scrubber, "_check"),
        ("side-buffer", Replayer, "_run_round"),
        ("signing-keys", jwt.SigningKeys, "_refresh"),
    ],
)
def test_task_that_hangs_is_restarted(
    namespace: RunningNamespace, monkeypatch: pytest.MonkeyPatch, name: str, owner: type, method: str
) -> None:
    monkeypatch.setitem(components.MAX_SILENCE_S, name, LIMIT_S)
    armed = hang_once(monkeypatch, owner, method)
    if name == "console":
        on_loop(namespace, sample_at_all_times)
    armed.append(True)
    if name == "signing-keys":
        on_loop(namespace, want_keys)
    elif name == "side-buffer":
        with namespace.faults.engaged(FaultKind.STORAGE_ERROR):
            fill(namespace, "buffered")
    with Traffic(namespace) as traffic:
        eventually(lambda: has_restarted(namespace, name))
        assert status_of(namespace, name).reason.startswith("it hangs: no heartbeat for ")
        eventually(lambda: health(namespace) == (200, "ok", ""))
        traffic.goes_on()
    assert not armed
    bundle_about(namespace, name)
    if name == "side-buffer":
        assert drained(namespace, 1) == ["buffered"]


def write_audit_record(services: AmqpServices) -> None:
    services.host.audit.record("test", NOBODY)


def write_bundle(services: AmqpServices) -> None:
    assert services.diagnostics is not None
    services.diagnostics.report("test", Problem(reason="a test"))


def want_keys(services: AmqpServices) -> None:
    verify = services.authorizer._verify_jwt
    assert isinstance(verify, jwt.JwtVerifier)
    verify.keys.wanted()


def probe_side_buffer(services: AmqpServices) -> None:
    """Hold up the thread that waits for the disk of the side buffer."""
    assert services.host.side_buffer is not None
    services.host.side_buffer._archive._thread.submit(Held.wait)


class Held:
    """A gate that holds up a thread."""

    release = Event()
    is_reached = Event()

    @classmethod
    def wait(cls) -> None:
        cls.is_reached.set()
        assert cls.release.wait(120)


THREADS: dict[str, tuple[Any, str, Callable[[AmqpServices], object]]] = {
    "audit-log": (RotatingLog, "append", write_audit_record),
    "diagnostics": (BundleDirectory, "write", write_bundle),
    "ledger": (LedgerFiles, "append", lambda _services: None),  # it records the traffic
    "scrubber": (scrubbing, "scrub_slice", lambda _services: None),
    "side-buffer": (Held, "", probe_side_buffer),
    "signing-keys": (jwt._File, "read", want_keys),
    "watchdog": (LoopWatchdog, "_poll", lambda _services: None),
}


@pytest.mark.parametrize("name", THREADS)
def test_thread_that_hangs_is_reported_as_stuck_until_it_answers(
    namespace: RunningNamespace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    owner, method, stir = THREADS[name]
    for limit in (name, f"{name} disk"):
        if limit in components.MAX_SILENCE_S:
            monkeypatch.setitem(components.MAX_SILENCE_S, limit, LIMIT_S)
    Held.release.clear()
    Held.is_reached.clear()
    if method:
        original = getattr(owner, method)

        def held(*args: Any) -> Any:
            Held.wait()
            return original(*args)

        monkeypatch.setattr(owner, method, held)
    try:
        with Traffic(namespace) as traffic:
            on_loop(namespace, stir)
            eventually(Held.is_reached.is_set)
            eventually(lambda: status_of(namespace, name).state == "stuck")
            status, word, problems = health(namespace)
            assert (status, word) == (200, "degraded")
            assert problems.startswith(f"component {name} is stuck: it hangs: no heartbeat for ")
            traffic.goes_on()
            Held.release.set()
            eventually(lambda: status_of(namespace, name).state == "running")
            eventually(lambda: health(namespace) == (200, "ok", ""))
        bundle_about(namespace, name)
        assert not has_restarted(namespace, name), "a thread cannot be cancelled"
    finally:
        Held.release.set()


def test_stuck_ledger_is_noticed_in_time() -> None:
    assert components.MAX_SILENCE_S["ledger"] + 2 * CHECK_EVERY_S <= NOTICED_S


def test_listening_socket_that_the_loop_has_lost_is_noticed(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    listener = getattr(services_of(namespace).supervisor._entries["listener"].component.check, "__self__", None)
    assert isinstance(listener, Listener)

    def lose(services: AmqpServices) -> None:
        for each in listener._sockets:
            services.host.loop.remove_reader(each)

    with (
        socket.socket() as client,
        repaired(namespace, "listener", caplog, lambda: fill(namespace, "new connection")),
    ):
        on_loop(namespace, lose)
        with suppress(ConnectionRefusedError):  # another client was there first, and the restart has begun
            client.connect(("127.0.0.1", namespace.port))
    assert drained(namespace, 1) == ["new connection"]


# A component that dies again and again.


def test_commit_thread_that_dies_four_times_leaves_sends_busy_and_loses_nothing() -> None:
    with running_namespace(queues=["orders"], storage_timeout_s=0.2) as namespace, connect(namespace) as client:
        sender = client.sender("orders")

        def send(body: str) -> object:
            return client.send(sender, text_message(body))

        for number in range(MAX_RESTARTS):
            namespace.faults.engage(FaultKind.COMPONENT_CRASH, component=CrashComponent.COMMIT_THREAD)
            eventually(
                lambda number=number: status_of(namespace, "commit-thread").restarts > number,  # type: ignore[misc]
                step=lambda: send("retried"),
            )
        eventually(lambda: send("confirmed") == ACCEPTED)
        namespace.faults.engage(FaultKind.COMPONENT_CRASH, component=CrashComponent.COMMIT_THREAD)
        unconfirmed = client.begin_send(sender, text_message("unconfirmed"))
        eventually(lambda: status_of(namespace, "commit-thread").state == "stopped")
        status, word, problems = health(namespace)
        assert (status, word) == (503, "unavailable")
        assert "component commit-thread is stopped: its thread has ended" in problems
        assert condition_of(client.outcome(unconfirmed)) == "com.microsoft:server-busy"
        assert condition_of(send("refused")) == "com.microsoft:server-busy"
        namespace.restart()
        eventually(lambda: health(namespace) == (200, "ok", ""))
        with connect(namespace) as receiving:
            link = receiving.receiver("orders", deletes=True)
            eventually(lambda: body_of(receiving.receive_one(link)) == b"confirmed")


def test_ledger_that_dies_four_times_is_stopped_and_sends_go_on(tmp_path: Path) -> None:
    with running_namespace(queues=["orders", "other"], ledger=tmp_path / "ledger") as namespace:
        for number in range(MAX_RESTARTS + 1):
            namespace.faults.engage(FaultKind.COMPONENT_CRASH, component=CrashComponent.LEDGER)
            eventually(
                lambda number=number: (  # type: ignore[misc]
                    status_of(namespace, "ledger").restarts > number
                    or status_of(namespace, "ledger").state == "stopped"
                )
            )
        status, word, problems = health(namespace)
        assert (status, word) == (200, "degraded")
        assert problems.startswith("component ledger is stopped: ")
        fill(namespace, "goes on")
        assert drained(namespace, 1) == ["goes on"]
        namespace.restart()
        assert health(namespace) == (200, "ok", "")
