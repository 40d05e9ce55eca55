"""E5: clients that guess keys are slowed down, on each protocol, and learn nothing about which keys exist."""

from __future__ import annotations

import base64
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection
from itertools import product

import pytest

from pairbus.dialect.sas import make_sas_token
from pairbus.server.errors import InvalidCredentialsError, ServerBusyError
from pairbus.server.peer_limits import BY_ADDRESS, BY_KEY, AddressLimit, LoginLimiter
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import SaslCode, plain
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, connect

ROOT = "RootManageSharedAccessKey"


WRONG = InvalidCredentialsError("wrong")


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def attempt(guesses: LoginLimiter, clock: Clock, key: str = "key", address: str = "1.2.3.4") -> bool:
    """Make one failed login and wait for the response; return whether it was checked."""
    try:
        guesses.check(address, key, "amqp")
    except ServerBusyError:
        return False
    clock.now_s += guesses.failed(address, key, "amqp", WRONG).delay_s
    return True


@pytest.mark.parametrize("names", [1, 1_000])
def test_e5_ten_thousand_attempts_of_one_address_are_bounded_in_rate(names: int) -> None:
    clock = Clock()
    guesses = LoginLimiter(clock)
    looked_at = sum(attempt(guesses, clock, f"key {number % names}") for number in range(10_000))
    took_s = clock.now_s - 1_000
    rate = BY_KEY if names == 1 else BY_ADDRESS
    assert looked_at <= rate.burst + rate.per_second * took_s + 1
    assert took_s > 900


def test_e5_spellings_of_a_key_name_share_their_attempts() -> None:
    """Keys are found whatever the case of their name."""
    spellings = ["".join(letters) for letters in product(*zip("rootkey", "ROOTKEY", strict=True))]
    guesses = LoginLimiter(lambda: 1_000.0)
    looked_at = 0
    for spelling in spellings:
        with suppress(ServerBusyError):
            guesses.check("1.2.3.4", spelling, "amqp")
            guesses.failed("1.2.3.4", spelling, "amqp", WRONG)
            looked_at += 1
    assert looked_at == BY_KEY.burst + 8


def test_e5_known_key_is_known_in_each_spelling() -> None:
    guesses = LoginLimiter(Clock())
    guesses.succeeded("1.2.3.4", "App")
    for number in range(1_000):
        guesses.failed("1.2.3.4", f"key {number}", "amqp", WRONG)
    guesses.check("1.2.3.4", "aPP", "amqp")


@pytest.mark.parametrize(
    ("address", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:0:8000::", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("::ffff:1.2.3.4", "1.2.3.4", True),
        ("::ffff:1.2.3.4", "1.2.3.5", False),
        ("1.2.3.4", "1.2.3.5", False),
    ],
)
def test_e5_addresses_of_a_network_share_their_limits(address: str, other: str, is_same: bool) -> None:
    guesses = LoginLimiter(Clock())
    for _ in range(int(BY_KEY.burst) + 8):
        guesses.failed(address, "key", "amqp", WRONG)
    is_refused = False
    try:
        guesses.check(other, "key", "amqp")
    except ServerBusyError:
        is_refused = True
    assert is_refused is is_same
    connections = AddressLimit(1)
    assert connections.add("one", address)
    assert connections.add("other", other) is not is_same


def test_e5_attempts_that_do_not_wait_for_responses_are_refused_unchecked() -> None:
    clock = Clock()
    guesses = LoginLimiter(clock)
    looked_at = 0
    for _ in range(10_000):
        try:
            guesses.check("1.2.3.4", "key", "amqp")
        except ServerBusyError:
            continue
        guesses.failed("1.2.3.4", "key", "amqp", WRONG)
        looked_at += 1
    assert looked_at == BY_KEY.burst + 8
    assert guesses.refused_counts["amqp"] == 10_000 - looked_at
    guesses.check("1.2.3.4", "another key", "amqp")
    guesses.check("5.6.7.8", "key", "amqp")


def test_e5_guesses_of_many_names_do_not_delay_a_known_key() -> None:
    guesses = LoginLimiter(Clock())
    guesses.succeeded("1.2.3.4", "app")
    for number in range(1_000):
        guesses.failed("1.2.3.4", f"key {number}", "amqp", WRONG)
    guesses.check("1.2.3.4", "app", "amqp")
    for address, key in (("1.2.3.4", "other"), ("1.2.3.4", "key 1")):
        with pytest.raises(ServerBusyError):
            guesses.check(address, key, "amqp")
    for _ in range(int(BY_KEY.burst) + 8):
        guesses.failed("1.2.3.4", "app", "amqp", WRONG)
    with pytest.raises(ServerBusyError):  # guesses for that very key
        guesses.check("1.2.3.4", "app", "amqp")


def test_e5_known_key_is_limited_apart_while_the_limit_of_its_address_is_used_up() -> None:
    """Afterwards it has as many attempts as any other name: their number would tell that the key is known."""
    clock = Clock()
    guesses = LoginLimiter(clock)
    guesses.succeeded("1.2.3.4", "app")
    for number in range(1_000):
        guesses.failed("1.2.3.4", f"key {number}", "amqp", WRONG)
    refused = guesses.refused_counts["amqp"]
    for _ in range(int(BY_KEY.burst) + 8):
        guesses.check("1.2.3.4", "app", "amqp")
        error, delay_s = guesses.failed("1.2.3.4", "app", "amqp", WRONG)
        assert (type(error), delay_s) == (ServerBusyError, 0.0)
    with pytest.raises(ServerBusyError):
        guesses.check("1.2.3.4", "app", "amqp")
    assert guesses.refused_counts["amqp"] == refused + BY_KEY.burst + 9
    clock.now_s += 0.15  # the address gets one more attempt after a tenth of a second
    assert guesses.failed("1.2.3.4", "app", "amqp", WRONG).error is WRONG
    clock.now_s += 3_600
    for key in ("app", "other"):
        assert sum(guesses.failed("1.2.3.4", key, "amqp", WRONG).delay_s == 0 for _ in range(30)) == BY_KEY.burst


def test_e5_memory_for_guesses_is_bounded() -> None:
    clock = Clock()
    guesses = LoginLimiter(clock)
    for number in range(20_000):
        guesses.failed(f"address {number}", "key", "amqp", WRONG)
        guesses.succeeded(f"address {number}", "key")
    assert len(guesses._paid) + len(guesses._owing) <= 10_000
    assert len(guesses._known) <= 10_000


def test_e5_failures_from_many_networks_do_not_forgive_a_guesser() -> None:
    clock = Clock()
    guesses = LoginLimiter(clock)
    for _ in range(int(BY_KEY.burst) + 8):
        guesses.failed("1.2.3.4", "key", "amqp", WRONG)
    for number in range(10_000):
        guesses.failed(f"address {number}", "key", "amqp", WRONG)
    with pytest.raises(ServerBusyError):
        guesses.check("1.2.3.4", "key", "amqp")


def test_e5_full_buckets_are_forgotten_first() -> None:
    clock = Clock()
    guesses = LoginLimiter(clock)
    for _ in range(int(BY_KEY.burst)):
        guesses.failed("1.2.3.4", "key", "amqp", WRONG)
    for number in range(4_000):
        guesses.failed(f"early {number}", "key", "amqp", WRONG)
    clock.now_s += 2  # each of these has paid its failure back, and the first address 4 of 20
    for number in range(4_000):
        guesses.failed(f"late {number}", "key", "amqp", WRONG)
    refused = [guesses.failed("1.2.3.4", "key", "amqp", WRONG).delay_s for _ in range(5)]
    assert [delay_s > 0 for delay_s in refused] == [False, False, False, False, True]


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"]) as served:
        yield served


def by_sasl(namespace: RunningNamespace, name: str) -> str:
    with WireClient(namespace.port, sasl=plain(name, "wrong")) as client:
        client.engine.open()
        client.until_hung_up()
        return str(client.failure)


def by_token(namespace: RunningNamespace, name: str) -> str:
    token = make_sas_token("sb://localhost/orders", name, "wrong", 4_000_000_000)
    with WireClient(namespace.port).open() as client:
        answer = client.put_token("sb://localhost/orders", token)
        return f"{int(answer.status)} {answer.description}"


def over_http(namespace: RunningNamespace, name: str) -> str:
    connection = HTTPConnection("127.0.0.1", namespace.port, timeout=DEADLINE_S)
    encoded = base64.b64encode(f"{name}:wrong".encode()).decode()
    connection.request("GET", "/orders", headers={"Authorization": f"Basic {encoded}"})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return f"{response.status} {body.partition('TrackingId')[0]}"


@pytest.mark.parametrize("guess", [by_sasl, by_token, over_http])
def test_e5_failed_login_is_logged_and_does_not_reveal_which_keys_exist(
    namespace: RunningNamespace, guess: Callable[[RunningNamespace, str], str], caplog: pytest.LogCaptureFixture
) -> None:
    answers = [guess(namespace, name).replace(name, "…") for name in (ROOT, "NoSuchKey")]
    assert answers[0] == answers[1]
    lines = [line for line in caplog.messages if line.startswith("login failed")]
    for name, line in zip((ROOT, "NoSuchKey"), lines, strict=True):
        assert re.search(rf" peer=127\.0\.0\.1:\d+( container=wire-client)? key={name} ", line), line
    assert all(each.levelno == logging.WARNING for each in caplog.records if each.message in lines)


def exhaust(namespace: RunningNamespace) -> None:
    """Let as many logins with the root key's name fail as are checked."""

    def fail(guesses: LoginLimiter) -> None:
        for _ in range(int(BY_KEY.burst) + 60):
            guesses.failed("127.0.0.1", ROOT, "amqp", WRONG)

    fail(namespace._running._running.services.guesses)


def test_e5_further_guesses_are_refused_as_busy_on_each_protocol_and_open_connections_continue(
    namespace: RunningNamespace,
) -> None:
    with connect(namespace) as client:
        link = client.sender("orders")
        exhaust(namespace)
        with WireClient(namespace.port, sasl=plain(ROOT, namespace.key)) as guesser:
            guesser.engine.open()
            guesser.until_hung_up()
            assert str(SaslCode.SYS_TEMP.value) in str(guesser.failure) or "SYS_TEMP" in str(guesser.failure)
        assert by_token(namespace, ROOT).startswith("503")
        assert over_http(namespace, ROOT).startswith("503")
        client.receiver("orders")
        assert link.is_attached


def test_e5_token_with_too_long_a_validity_is_refused() -> None:
    with (
        running_namespace(queues=["orders"], max_token_minutes=10) as contoso,
        WireClient(contoso.port).open() as client,
    ):
        node = client.requests("$cbs")
        for minutes, status in ((9, 202), (11, 401)):
            expires_s = int(time.time()) + 60 * minutes
            token = make_sas_token("sb://localhost/orders", ROOT, contoso.key, expires_s)
            assert client.put_token("sb://localhost/orders", token, node).status == status


def test_e5_request_with_an_ambiguous_end_is_refused_and_closed(namespace: RunningNamespace) -> None:
    with socket.create_connection(("127.0.0.1", namespace.port), timeout=DEADLINE_S) as stream:
        stream.sendall(
            b"POST /console/login HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        answer = b"".join(iter(lambda: stream.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1, "what follows is not taken for a request"
