"""B4: a component of a running server that fails is noticed, described in a bundle, and restarted alone.

Each test breaks one component while another entity has traffic. It expects that the failure is noticed within 5 s, that
what depends on the component works again within 30 s, and that the traffic has no gap of more than 1 s.
"""

from __future__ import annotations

import base64
import ctypes
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from pairbus.broker import Address, Namespace, NewMessage, QueueDescription
from pairbus.ledger.events import OPERATIONS
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.audit import NOBODY, audit_file
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.listener import Listener
from pairbus.server.side_buffer.replayer import Replayer
from pairbus.server.supervision.supervisor import MAX_RESTARTS, ComponentStatus
from pairbus.server.throttle.throttle import ThrottleTimer
from pairbus.store.keys import record_key
from pairbus.store.page_nodes import LostPage
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Link
from tests.server.amqp.wire_client import WireClient, body_of, connect, text_message
from tests.server.ledger_rows import rows_of
from tests.server.supervision.traffic import Traffic
from tests.server.test_jwt import DOCUMENT
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of killed threads

ORDERS: Final = Address.of("orders")
DAMAGED: Final = Address.of("damaged")
VISITS: Final = Address.of("visits")
MANY: Final = 50_000
CONTENT: Final = "the body of a confirmed message"
NOTICED_S: Final = 5.0
REPAIRED_S: Final = 30.0
GAP_S: Final = 1.0


def services_of(namespace: RunningNamespace) -> AmqpServices:
    return namespace._running._running.services


def status_of(namespace: RunningNamespace, name: str) -> ComponentStatus:
    return next(status for status in namespace._running.components if status.name == name)


def get(namespace: RunningNamespace, path: str, method: str = "GET") -> tuple[int, str]:
    key = base64.b64encode(f"RootManageSharedAccessKey:{namespace.key}".encode()).decode()
    request = Request(
        f"http://127.0.0.1:{namespace.port}{path}", method=method, headers={"Authorization": f"Basic {key}"}
    )
    return eventually(lambda: answer_to(request))


def answer_to(request: Request) -> tuple[int, str] | None:
    """Return the answer; ``None`` if the connection was lost, as while a listener restarts."""
    try:
        with urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (URLError, ConnectionError):
        return None


def health(namespace: RunningNamespace) -> tuple[int, str, str]:
    status, text = get(namespace, "/health")
    answer = json.loads(text)
    return status, answer["status"], " ".join(answer["problems"])


def metric(namespace: RunningNamespace, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", get(namespace, "/metrics")[1], re.MULTILINE)
    assert found is not None, sample
    return float(found[1])


def bundle_about(namespace: RunningNamespace, component: str) -> dict[str, Any]:
    """Return the newest bundle about a component; none of its bytes may be a secret."""
    directory = namespace.data / "diagnostics"
    files = eventually(lambda: sorted(directory.glob(f"*-{component}.json")))
    text = files[-1].read_text("utf-8")
    for secret in (namespace.key, CONTENT, "SharedAccessSignature", "sig="):
        assert secret not in text
    bundle: dict[str, Any] = json.loads(text)
    assert bundle["component"] == component
    assert bundle["threads"]
    assert bundle["versions"]["pairbus"]
    assert bundle["settings"]["name"] == namespace.name
    assert {facet["name"] for facet in bundle["facets"]} >= {"connections", "memory"}
    assert bundle["commits"]["used_bytes"] >= 0
    return bundle


def has_restarted(namespace: RunningNamespace, name: str) -> bool:
    return any(status.name == name and status.restarts for status in namespace._running.components)


@contextmanager
def repaired(
    namespace: RunningNamespace,
    name: str,
    caplog: pytest.LogCaptureFixture,
    works: Callable[[], object],
    kind: str | None = None,
) -> Iterator[None]:
    """Break a component in the block. Expect that this is noticed in time, and that ``works`` returns in time after.

    Meanwhile, another entity has traffic, without a gap.
    """
    with Traffic(namespace) as traffic:
        began_s = time.monotonic()
        yield
        eventually(lambda: has_restarted(namespace, name))
        noticed_s = time.monotonic() - began_s
        eventually(lambda: status_of(namespace, name).state == "running")  # a listener refuses connections until then
        works()
        repaired_s = time.monotonic() - began_s
        eventually(lambda: health(namespace) == (200, "ok", ""))
        traffic.goes_on()
    assert noticed_s <= NOTICED_S
    assert repaired_s <= REPAIRED_S
    assert traffic.longest_gap_s <= GAP_S
    assert metric(namespace, f'pairbus_component_restarts_total{{component="{kind or name}"}}') >= 1
    bundle_about(namespace, kind or name)
    lines = [record.getMessage() for record in caplog.records]
    where = f"namespace={namespace.name} component={name}"
    assert any(line.startswith(f"component failed, restarting {where} reason=") for line in lines)
    assert f"component restarted {where} restarts=1" in lines


def on_loop(namespace: RunningNamespace, function: Callable[[AmqpServices], object]) -> None:
    namespace.call(lambda _host: function(services_of(namespace)))


def once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, break_: Callable[..., object]) -> list[bool]:
    """Replace the next call of a method once the returned list is filled."""
    original = getattr(owner, name)
    armed: list[bool] = []

    def method(self: Any, *args: Any) -> Any:
        if armed and break_ is not None:
            armed.pop()
            return break_(self, *args)
        return original(self, *args)

    monkeypatch.setattr(owner, name, method)
    return armed


def lose_wake_up(
    namespace: RunningNamespace, monkeypatch: pytest.MonkeyPatch, name: str, address: Address | None = None
) -> None:
    """Lose what the broker reports next, as a defect would: of a session, or of an address."""
    original = getattr(Namespace, name)
    lost: list[object] = []

    def take(self: Namespace) -> list[Any]:
        found = original(self)
        if self is namespace._running.host.committer.namespace and not lost:
            lost.extend(each for each in found if address in {None, each})
            return [each for each in found if each not in lost]
        return list(found)

    monkeypatch.setattr(Namespace, name, take)


def defect(*_: object) -> object:
    raise RuntimeError(f"a defect near {CONTENT}")


def kill(thread: Thread) -> None:
    """End a thread at its next step."""
    assert thread.ident is not None
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)) == 1


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["backlog", "orders", "other"]) as opened:
        yield opened


def fill(namespace: RunningNamespace, *bodies: str, queue: str = "orders") -> None:
    with connect(namespace) as client:
        sender = client.sender(queue)
        for body in bodies:
            assert client.send(sender, text_message(body)) == ACCEPTED


def expect_round_trip(namespace: RunningNamespace) -> None:
    fill(namespace, "after")
    assert drained(namespace, 1) == ["after"]


def drained(namespace: RunningNamespace, count: int) -> list[str]:
    with connect(namespace) as client:
        link = client.receiver("orders", credit=count, deletes=True)
        return [body_of(each).decode() for each in client.receive(link, count)]


def lose_messages(services: AmqpServices, address: Address = ORDERS) -> None:
    """Make the index lack ten messages: receivers cannot see them."""
    queue = services.host.committer.namespace._catalogue.find_queue(address)
    assert queue is not None
    for _ in range(10):
        number = queue.next_ready()
        assert number is not None
        queue.present.discard(number)


def list_another_message(services: AmqpServices) -> None:
    """Make the index list a message that the store does not have instead of one that it has; all counts stay."""
    queue = services.host.committer.namespace._catalogue.find_queue(ORDERS)
    assert queue is not None
    for numbers in queue.sets:
        assert numbers.discard(7)
        numbers.add(MANY)


def send_many(host: NamespaceHost) -> None:
    """Send 5,000 messages to a queue whose comparison then takes longer than a failure may stay unnoticed."""
    for _ in range(50):
        host.use_namespace().send(Address.of("backlog"), [NewMessage(b"body", "id")] * 100, host.now_ms())


def test_corrupted_index_is_reloaded_from_the_store(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [f"{CONTENT} {number}" for number in range(50)]
    fill(namespace, *bodies)

    def works() -> None:
        assert drained(namespace, 50) == bodies

    with repaired(namespace, "index of 'orders'", caplog, works, "index"):
        on_loop(namespace, lose_messages)
    reason = status_of(namespace, "index of 'orders'").reason
    assert re.search("the index (has 40 messages, and the store 50|lacks 10 messages of the store)", reason)
    assert any(record.getMessage().startswith("entity reloaded") for record in caplog.records)
    operations = {(row["operation"], row["entity"]) for row in bundle_about(namespace, "index")["operations"]}
    assert {("send", "other"), ("deliver", "other"), ("send", "orders")} <= operations


@pytest.mark.parametrize("corrupt", [lose_messages, list_another_message], ids=["lost", "listed wrongly"])
def test_corrupted_index_is_noticed_in_time_among_many_messages(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture, corrupt: Callable[[AmqpServices], None]
) -> None:
    for _ in range(MANY // 5_000):
        namespace.call(send_many)
    bodies = [f"{CONTENT} {number}" for number in range(50)]

    def works() -> None:
        assert drained(namespace, 51) == [*bodies, "last"]

    fill(namespace, *bodies)
    with repaired(namespace, "index of 'orders'", caplog, works, "index"):
        on_loop(namespace, corrupt)
        fill(namespace, "last")  # it has traffic


def test_damaged_page_exempts_only_its_own_entities_from_the_index_check(caplog: pytest.LogCaptureFixture) -> None:
    with running_namespace(queues=["orders", "other", "damaged"]) as namespace:
        fill(namespace, *map(str, range(50)))
        fill(namespace, *map(str, range(50)), queue="damaged")

        def damage(services: AmqpServices) -> None:
            entity_id = services.host.committer.namespace.entity_id(DAMAGED)
            assert entity_id is not None
            low, high = record_key(entity_id, 0, 0), record_key(entity_id, 0, 20)
            services.host.committer.damaged_pages.append(LostPage(7, "a test", low, high))
            lose_messages(services, DAMAGED)
            lose_messages(services, ORDERS)

        on_loop(namespace, damage)
        eventually(lambda: has_restarted(namespace, "index of 'orders'"))
        assert drained(namespace, 50) == [*map(str, range(50))]
        eventually(lambda: "entity reloaded namespace=contoso entity=orders" in caplog.text)
        assert not has_restarted(namespace, "index of 'damaged'")  # both were broken at the same time


def test_killed_commit_thread_is_restarted_and_commits_what_it_had_in_hand(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    fill(namespace, CONTENT)

    def works() -> None:
        fill(namespace, "after")
        assert drained(namespace, 2) == [CONTENT, "after"]

    with repaired(namespace, "commit-thread", caplog, works):
        thread = namespace._running.host.committer._commit_thread
        assert thread is not None
        kill(thread)


def test_stop_with_a_dead_commit_thread_commits_the_rest() -> None:
    with running_namespace(queues=["orders"]) as namespace:
        fill(namespace, "before")
        on_loop(namespace, lambda services: services.supervisor.remove("commit-thread"))
        thread = namespace._running.host.committer._commit_thread
        assert thread is not None
        kill(thread)
        with connect(namespace) as client:
            client.begin_send(client.sender("orders"), text_message("unconfirmed"))
            client.flush()
            eventually(lambda: not thread.is_alive())
            namespace.stop()
        namespace.start()
        assert drained(namespace, 2) == ["before", "unconfirmed"]


def test_blocked_loop_is_noticed_described_and_recorded(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    release = Event()

    def block_the_loop(_services: AmqpServices) -> None:
        assert release.wait(60)

    blocked = Thread(target=on_loop, args=(namespace, block_the_loop))
    watchdog = services_of(namespace).watchdog
    with Traffic(namespace) as traffic:
        began_s = time.monotonic()
        blocked.start()
        eventually(lambda: watchdog.blocked_count)
        assert time.monotonic() - began_s <= NOTICED_S
        bundle = bundle_about(namespace, "loop")  # while the loop is blocked
        release.set()
        blocked_s = time.monotonic() - began_s
        fill(namespace, CONTENT)
        assert drained(namespace, 1) == [CONTENT]
        assert time.monotonic() - began_s <= REPAIRED_S
        traffic.goes_on()
    blocked.join()
    assert traffic.longest_gap_s <= blocked_s + GAP_S  # nothing is served while the loop is blocked
    assert any("block_the_loop" in place for place in bundle["blocked"])
    eventually(lambda: metric(namespace, "pairbus_loop_blocked_seconds_total") >= 2)
    assert metric(namespace, "pairbus_loop_blocked_total") == 1
    lines = [record.getMessage() for record in caplog.records]
    assert any(re.match(r"event loop blocked seconds=[2-4]\.\d bundle=\S+-loop$", line) for line in lines)
    assert any(line.startswith("event loop resumed blocked_seconds=") for line in lines)
    assert not any(line.startswith("storage stalled") for line in lines)  # it was not the disk that did not answer
    assert all(status.restarts == 0 for status in namespace._running.components)


@pytest.mark.parametrize("break_", [defect, lambda *_: None], ids=["crashed", "lost wake-up"])
def test_dispatcher_that_failed_serves_its_receivers_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, break_: Callable[..., object]
) -> None:
    original = Dispatcher.serve
    broken: list[Address] = []

    def serve(self: Dispatcher, address: Address) -> None:
        if address == ORDERS and not broken:
            broken.append(address)
            break_()
        else:
            original(self, address)

    monkeypatch.setattr(Dispatcher, "serve", serve)
    with running_namespace(queues=["orders", "other"]) as namespace, connect(namespace) as client:
        receiver = client.receiver("orders", credit=10)
        with repaired(namespace, "dispatcher", caplog, lambda: expect_content(client, receiver)):
            fill(namespace, CONTENT)
        assert broken


def expect_content(client: WireClient, receiver: Link) -> None:
    assert [body_of(each) for each in client.receive(receiver, 1)] == [CONTENT.encode()]


def test_deliveries_that_wait_for_a_slow_commit_are_no_lost_wake_up(namespace: RunningNamespace) -> None:
    def check(services: AmqpServices) -> None:
        problems.append([services.dispatcher.problem() for _ in range(3)])

    problems: list[object] = []
    with connect(namespace) as client:
        fill(namespace, CONTENT)
        on_loop(namespace, lambda services: services.dispatcher._turns.add_removed(1_024))
        receiver = client.receiver("orders", credit=10)
        client.barrier()
        on_loop(namespace, check)
        on_loop(namespace, lambda services: services.dispatcher._turns.add_removed(-1_024))
        expect_content(client, receiver)
    assert problems == [[None] * 3]


@pytest.mark.parametrize("table", ["_receivers", "_links"])
def test_dispatcher_whose_tables_lack_a_receiver_builds_them_again(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    with connect(namespace) as client:
        receiver = client.receiver("orders", credit=10)
        client.barrier()
        with repaired(namespace, "dispatcher", caplog, lambda: expect_content(client, receiver)):
            on_loop(namespace, lambda services: getattr(services.dispatcher, table).pop(ORDERS))
            fill(namespace, CONTENT)
        assert ORDERS in services_of(namespace).host.in_use()


@pytest.fixture
def with_sessions(namespace: RunningNamespace) -> RunningNamespace:
    description = QueueDescription(requires_session=True)
    namespace.call(lambda host: host.use_namespace().create_queue(VISITS.entity, description, host.now_ms()))
    return namespace


def send_visit(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        assert client.send(client.sender("visits"), text_message(CONTENT, group_id="one")) == ACCEPTED


@pytest.mark.parametrize("break_", ["table", "wake-up"])
def test_dispatcher_that_lost_a_held_session_serves_it_again(
    with_sessions: RunningNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    break_: str,
) -> None:
    namespace = with_sessions
    with connect(namespace) as client:
        receiver = client.session_receiver("visits", "one", credit=5)
        client.barrier()
        with repaired(namespace, "dispatcher", caplog, lambda: expect_content(client, receiver)):
            if break_ == "table":
                on_loop(namespace, lambda services: services.dispatcher._holders.clear())
            else:
                lose_wake_up(namespace, monkeypatch, "take_woken_sessions")
            send_visit(namespace)


@pytest.mark.parametrize("break_", ["table", "wake-up"])
def test_dispatcher_that_lost_a_session_waiter_grants_it_a_session(
    with_sessions: RunningNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    break_: str,
) -> None:
    namespace = with_sessions
    with connect(namespace) as client:
        receiver = client.begin_session_receiver("visits", None)
        client.barrier()
        eventually(lambda: services_of(namespace).dispatcher._waiters)

        def works() -> None:
            client.attached(receiver)
            receiver.flow(5)
            client.flush()
            expect_content(client, receiver)

        with repaired(namespace, "dispatcher", caplog, works):
            if break_ == "table":
                on_loop(namespace, lambda services: services.dispatcher._waiters.clear())
            else:
                lose_wake_up(namespace, monkeypatch, "take_woken", VISITS)
            send_visit(namespace)


def test_crashed_timers_are_restarted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    armed = once(monkeypatch, Namespace, "take_notices", defect)
    with (
        running_namespace(queues=["orders", "other"]) as namespace,
        repaired(namespace, "timers", caplog, lambda: expect_round_trip(namespace)),
    ):
        armed.append(True)


def test_timer_that_does_not_run_is_restarted(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    def break_(services: AmqpServices) -> None:
        services.host.loop.call_later(0.05, stop, services.host)

    def stop(host: NamespaceHost) -> None:  # as if its callback had been lost
        assert host._timer is not None
        host._timer.cancel()
        host._due_s -= 100

    began_s = time.monotonic()
    on_loop(namespace, break_)
    eventually(lambda: status_of(namespace, "timers").restarts == 1)
    assert time.monotonic() - began_s <= NOTICED_S
    expect_round_trip(namespace)
    assert time.monotonic() - began_s <= REPAIRED_S
    eventually(lambda: health(namespace) == (200, "ok", ""))
    assert "background work is" in status_of(namespace, "timers").reason


def test_crashed_side_buffer_is_restarted_and_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    armed = once(monkeypatch, Replayer, "_wait_for_change", defect)
    armed.append(True)
    with running_namespace(queues=["orders", "other"], side_buffer=tmp_path / "buffer") as namespace:
        buffer = namespace._running.host.side_buffer
        assert buffer is not None
        with repaired(namespace, "side-buffer", caplog, lambda: eventually(lambda: buffer.problem() is None)):
            pass
        expect_round_trip(namespace)


def test_killed_ledger_thread_is_restarted_and_no_row_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_namespace(queues=["orders", "other"], ledger=tmp_path / "ledger") as namespace:
        fill(namespace, "before")
        ledger = namespace._running._ledger
        assert ledger is not None
        with repaired(namespace, "ledger", caplog, lambda: eventually(lambda: not ledger.has_lost_thread)):
            kill(ledger._writer_thread)
        fill(namespace, "after")
    rows = rows_of(tmp_path / "ledger", OPERATIONS)
    sent = sum(row["messages"] for row in rows if (row["kind"], row["entity"]) == ("send", "orders"))
    assert sent == 2


def test_killed_audit_log_thread_is_restarted_and_no_record_is_lost(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    writer = namespace._running.host.audit.writer
    assert writer is not None

    def record(entity: str) -> None:
        on_loop(namespace, lambda services: services.host.audit.record("test", NOBODY, entity=entity))

    def works() -> None:
        record("second")
        eventually(lambda: b'"entity": "second"' in audit_file(namespace.data).read_bytes())

    with repaired(namespace, "audit-log", caplog, works):
        kill(writer._thread)
        record("first")  # a thread that waits ends when it wakes up
    assert b'"entity": "first"' in audit_file(namespace.data).read_bytes()


def test_killed_diagnostics_thread_is_restarted_and_writes_the_bundle_about_it(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    diagnostics = services_of(namespace).diagnostics
    assert diagnostics is not None

    def break_(services: AmqpServices) -> None:
        assert diagnostics._writer is not None
        kill(diagnostics._writer)
        assert services.diagnostics is diagnostics
        diagnostics._work.put(("20261118T040122.123Z-request", b"{}"))  # a thread that waits ends with its next task

    with repaired(namespace, "diagnostics", caplog, lambda: bundle_about(namespace, "diagnostics")):
        on_loop(namespace, break_)


def test_killed_watchdog_is_restarted_and_notices_a_blocked_loop(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = services_of(namespace).watchdog
    with repaired(namespace, "watchdog", caplog, lambda: eventually(lambda: not watchdog.has_lost_thread)):
        assert watchdog._thread is not None
        kill(watchdog._thread)
    on_loop(namespace, lambda _services: eventually(lambda: watchdog.blocked_count))


def test_error_does_not_end_the_watchdog(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    watchdog = services_of(namespace).watchdog
    watchdog._loop, loop = UnusableLoop(), watchdog._loop  # type: ignore[assignment]
    eventually(lambda: "watchdog failed" in caplog.text)
    watchdog._loop = loop
    watchdog._has_answered = True
    on_loop(namespace, lambda _services: eventually(lambda: watchdog.blocked_count))


class UnusableLoop:
    """A loop that raises, and is not closed."""

    def call_soon_threadsafe(self, *_: object) -> object:
        return defect()

    def is_closed(self) -> bool:
        return False


def test_throttle_timer_that_does_not_run_is_restarted(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(timer: ThrottleTimer) -> None:  # as if its callback had been lost
        timer.close()
        timer._due_s -= 100

    timer = throttle_timer(namespace)
    with repaired(namespace, "throttle", caplog, lambda: eventually(lambda: timer._due_s > timer._loop.time())):
        on_loop(namespace, lambda _services: stop(timer))


def throttle_timer(namespace: RunningNamespace) -> ThrottleTimer:
    entry = services_of(namespace).supervisor._entries["throttle"]
    timer = getattr(entry.component.check, "__self__", None)
    assert isinstance(timer, ThrottleTimer)
    return timer


def test_ended_refresh_of_signing_keys_is_restarted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(DOCUMENT)
    with running_namespace(
        queues=["orders", "other"], jwt_keys=str(file), jwt_issuer="https://issuer.example"
    ) as namespace:
        keys = namespace._running._signing_keys
        assert keys is not None
        with repaired(namespace, "signing-keys", caplog, lambda: eventually(lambda: keys.problem() is None)):
            on_loop(namespace, lambda _services: keys.stop())


def test_loop_that_stays_blocked_ends_the_process(tmp_path: Path) -> None:
    arguments = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--blocked-exit-s", "3"]
    began_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED_SERVER, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 4
    assert time.monotonic() - began_s < 60
    output = ended.stdout + ended.stderr
    assert re.search(r"event loop still blocked, giving up seconds=\d+\.\d bundle=\S+-loop", output)
    (bundle,) = (tmp_path / "data" / "diagnostics").glob("*-loop.json")
    assert any("sleep_for_an_hour" in place for place in json.loads(bundle.read_text("utf-8"))["blocked"])


BLOCKED_SERVER: Final = """
import asyncio
import sys
import time

from pairbus.cli import serve
from pairbus_command import main

announce = serve._announce

def sleep_for_an_hour():
    time.sleep(3600)

def announce_and_block(*args):
    announce(*args)
    asyncio.get_running_loop().call_later(0.1, sleep_for_an_hour)

serve._announce = announce_and_block
main()
"""


def test_listener_that_failed_listens_again_and_keeps_its_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    armed = once(monkeypatch, Listener, "_receive", defect)
    with running_namespace(queues=["orders", "other"]) as namespace, connect(namespace) as client:
        sender = client.sender("orders")
        port = namespace.port

        def works() -> None:
            assert client.send(sender, text_message("same connection")) == ACCEPTED
            fill(namespace, "new connection")

        with repaired(namespace, "listener", caplog, works):
            armed.append(True)
            with socket.create_connection(("127.0.0.1", port), timeout=60) as refused:
                assert refused.recv(1) == b""
        assert drained(namespace, 2) == ["same connection", "new connection"]


def test_component_that_fails_after_three_restarts_is_stopped_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    def fail(services: AmqpServices) -> None:
        services.dispatcher._failure = RuntimeError("a defect that stays")

    with running_namespace(queues=["orders", "other"]) as namespace:

        def is_stopped() -> bool:
            on_loop(namespace, fail)
            return status_of(namespace, "dispatcher").state == "stopped"

        eventually(is_stopped)
        assert health(namespace) == (
            503,
            "unavailable",
            "component dispatcher is stopped: it failed with RuntimeError",
        )
        assert metric(namespace, 'pairbus_component_restarts_total{component="dispatcher"}') == MAX_RESTARTS
        assert metric(namespace, 'pairbus_component_state{component="dispatcher",state="stopped"}') == 1
        assert metric(namespace, 'pairbus_component_state{component="dispatcher",state="running"}') == 0
        assert metric(namespace, 'pairbus_component_state{component="timers",state="running"}') == 1
        fill(namespace, "sends go on")
        assert (
            f"component stopped after too many restarts namespace={namespace.name} component=dispatcher" in caplog.text
        )
        namespace.restart()
        assert health(namespace) == (200, "ok", "")
        assert drained(namespace, 1) == ["sends go on"]


def test_entity_that_is_inconsistent_again_and_again_is_suspended_alone(namespace: RunningNamespace) -> None:
    fill(namespace, "kept")

    def corrupt(services: AmqpServices) -> None:
        queue = services.host.committer.namespace._catalogue.find_queue(ORDERS)
        assert queue is not None
        queue.present._count += not queue.is_suspended

    def is_stopped() -> bool:
        on_loop(namespace, corrupt)
        return any(status.state == "stopped" for status in namespace._running.components)

    with Traffic(namespace) as traffic:
        eventually(is_stopped)
        traffic.goes_on()
    assert traffic.longest_gap_s <= GAP_S
    status, text, problems = health(namespace)
    assert (status, text) == (200, "degraded")
    assert problems.startswith("component index of 'orders' is stopped: the index of 'orders' is inconsistent")
    assert metric(namespace, 'pairbus_component_state{component="index",state="stopped"}') == 1
    fill(namespace, "accepted")
    namespace.restart()
    assert drained(namespace, 2) == ["kept", "accepted"]


def test_diagnostics_need_the_claim_manage_and_are_listed(namespace: RunningNamespace) -> None:
    fill(namespace, CONTENT)
    status, text = get(namespace, "/$diagnostics", "POST")
    assert status == 201
    bundle = json.loads(text)
    assert bundle["store"]["messages_in_queues"] == 1
    assert {task["name"] for task in bundle["tasks"]} >= {"pairbus-supervisor"}
    assert {each["name"] for each in bundle["components"]} >= {"listener", "dispatcher", "timers", "commit-thread"}
    bundle_about(namespace, "request")
    names = [each["name"] for each in json.loads(get(namespace, "/$diagnostics")[1])["bundles"]]
    assert len(names) == 1
    assert json.loads(get(namespace, f"/$diagnostics/{names[0]}")[1]) == bundle
    assert get(namespace, "/$diagnostics/20261118T040122.123Z-loop")[0] == 404
    url = f"http://127.0.0.1:{namespace.port}/$diagnostics"
    for request in (Request(url, method="POST"), Request(url), Request(f"{url}/{names[0]}")):  # noqa: S310
        answer = answer_to(request)
        assert answer is not None
        assert answer[0] == 401
