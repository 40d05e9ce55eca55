"""The frame trace of a real server: chosen connections, without bodies, tokens and keys."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.dialect.sas import make_sas_token
from pairbus.server.amqp.frame_trace import FRAMES, FrameTracing
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import Configuration, SaslClient, plain
from tests.server.amqp.wire_client import WireClient, text_message
from tests.server.served_process import served_process
from tests.waiting import eventually

ROOT = "RootManageSharedAccessKey"
BODY = b"a body that nobody may read"


@pytest.fixture(autouse=True)
def _traced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, FRAMES)


def frames(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == FRAMES]


def client_of(namespace: RunningNamespace, container: str, sasl: SaslClient | None = None) -> WireClient:
    configuration = Configuration(container_id=container, strict=False)
    return WireClient(namespace.port, sasl=sasl or plain(ROOT, namespace.key), configuration=configuration)


def exchange(namespace: RunningNamespace, container: str) -> None:
    """Send and receive a message, with the key and with a token of it."""
    with client_of(namespace, container).open() as client:
        token = make_sas_token("sb://localhost/orders", ROOT, namespace.key, int(time.time()) + 600)
        client.put_token("sb://localhost/orders", token)
        client.send(client.sender("orders"), text_message(BODY))
        client.receive_one(client.receiver("orders"))
        client.engine.close()
        client.flush()
        client.until_hung_up()


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"], trace_frames=True) as running:
        yield running


def test_frames_of_both_directions_are_logged_with_peer_and_container(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    exchange(namespace, "app-1")
    found = eventually(lambda: [*frames(caplog)] if any("frame=close" in line for line in frames(caplog)) else None)
    for direction, frame in (
        ("received", "header protocol=sasl"),
        ("sent", "sasl-outcome code=ok"),
        ("received", "open channel=0 container_id=app-1"),
        ("sent", "open channel=0 container_id=contoso"),
        ("received", "attach "),
        ("received", "transfer "),
        ("sent", "disposition "),
        ("sent", "transfer "),
        ("received", "close channel=0"),
    ):
        pattern = rf"frame {direction} peer=127\.0\.0\.1:\d+ (container=app-1 )?frame={re.escape(frame)}"
        assert any(re.match(pattern, line) for line in found), (direction, frame)


def test_no_body_token_or_key_is_in_the_trace(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    exchange(namespace, "app-1")
    text = "\n".join(frames(caplog))
    assert "transfer" in text
    for secret in (BODY.decode(), BODY.hex(), namespace.key, namespace.key.encode().hex(), "SharedAccessSignature"):
        assert secret not in text


def test_only_chosen_containers_are_traced_from_their_first_frame(caplog: pytest.LogCaptureFixture) -> None:
    with running_namespace(queues=["orders"], trace_frames=True, trace_frames_of=("app-*",)) as namespace:
        exchange(namespace, "other")
        assert frames(caplog) == []
        exchange(namespace, "app-7")
    lines = frames(caplog)
    assert "frame=header protocol=sasl" in lines[0]
    assert not any("other" in line for line in lines)


def test_without_the_setting_nothing_is_traced(caplog: pytest.LogCaptureFixture) -> None:
    with running_namespace(queues=["orders"]) as namespace:
        exchange(namespace, "app-1")
    assert frames(caplog) == []


@pytest.mark.parametrize(
    ("patterns", "peer", "container", "is_traced"),
    [
        ((), "10.0.0.7:5", "app", True),
        (("10.0.0.*",), "10.0.0.7:5", "", True),
        (("10.0.0.7",), "10.0.0.7:5", "", True),
        (("10.0.0.7:5",), "10.0.0.7:5", "", True),
        (("::1",), "[::1]:5", "", True),
        (("10.0.1.*", "app-?"), "10.0.0.7:5", "app-1", True),
        (("app-?",), "10.0.0.7:5", "app-12", False),
        (("APP*",), "10.0.0.7:5", "app", False),
    ],
)
def test_pattern_matches_container_or_address(
    patterns: tuple[str, ...], peer: str, container: str, is_traced: bool
) -> None:
    assert FrameTracing(patterns=patterns).matches(peer, container) is is_traced


def test_option_logs_frames_whatever_the_log_level(tmp_path: Path) -> None:
    with served_process(tmp_path, "--data", tmp_path / "data", "--trace-frames", "--log-level", "warning") as served:
        with served.connect() as client:
            client.send(client.sender("orders"), text_message(BODY))
        eventually(lambda: any('frame="transfer' in line for line in served.lines("frame received")))
        assert served.lines("namespace opened") == []
        assert BODY.decode() not in "\n".join(served.lines("frame"))
