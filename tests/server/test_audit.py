"""The audit log on a real server: who did what to which entity or key, from where, and with which result."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from pairbus.broker import AuthorizationRule, Right
from pairbus.console import routes
from pairbus.dialect.management import Operation
from pairbus.server import Settings
from pairbus.server.audit import Actor, AuditAction, AuditLog, AuditWriter, audit_file, key_changes
from pairbus.server.errors import UnauthorizedError
from pairbus.store.rotating_log import RotatingLog
from pairbus.testing import FaultKind, running_namespace
from pairbus.wire import Int, Timestamp, plain
from tests.console.site import LISTENER, PATIENCE_S, Site
from tests.server.amqp.wire_client import WireClient, text_message
from tests.server.http.site import entry
from tests.waiting import DEADLINE_S, eventually

ROOT: Final = "RootManageSharedAccessKey"
NEW_KEY: Final = "aValueThatNobodyMayEverSeeInALog0123456789ab"
ALL_RIGHTS: Final = ["listen", "manage", "send"]
ACTOR: Final = Actor(key_name="ops", peer="10.0.0.7:5555", protocol="amqp")


@pytest.fixture(autouse=True)
def _short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WRONG_KEY_DELAY_S", 0.01)


@contextmanager
def opened(data: Path, **settings: Any) -> Iterator[Site]:
    site = Site(data, **settings)
    site.start()
    try:
        yield site
    finally:
        site.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with opened(tmp_path / "contoso") as running:
        yield running


def records(data: Path) -> list[dict[str, Any]]:
    path = audit_file(data)
    return [json.loads(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []


def wait_for(site: Site, action: AuditAction, **facts: object) -> dict[str, Any]:
    """Return the first record of an action with these facts, once it is written."""

    def found() -> dict[str, Any] | None:
        for record in records(site.settings.data):
            if record["action"] == action and all(record.get(name) == value for name, value in facts.items()):
                return record
        return None

    return eventually(found)


def manage(site: Site, method: str, path: str, content: str = "", key: str | None = None, **headers: str) -> int:
    name, value = (ROOT, site.server.key) if key is None else (LISTENER.name, key)
    credential = b64encode(f"{name}:{value}".encode()).decode()
    connection = HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE_S)
    try:
        given = {
            "Authorization": f"Basic {credential}",
            **{key.replace("_", "-"): text for key, text in headers.items()},
        }
        connection.request(method, path, entry(content) if content else None, given)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


# Entities, rules and keys over HTTP.


def test_entity_life_is_recorded_with_key_rights_and_peer(site: Site) -> None:
    assert manage(site, "PUT", "/invoices", "<QueueDescription/>") == 201
    changed = "<QueueDescription><MaxDeliveryCount>3</MaxDeliveryCount></QueueDescription>"
    assert manage(site, "PUT", "/invoices", changed, If_Match="*") == 200
    assert manage(site, "DELETE", "/invoices") == 200
    created = wait_for(site, AuditAction.ENTITY_CREATED, entity="invoices")
    assert (created["result"], created["who"], created["rights"], created["kind"]) == ("ok", ROOT, ALL_RIGHTS, "queue")
    assert (created["namespace"], created["protocol"]) == ("contoso", "http")
    assert created["peer"].startswith("127.0.0.1:")
    assert created["time"].endswith("Z")
    assert wait_for(site, AuditAction.ENTITY_UPDATED, entity="invoices")["changed"] == ["max_delivery_count"]
    wait_for(site, AuditAction.ENTITY_DELETED, entity="invoices", result="ok")


def test_rules_are_recorded_over_http(site: Site) -> None:
    rule = "<RuleDescription/>"
    assert manage(site, "PUT", "/news/Subscriptions/all/Rules/red", rule) == 201
    assert manage(site, "PUT", "/news/Subscriptions/all/Rules/red", rule, If_Match="*") == 200
    assert manage(site, "DELETE", "/news/Subscriptions/all/Rules/red") == 200
    for action in (AuditAction.RULE_CREATED, AuditAction.RULE_UPDATED, AuditAction.RULE_DELETED):
        wait_for(site, action, entity="news/Subscriptions/all", rule="red", result="ok", who=ROOT)


def key_of(value: str, right: str = "Send", name: str = "") -> str:
    named = f"<KeyName>{name}</KeyName>" if name else ""
    return (
        f"{named}<PrimaryKey>{value}</PrimaryKey><SecondaryKey>{value}2</SecondaryKey>"
        f"<Rights><AccessRights>{right}</AccessRights></Rights>"
    )


def test_key_is_created_rotated_updated_and_revoked_and_no_record_has_its_value(site: Site) -> None:
    for value, right in ((NEW_KEY, "Send"), (NEW_KEY + "b", "Send"), (NEW_KEY + "b", "Listen")):
        rule = f"<SharedAccessAuthorizationRule>{key_of(value, right)}</SharedAccessAuthorizationRule>"
        assert manage(site, "PUT", "/$AuthorizationRules/shop", rule) in {201, 409}
        assert manage(site, "PUT", "/$AuthorizationRules/shop", rule, If_Match="*") == 200
    assert manage(site, "DELETE", "/$AuthorizationRules/shop") == 200
    for action in (
        AuditAction.KEY_CREATED,
        AuditAction.KEY_ROTATED,
        AuditAction.KEY_UPDATED,
        AuditAction.KEY_REVOKED,
    ):
        wait_for(site, action, key="shop", result="ok", who=ROOT)
    refused = wait_for(site, AuditAction.KEY_CREATED, key="shop", result="failed")
    assert refused["condition"] == "com.microsoft:entity-already-exists"
    text = audit_file(site.settings.data).read_text("ascii")
    assert NEW_KEY not in text
    assert site.server.key not in text


def test_keys_of_a_queue_are_recorded_with_the_queue(site: Site) -> None:
    rule = (
        f'<AuthorizationRule i:type="SharedAccessAuthorizationRule">{key_of(NEW_KEY, name="shop")}</AuthorizationRule>'
    )
    queue = f"<QueueDescription><AuthorizationRules>{rule}</AuthorizationRules></QueueDescription>"
    assert manage(site, "PUT", "/invoices", queue) == 201
    assert manage(site, "PUT", "/invoices", queue.replace(NEW_KEY, NEW_KEY + "b"), If_Match="*") == 200
    without = "<QueueDescription><AuthorizationRules/></QueueDescription>"
    assert manage(site, "PUT", "/invoices", without, If_Match="*") == 200
    for action in (AuditAction.KEY_CREATED, AuditAction.KEY_ROTATED, AuditAction.KEY_REVOKED):
        wait_for(site, action, entity="invoices", key="shop")
    assert NEW_KEY not in audit_file(site.settings.data).read_text("ascii")


def test_denied_change_is_recorded_with_its_key(site: Site) -> None:
    assert manage(site, "DELETE", "/orders", key=LISTENER.primary_key) == 401
    denied = wait_for(site, AuditAction.ENTITY_DELETED, entity="orders")
    assert (denied["result"], denied["who"], denied["rights"]) == ("denied", LISTENER.name, ["listen"])
    assert denied["condition"] == "amqp:unauthorized-access"


def test_change_of_a_missing_entity_is_recorded_as_failed(site: Site) -> None:
    assert manage(site, "DELETE", "/nowhere") == 404
    wait_for(site, AuditAction.ENTITY_DELETED, entity="nowhere", result="failed", condition="amqp:not-found")


# AMQP.


def test_rules_and_purges_over_amqp_are_recorded_with_container_and_key(site: Site) -> None:
    site.send("orders", b"one", b"two")
    with WireClient(site.port, sasl=plain(ROOT, site.server.key)).open() as client:
        node = client.requests("news/Subscriptions/all/$management")
        body = {"rule-name": "blue", "rule-description": {"sql-filter": {"expression": "1=1"}}}
        assert node.call(Operation.ADD_RULE, body).status == 200
        assert node.call(Operation.ADD_RULE, body).status == 409
        assert node.call(Operation.REMOVE_RULE, {"rule-name": "blue"}).status == 200
        orders = client.requests("orders/$management")
        purge = {"message-count": Int(10), "enqueued-time-utc": Timestamp(4_000_000_000_000)}
        assert orders.call(Operation.BATCH_DELETE_MESSAGES, purge).status == 200
        assert orders.call(Operation.BATCH_DELETE_MESSAGES, purge).status == 204
    created = wait_for(site, AuditAction.RULE_CREATED, rule="blue", entity="news/Subscriptions/all", result="ok")
    assert (created["who"], created["rights"], created["container"]) == (ROOT, ALL_RIGHTS, "wire-client")
    assert (created["protocol"], created["peer"].startswith("127.0.0.1:")) == ("amqp", True)
    wait_for(site, AuditAction.RULE_CREATED, rule="blue", result="failed")
    wait_for(site, AuditAction.RULE_DELETED, rule="blue", result="ok")
    assert wait_for(site, AuditAction.MESSAGES_PURGED, entity="orders")["messages"] == 2
    assert sum(each["action"] == AuditAction.MESSAGES_PURGED for each in records(site.settings.data)) == 1


def test_injected_faults_are_recorded_when_they_are_engaged_and_cleared(tmp_path: Path) -> None:
    with (
        running_namespace(queues=["orders"], data=tmp_path / "data") as contoso,
        contoso.faults.engaged(FaultKind.SERVER_BUSY, "orders"),
    ):
        pass
    found = [each for each in records(tmp_path / "data") if each["action"].startswith("fault-")]
    assert [(each["action"], each["event"]) for each in found] == [
        (AuditAction.FAULT_ENGAGED, "engaged"),
        (AuditAction.FAULT_CLEARED, "cleared"),
    ]
    for each in found:
        assert (each["who"], each["entity"], each["kind"]) == ("pairbus.testing", "orders", FaultKind.SERVER_BUSY)


def test_expiry_of_an_injected_fault_is_recorded(tmp_path: Path) -> None:
    with running_namespace(queues=["orders"], data=tmp_path / "data") as contoso:
        contoso.faults.engage(FaultKind.SERVER_BUSY, "orders", duration=timedelta(milliseconds=1))
        eventually(lambda: not contoso.faults.list())
    found = [each for each in records(tmp_path / "data") if each["action"] == AuditAction.FAULT_CLEARED]
    assert [(each["event"], each["entity"], each["kind"]) for each in found] == [
        ("expired", "orders", FaultKind.SERVER_BUSY)
    ]


def test_clearing_an_unknown_fault_is_recorded_as_failed(tmp_path: Path) -> None:
    with opened(tmp_path / "data", allow_faults=True) as site:
        assert manage(site, "DELETE", "/$faults/1") == 404
        wait_for(site, AuditAction.FAULT_CLEARED, who=ROOT, result="failed")


def test_failed_logins_are_recorded_without_the_key(site: Site) -> None:
    with WireClient(site.port, sasl=plain(ROOT, NEW_KEY)) as client:
        client.engine.open()
        client.until_hung_up()
    failed = wait_for(site, AuditAction.LOGIN_FAILED, protocol="amqp")
    assert (failed["result"], failed["key"], failed["peer"].startswith("127.0.0.1:")) == ("denied", ROOT, True)
    assert "who" not in failed
    assert manage(site, "GET", "/orders", key=NEW_KEY) == 401
    wait_for(site, AuditAction.LOGIN_FAILED, protocol="http", key=LISTENER.name)
    assert NEW_KEY not in audit_file(site.settings.data).read_text("ascii")


# The console.


def test_console_logins_and_actions_are_recorded(site: Site) -> None:
    site.send("orders", b"one", b"two")
    site.dead_letter("payments", b"three")
    person = site.manager()
    assert person.act("/console/purge", entity="orders", confirmation="orders").status == 303
    assert person.act("/console/resubmit", entity="payments", part="dead").status == 303
    assert person.act("/console/logout").status == 303
    assert site.person().post("/console/login", key_name=ROOT, key=NEW_KEY).status == 401
    logged_in = wait_for(site, AuditAction.CONSOLE_LOGIN)
    assert (logged_in["who"], logged_in["rights"], logged_in["protocol"]) == (ROOT, ALL_RIGHTS, "console")
    assert logged_in["peer"].startswith("127.0.0.1:")
    wait_for(site, AuditAction.MESSAGES_PURGED, entity="orders", messages=2, who=ROOT, result="ok")
    wait_for(site, AuditAction.MESSAGES_RESUBMITTED, messages=1, who=ROOT, result="ok")
    wait_for(site, AuditAction.CONSOLE_LOGOUT, who=ROOT)
    failed = wait_for(site, AuditAction.LOGIN_FAILED, protocol="console", key=ROOT)
    assert failed["peer"].startswith("127.0.0.1:")


def test_denied_console_action_is_recorded(site: Site) -> None:
    assert site.listener().act("/console/purge", entity="orders", confirmation="orders").status == 403
    wait_for(site, AuditAction.MESSAGES_PURGED, entity="orders", result="denied", who=LISTENER.name)


# The start.


def test_start_records_settings_and_what_changed_since_the_last_one(tmp_path: Path) -> None:
    data = tmp_path / "contoso"
    declared: dict[str, Any] = {"queues": ["orders"], "topics": {"news": ["all"]}, "key": NEW_KEY}
    with running_namespace(data=data, **declared):
        pass
    with running_namespace(data=data, **declared, max_connections=77):
        pass
    found = records(data)
    first, second = (each for each in found if each["action"] == AuditAction.SERVER_STARTED)
    assert (first["settings"]["key"], first["settings"]["name"]) == ("set", "contoso")
    assert "changed" not in first
    assert (second["settings"]["max_connections"], second["changed"]) == ("77", ["max_connections"])
    created = [each["entity"] for each in found if each["action"] == AuditAction.ENTITY_CREATED]
    assert created == ["orders", "news", "news/Subscriptions/all"]  # at the first start only
    assert [each["key"] for each in found if each["action"] == AuditAction.KEY_CREATED] == [ROOT]
    assert [each["action"] for each in found][-1] == AuditAction.SERVER_STOPPED
    assert NEW_KEY not in audit_file(data).read_text("ascii")


def test_full_audit_log_is_rotated_and_changed_settings_are_recorded_all_the_same(tmp_path: Path) -> None:
    def settings(max_connections: int) -> Settings:
        return Settings(data=tmp_path, audit_log_mb=1, audit_log_files=2, max_connections=max_connections)

    def record(last: int, max_connections: int) -> None:
        """Start, and record changes until the newest file begins with a later one."""
        log = AuditLog.open(settings(max_connections))
        assert log.writer is not None
        log.record_start(settings(max_connections))
        for number in range(last):
            log.record(AuditAction.ENTITY_CREATED, ACTOR, entity=f"{number} {'x' * 280}")
            if number % 100 == 99:  # a batch is written as a whole, into one file
                eventually(lambda: log.writer is not None and log.writer.written_count == number + 2)  # noqa: B023
        asyncio.run(log.close(DEADLINE_S))

    record(3_000, max_connections=70)
    rotated = audit_file(tmp_path).with_name("audit.1.jsonl")
    assert rotated.stat().st_size <= 1 << 20
    assert records(tmp_path)[-1]["entity"].startswith("2999 ")
    assert AuditAction.SERVER_STARTED not in {each["action"] for each in records(tmp_path)}
    record(1, max_connections=71)
    started = next(each for each in records(tmp_path) if each["action"] == AuditAction.SERVER_STARTED)
    assert (started["settings"]["max_connections"], started["changed"]) == ("71", ["max_connections"])
    record(6_000, max_connections=71)
    assert len([*audit_file(tmp_path).parent.iterdir()]) == 2
    assert '"0 xxx' not in audit_file(tmp_path).read_text("ascii") + rotated.read_text("ascii"), "the oldest is deleted"


def test_audit_log_can_be_switched_off(tmp_path: Path) -> None:
    with running_namespace(data=tmp_path / "contoso", audit_log=False):
        pass
    assert not audit_file(tmp_path / "contoso").exists()


def test_only_the_owner_can_read_it(site: Site) -> None:
    wait_for(site, AuditAction.SERVER_STARTED)
    path = audit_file(site.settings.data)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


# A disk that fails.


def metrics_of(site: Site) -> dict[str, float]:
    connection = HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_failing_audit_disk_does_not_stop_the_server_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "contoso"
    with running_namespace(data=data, audit_log=False):
        pass
    (data / "audit").write_text("a file where a directory has to be")
    with opened(data) as site:
        eventually(lambda: metrics_of(site)["pairbus_audit_failing"] == 1)
        assert manage(site, "PUT", "/invoices", "<QueueDescription/>") == 201
        with WireClient(site.port, sasl=plain(ROOT, site.server.key)).open() as client:
            client.send(client.sender("invoices"), text_message())
        (data / "audit").unlink()
        eventually(lambda: metrics_of(site)["pairbus_audit_failing"] == 0)
        wait_for(site, AuditAction.ENTITY_CREATED, entity="invoices")
        assert metrics_of(site)["pairbus_audit_records_lost_total"] == 0
    lines = [line.partition(" path=")[0] for line in caplog.messages if line.startswith("audit log")]
    assert lines == ["audit log failed, retrying", "audit log recovered"]


def test_server_stops_while_the_audit_disk_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "contoso"
    with running_namespace(data=data, audit_log=False):
        pass
    (data / "audit").write_text("a file where a directory has to be")
    with running_namespace(data=data):
        pass
    assert any(line.startswith("audit log closed with unwritten records") for line in caplog.messages)


class FullDisk(RotatingLog):
    """Files on a disk that is full until ``has_room``."""

    has_room = False

    def append(self, lines: Any) -> None:
        if not self.has_room:
            raise OSError(28, "No space left on device")
        super().append(lines)


def test_records_beyond_the_queue_are_counted_and_recorded_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.server.audit._MAX_WAITING", 3)
    monkeypatch.setattr("pairbus.server.audit._RETRY_S", 0.01)
    files = FullDisk(tmp_path / "audit.jsonl", 1 << 20, 2)
    log = AuditLog("contoso")
    log.writer = writer = AuditWriter(files, log._lost)
    for number in range(5):
        log.record(AuditAction.KEY_CREATED, ACTOR, key=f"k{number}")
    assert writer.lost_count == 2
    files.has_room = True
    eventually(lambda: writer.written_count == 3)
    asyncio.run(log.close(60.0))
    found = [json.loads(line) for line in files.path.read_bytes().splitlines()]
    assert [each.get("key") for each in found[:3]] == ["k0", "k1", "k2"]
    assert (found[3]["action"], found[3]["count"]) == (AuditAction.RECORDS_LOST, 2)


class FrozenDisk(RotatingLog):
    """Files on a disk that does not answer until ``thawed``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1 << 20, 2)
        self.thawed = Event()

    def append(self, lines: Any) -> None:
        self.thawed.wait(DEADLINE_S)
        super().append(lines)


def test_disk_that_does_not_answer_blocks_neither_actions_nor_the_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FrozenDisk(tmp_path / "audit.jsonl")
    log = AuditLog("contoso")
    log.writer = writer = AuditWriter(files, log._lost)
    for number in range(5):
        log.record(AuditAction.KEY_CREATED, ACTOR, key=f"k{number}")
    asyncio.run(log.close(0.05))
    unwritten = f"audit log closed with unwritten records path={files.path} records=5"
    assert caplog.messages == [unwritten]
    files.thawed.set()
    eventually(lambda: writer.written_count == 5)


# Records.


class Collected(AuditWriter):
    """Collects lines instead of writing them."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def put(self, line: bytes) -> None:
        self.lines.append(json.loads(line))


@pytest.fixture
def collected() -> Collected:
    return Collected()


def test_refused_actions_are_limited_so_that_they_cannot_rotate_others_away(collected: Collected) -> None:
    now_s = 1_000.0
    log = AuditLog("contoso", collected, lambda: now_s)
    for _ in range(100):
        log.record(AuditAction.LOGIN_FAILED, ACTOR, error=UnauthorizedError("no"))
    log.record(AuditAction.KEY_CREATED, ACTOR, key="shop")  # what succeeds is always recorded
    assert len(collected.lines) == 31
    now_s += 60
    log.record(AuditAction.LOGIN_FAILED, ACTOR, error=UnauthorizedError("no"))
    assert collected.lines[-1]["skipped"] == 70


def test_faults_are_recorded_with_any_details(collected: Collected) -> None:
    log = AuditLog("contoso", collected, lambda: 0.0)
    log.record(AuditAction.FAULT_ENGAGED, ACTOR, entity="orders", fault="storage-stall", seconds=30, messages=0)
    assert collected.lines == [
        {
            "time": "1970-01-01T00:00:00.000Z",
            "namespace": "contoso",
            "action": "fault-engaged",
            "result": "ok",
            "who": "ops",
            "peer": "10.0.0.7:5555",
            "protocol": "amqp",
            "entity": "orders",
            "fault": "storage-stall",
            "seconds": 30,
            "messages": 0,
        }
    ]


def rule(name: str, key: str, *rights: Right) -> AuthorizationRule:
    return AuthorizationRule(name=name, rights=rights, primary_key=key, secondary_key=key)


@pytest.mark.parametrize(
    ("before", "after", "action"),
    [
        ((), (rule("a", "k", Right.SEND),), AuditAction.KEY_CREATED),
        ((rule("a", "k", Right.SEND),), (rule("A", "l", Right.SEND),), AuditAction.KEY_ROTATED),
        ((rule("a", "k", Right.SEND),), (rule("a", "k", Right.LISTEN),), AuditAction.KEY_UPDATED),
        ((rule("a", "k", Right.SEND),), (), AuditAction.KEY_REVOKED),
        ((rule("a", "k", Right.SEND),), (rule("a", "k", Right.SEND),), None),
    ],
)
def test_key_change_has_a_name(before: Any, after: Any, action: AuditAction | None) -> None:
    assert [change.action for change in key_changes(before, after)] == ([] if action is None else [action])


def test_settings_without_audit_log_record_nothing(tmp_path: Path) -> None:
    AuditLog.open(Settings(data=tmp_path, audit_log=False)).record(AuditAction.KEY_CREATED, ACTOR)
    assert [*tmp_path.iterdir()] == []


def test_every_action_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "operate.md").read_text("utf-8")
    assert [action for action in AuditAction if f"`{action}`" not in page] == []
