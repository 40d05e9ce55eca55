"""Log lines about connections, links and requests name the peer, the container, the link, the entity and the key."""

from __future__ import annotations

import logging
import re
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from pairbus.server.access import shown_path
from pairbus.server.host import NamespaceHost
from pairbus.server.log_context import ContextLog, Facts, LogValue, peer_of
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import Configuration, plain
from tests.server.amqp.wire_client import DEADLINE_S, LinkRefusedError, WireClient, text_message
from tests.waiting import eventually

ROOT = "RootManageSharedAccessKey"
PEER = r"peer=127\.0\.0\.1:\d+"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> ContextLog:
    caplog.set_level(logging.DEBUG)
    return ContextLog(logging.getLogger("tested"), peer="10.0.0.7:51544", container="app 1", entity="")


def test_facts_come_after_the_event_and_before_its_own(log: ContextLog, caplog: pytest.LogCaptureFixture) -> None:
    log.info("connection closed reason=%s", LogValue("idle timeout"))
    log.info("claims revoked, %d left", 3)
    log.info("connection opened")
    assert caplog.messages == [
        'connection closed peer=10.0.0.7:51544 container="app 1" reason="idle timeout"',
        'claims revoked, 3 left peer=10.0.0.7:51544 container="app 1"',
        'connection opened peer=10.0.0.7:51544 container="app 1"',
    ]


def test_lines_of_one_kind_have_one_format_string(log: ContextLog, caplog: pytest.LogCaptureFixture) -> None:
    for container in ("one", "two"):
        log.having(container=container).info("connection closed reason=%s", "x")
    assert len({record.msg for record in caplog.records}) == 1


def test_line_names_the_place_that_logged_it(log: ContextLog, caplog: pytest.LogCaptureFixture) -> None:
    log.warning("connection closed")
    log.error("connection failed", exc_info=ValueError("broken"))
    assert {record.filename for record in caplog.records} == {"test_log_context.py"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("orders/$DeadLetterQueue", "orders/$DeadLetterQueue"),
        ("two words", '"two words"'),
        ('a"b', '"a\\"b"'),
        ("x\nlogin failed peer=forged", '"x\\nlogin failed peer=forged"'),
        ("a=b", '"a=b"'),
        ("caffè", '"caffè"'),
        ("", '""'),
        ("x" * 500, '"' + "x" * 200 + '…"'),
    ],
)
def test_value_of_a_peer_cannot_be_taken_for_another_fact(value: str, text: str) -> None:
    assert str(LogValue(value)) == text


@pytest.mark.parametrize(
    ("name", "shown"),
    [(("10.0.0.7", 5), "10.0.0.7:5"), (("::1", 5, 0, 0), "[::1]:5"), (None, ""), ((), ""), ("", "")],
)
def test_peer_has_address_and_port(name: object, shown: str) -> None:
    assert peer_of(name) == shown


def test_unknown_facts_are_left_out_and_values_are_quoted_by_one_rule() -> None:
    facts = Facts(entity="orders", error=None, key="", action="two words", data=b"x", reason=LogValue("a b"))
    assert str(facts) == ' entity=orders action="two words" data="b\'x\'" reason="a b"'


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("amqps://localhost:25672/Events/subscriptions/Large/$management", "Events/Subscriptions/Large/$management"),
        ("sb://localhost/nope", "nope"),
        ("orders", "orders"),
        ("sb://localhost", ""),
        (7, None),
    ],
)
def test_entity_of_a_line_is_its_path_in_one_form(address: object, path: str | None) -> None:
    assert shown_path(address) == path


# A real server.


@pytest.fixture
def namespace(caplog: pytest.LogCaptureFixture) -> Iterator[RunningNamespace]:
    caplog.set_level(logging.DEBUG, "pairbus")
    with running_namespace(queues=["orders"]) as running:
        yield running


def client_of(namespace: RunningNamespace) -> WireClient:
    configuration = Configuration(container_id="app-1", strict=False)
    return WireClient(namespace.port, sasl=plain(ROOT, namespace.key), configuration=configuration)


def line(caplog: pytest.LogCaptureFixture, start: str) -> str:
    return eventually(lambda: next((each for each in caplog.messages if each.startswith(start)), None))


def test_lines_of_a_connection_and_its_links(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(namespace).open() as client:
        client.sender("orders", name="sending")
        with pytest.raises(LinkRefusedError):
            client.sender("nowhere", name="lost")
        client.engine.close()
        client.flush()
        client.until_hung_up()
    whole = rf"{PEER} container=app-1"
    assert re.fullmatch(rf"connection opened {whole} key={ROOT} protocol=amqp", line(caplog, "connection opened"))
    attached = line(caplog, "link attached")
    assert re.fullmatch(rf"link attached {whole} link=sending entity=orders key={ROOT} kind=sender", attached)
    refused = line(caplog, "link refused")
    assert re.match(rf"link refused {whole} link=lost entity=nowhere key={ROOT} condition=amqp:not-found ", refused)
    assert re.match(rf"link detached {whole} link=sending entity=orders ", line(caplog, "link detached"))
    assert re.fullmatch(rf"connection closed by the peer {whole} key={ROOT}", line(caplog, "connection closed by"))


def test_protocol_violation_names_the_connection(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(namespace).open() as client:
        client.socket.sendall(b"\x00\x00\x00\x04\x02\x00\x00\x00")
        client.until_hung_up()
    violation = line(caplog, "protocol violation")
    assert re.match(rf"protocol violation, connection closed {PEER} container=app-1 key={ROOT} error=", violation)


def test_refused_token_names_the_entity_and_the_claimed_key(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    token = "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Forders&sig=AAAA&se=4000000000&skn=shop"  # noqa: S105 (of no key)
    with WireClient(namespace.port).open() as client:
        assert client.put_token("sb://localhost/orders", token).status == 401
    refused = line(caplog, "token refused")
    assert re.match(rf"token refused {PEER} container=wire-client link=\S+ entity=orders key=shop ", refused)
    assert "AAAA" not in "".join(caplog.messages)


def test_revoked_key_is_named(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(namespace).open() as client:
        namespace.call(lambda host: host.use_namespace().set_authorization_rules([], host.now_ms()))
        client.until_hung_up()
    revoked = line(caplog, "claims revoked")
    assert re.fullmatch(rf"claims revoked {PEER} container=app-1 key={ROOT} remaining=0", revoked)


def test_refused_request_over_http_names_the_peer(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    connection = HTTPConnection("127.0.0.1", namespace.port, timeout=DEADLINE_S)
    connection.request("GET", "/" + "x" * 20_000)
    assert connection.getresponse().status == 431
    connection.close()
    assert re.match(rf"request refused {PEER} status=431 ", line(caplog, "request refused"))


def test_failed_request_over_http_names_peer_method_entity_and_key(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    credential = b64encode(f"{ROOT}:{namespace.key}".encode()).decode()
    connection = HTTPConnection("127.0.0.1", namespace.port, timeout=DEADLINE_S)
    connection.request("DELETE", "/nowhere", headers={"Authorization": f"Basic {credential}"})
    assert connection.getresponse().status == 404
    connection.close()
    whole = rf"{PEER} method=DELETE entity=nowhere key={ROOT} status=404 condition=amqp:not-found"
    assert re.match(rf"request refused {whole} error=", line(caplog, "request refused"))


def test_defect_in_a_receiver_names_the_link(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    def break_receivers(host: NamespaceHost) -> None:
        host.use_namespace().receive = None  # type: ignore[assignment,method-assign]

    with client_of(namespace).open() as client:
        client.receiver("orders", name="receiving", credit=1)
        client.barrier()
        namespace.call(break_receivers)
        client.send(client.sender("orders"), text_message())
        failed = line(caplog, "receiver failed")
    assert re.match(rf"receiver failed {PEER} container=app-1 link=receiving entity=orders key={ROOT}", failed)
