"""E5: ten thousand guesses on a real server, over each protocol: limited, answered alike, and harmless to clients."""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import pytest

from pairbus.broker import AuthorizationRule, Right
from pairbus.dialect.sas import make_sas_token
from pairbus.server.access import Authorizer
from pairbus.server.audit import AuditAction, audit_file
from pairbus.server.errors import InvalidCredentialsError
from pairbus.server.host import NamespaceHost
from pairbus.server.peer_limits import _MOST_DEBT, BY_KEY, LoginLimiter
from pairbus.wire import ACCEPTED, Symbol, plain
from pairbus.wire.frames import SASL_FRAME, SASL_HEADER
from pairbus.wire.performatives import SaslInit
from tests.console.site import Site
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, text_message
from tests.waiting import eventually
from tests.wire.pair import frame

TARGET: Final = AuthorizationRule(
    name="target-7f3a", rights=(Right.MANAGE,), primary_key="t" * 44, secondary_key="u" * 44
)
ABSENT: Final = "absent-7f3a"
"""A name of the same length that no key has."""

LOOKED_AT: Final = int(BY_KEY.burst + _MOST_DEBT)
"""The number of guesses for one name from one address that are checked while no time passes."""


class Clock:
    """The limiter's time, which passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "contoso")
    site.start()
    site.call(add_target)
    try:
        yield site
    finally:
        site.close()


def add_target(host: NamespaceHost) -> None:
    rules = host.use_namespace().authorization_rules(host.now_ms())
    host.use_namespace().set_authorization_rules([*rules, TARGET], host.now_ms())


# Guesses. Each function sends some on connections of their own, and returns what reads the answers.


def connect(site: Site) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.port), timeout=DEADLINE_S)


Read = Callable[[], list[str]]
Guess = Callable[[Site, ExitStack, str, int], Read]


def by_sasl(site: Site, stack: ExitStack, name: str, count: int) -> Read:
    response = f"\0{name}\0wrong".encode()
    data = SASL_HEADER + frame(SaslInit(mechanism=Symbol("PLAIN"), initial_response=response), kind=SASL_FRAME)
    streams = [stack.enter_context(connect(site)) for _ in range(count)]
    for stream in streams:
        stream.sendall(data)
    return lambda: [b"".join(iter(lambda stream=stream: stream.recv(4_096), b"")).hex() for stream in streams]  # type: ignore[misc]


def by_token(site: Site, stack: ExitStack, name: str, count: int) -> Read:
    token = make_sas_token("sb://localhost/orders", name, "wrong", 4_000_000_000)
    client = stack.enter_context(WireClient(site.port)).open()
    node = client.requests("$cbs")
    words = {"name": "sb://localhost/orders", "type": "jwt"}
    for number in range(count):
        node.ask("put-token", token, message_id=str(number), properties=words)

    def read(number: int) -> str:
        answer = client.until(lambda: node.answer_to(str(number)))
        return f"{int(answer.status)} {answer.description}"

    return lambda: [read(number) for number in range(count)]


def by_http(site: Site, stack: ExitStack, name: str, count: int) -> Read:
    key = base64.b64encode(f"{name}:wrong".encode()).decode()
    return http(site, stack, f"GET /orders HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {key}\r\n\r\n", count)


def by_console(site: Site, stack: ExitStack, name: str, count: int) -> Read:
    form = urlencode({"key_name": name, "key": "wrong"})
    head = "POST /console/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    return http(site, stack, f"{head}Content-Length: {len(form)}\r\n\r\n{form}", count)


def http(site: Site, stack: ExitStack, request: str, count: int) -> Read:
    stream = stack.enter_context(connect(site))
    reader = stack.enter_context(stream.makefile("rb"))
    stream.sendall(request.encode() * count)

    def read() -> str:
        status, length = reader.readline().decode().strip(), 0
        while line := reader.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return f"{status} {reader.read(length).decode()}"

    return lambda: [read() for _ in range(count)]


class Way(NamedTuple):
    guess: Guess
    protocol: str
    """The metric label of the guesses."""
    total: int
    """The number of guesses for each name."""
    at_once: int
    """The number of guesses per connection."""


WAYS: Final = (
    Way(by_sasl, "amqp", 200, 10),
    Way(by_token, "amqp", 800, 100),
    Way(by_http, "http", 2_500, 25),
    Way(by_console, "console", 1_500, 15),
)
NAMES: Final = (TARGET.name, ABSENT)
_CHANGING: Final = re.compile(r"TrackingId:\S+|Timestamp:\S+")


def answers_of(read: Read, name: str) -> list[str]:
    """The answers without what is different in each."""
    return [_CHANGING.sub("", answer).replace(name, "…") for answer in read()]


def guess_on(site: Site, way: Way, name: str) -> set[str]:
    """Guess until all guesses of this way are made; return the answers, none of which is held back."""
    answers: set[str] = set()
    for start in range(LOOKED_AT, way.total, way.at_once):
        with ExitStack() as stack:
            read = way.guess(site, stack, name, min(way.at_once, way.total - start))
            answers.update(answers_of(read, name))
    return answers


@pytest.mark.slow
def test_e5_ten_thousand_guesses_are_limited_answered_alike_and_do_not_delay_clients(site: Site) -> None:
    guesses, clock = site.server._running.services.guesses, Clock()
    guesses._now_s = clock
    honest = site.listener()
    late: dict[str, list[Read]] = {name: [] for name in NAMES}
    with ExitStack() as stack:
        client = stack.enter_context(WireClient(site.port, sasl=plain(site.settings.key_name, site.server.key))).open()
        link = client.sender("orders")
        for way in WAYS:
            clock.now_s += 3_600  # nothing is left of what the others have tried
            refused = []
            for name in NAMES:
                looked_at = guesses.failed_counts[way.protocol] + LOOKED_AT
                late[name] += [way.guess(site, stack, name, 1) for _ in range(LOOKED_AT)]
                eventually(lambda: guesses.failed_counts[way.protocol] == looked_at)  # noqa: B023
                refused.append(guess_on(site, way, name))
                assert guesses.failed_counts[way.protocol] == looked_at, "further ones are not looked at"
                assert client.send(link, text_message("one")) == ACCEPTED
                assert honest.get().status == 200
                assert site.listener().get().status == 200, "guesses for other names do not delay a log-in from there"
            assert refused[0] == refused[1]
            assert len(refused[0]) == 1
        reported = {name: [each for read in reads for each in answers_of(read, name)] for name, reads in late.items()}
    assert reported[TARGET.name] == reported[ABSENT], "an answer does not tell whether there is such a key"
    made = sum(len(NAMES) * way.total for way in WAYS)
    looked_at = len(NAMES) * len(WAYS) * LOOKED_AT
    assert made == 10_000
    assert guesses.failed_counts.total() == looked_at
    assert guesses.refused_counts.total() == made - looked_at
    print(f"{made:,} guesses: {looked_at} looked at, {made - looked_at:,} refused")


# A peer that claims other addresses.


def claiming(site: Site, stack: ExitStack, protocol: str, number: int) -> tuple[Read, str]:
    """Guess over HTTP or at the console with an address of its own in the headers; return the real peer as well."""
    stream = stack.enter_context(connect(site))
    host, port = stream.getsockname()
    claimed = f"X-Forwarded-For: 10.1.2.{number}\r\nX-Forwarded-Proto: https\r\nForwarded: for=10.1.2.{number}\r\n"
    if protocol == "http":
        key = base64.b64encode(f"{TARGET.name}:wrong".encode()).decode()
        request = f"GET /orders HTTP/1.1\r\nHost: x\r\n{claimed}Authorization: Basic {key}\r\n\r\n"
    else:
        form = urlencode({"key_name": TARGET.name, "key": "wrong"})
        headers = f"{claimed}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(form)}\r\n"
        request = f"POST /console/login HTTP/1.1\r\nHost: x\r\n{headers}\r\n{form}"
    stream.sendall(request.encode())
    reader = stack.enter_context(stream.makefile("rb"))
    return lambda: [reader.readline().decode().strip()], f"{host}:{port}"


@pytest.mark.parametrize(("protocol", "refused"), [("http", "503"), ("console", "401")])
def test_e5_claimed_addresses_share_the_limit_of_the_real_one(
    site: Site, protocol: str, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Loopback is an address whose claims uvicorn trusts by default."""
    guesses = site.server._running.services.guesses
    guesses._now_s = Clock()
    with ExitStack() as stack:
        peers = {claiming(site, stack, protocol, number)[1] for number in range(LOOKED_AT)}
        eventually(lambda: guesses.failed_counts[protocol] == LOOKED_AT)
        read, _ = claiming(site, stack, protocol, LOOKED_AT)
        assert f" {refused} " in read()[0]
        assert guesses.refused_counts[protocol] == 1
    logged = [line for line in caplog.messages if line.startswith("login failed")]
    assert {re.search(r" peer=(\S+) ", line)[1] for line in logged} == peers  # type: ignore[index]
    audited = eventually(lambda: found if len(found := failed_logins(site)) == len(peers) else None)
    assert {record["peer"] for record in audited} == peers


def failed_logins(site: Site) -> list[dict[str, Any]]:
    path = audit_file(site.settings.data)
    found = [json.loads(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []
    return [record for record in found if record["action"] == AuditAction.LOGIN_FAILED]


def test_e5_failed_login_at_the_console_is_logged_and_does_not_reveal_which_keys_exist(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    answers = []
    for name in NAMES:
        with ExitStack() as stack:
            answers.append(answers_of(by_console(site, stack, name, 1), name))
    assert answers[0] == answers[1]
    lines = [each for each in caplog.records if each.message.startswith("login failed")]
    for name, line in zip(NAMES, lines, strict=True):
        assert re.search(rf" peer=127\.0\.0\.1:\d+ key={name} protocol=console ", line.message), line.message
        assert line.levelno == logging.WARNING


# A key that has logged in from an address whose limit is used up.


def by_expired_token(site: Site, stack: ExitStack, name: str, _count: int) -> Read:
    token = make_sas_token("sb://localhost/orders", name, "wrong", 1)
    answer = stack.enter_context(WireClient(site.port)).open().put_token("sb://localhost/orders", token)
    return lambda: [f"{int(answer.status)} {answer.description}"]


def by_health(site: Site, stack: ExitStack, name: str, count: int) -> Read:
    key = base64.b64encode(f"{name}:wrong".encode()).decode()
    return http(site, stack, f"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {key}\r\n\r\n", count)


def by_metrics(site: Site, stack: ExitStack, name: str, count: int) -> Read:
    key = base64.b64encode(f"{name}:wrong".encode()).decode()
    return http(site, stack, f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {key}\r\n\r\n", count)


def use_up(guesses: LoginLimiter) -> None:
    """Let as many logins with many names fail as an address may."""
    for number in range(200):
        guesses.failed("127.0.0.1", f"name {number}", "amqp", InvalidCredentialsError("wrong"))


@pytest.mark.parametrize(
    "guess",
    [by_sasl, by_token, by_http, by_console, by_expired_token, by_health, by_metrics],
    ids=lambda way: way.__name__,
)
def test_e5_answers_do_not_reveal_which_keys_have_logged_in_while_the_limit_of_an_address_is_used_up(
    site: Site, guess: Guess
) -> None:
    guesses = site.server._running.services.guesses
    guesses._now_s = Clock()
    with WireClient(site.port, sasl=plain(TARGET.name, TARGET.primary_key)).open() as client:
        client.sender("orders")  # now the key is known
    site.call(lambda _host: use_up(guesses))
    found: dict[str, list[str]] = {}
    for name in NAMES:
        with ExitStack() as stack:
            found[name] = answers_of(guess(site, stack, name, 1), name)
    assert found[TARGET.name] == found[ABSENT]
    with WireClient(site.port, sasl=plain(TARGET.name, TARGET.primary_key)).open() as client:
        client.sender("orders")  # the right key is not delayed


@pytest.mark.parametrize("kind", ["key", "token"])
def test_e5_unknown_name_takes_as_much_work_as_a_wrong_key(site: Site, kind: str) -> None:
    """The median of many, of each in turn, in time of the processor: whatever else runs counts for both."""

    def measure(host: NamespaceHost) -> dict[str, float]:
        authorizer = Authorizer(host)
        spent: dict[str, list[int]] = {TARGET.name: [], ABSENT: []}
        for _ in range(1_000):
            for name, times in spent.items():
                token = make_sas_token("sb://localhost/orders", name, "x" * 44, 4_000_000_000)
                began = time.thread_time_ns()
                with pytest.raises(InvalidCredentialsError):
                    authorizer.admit(token, "orders") if kind == "token" else authorizer.admit_key(name, "x" * 44)
                times.append(time.thread_time_ns() - began)
        return {name: statistics.median(times) for name, times in spent.items()}

    medians = site.call(measure)
    assert 0.5 < medians[TARGET.name] / medians[ABSENT] < 2, medians
