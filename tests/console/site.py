"""A real server with its console, and a client that behaves like a browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import unescape
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from pairbus.broker import Address, AuthorizationRule, NewMessage, QueuePart, Right, SettlementKind, SettlementRequest
from pairbus.console import open_console
from pairbus.server import NamespaceServer, Settings
from pairbus.server.declaration import parse_declaration
from pairbus.server.host import NamespaceHost
from pairbus.server.messages import received_message
from pairbus.server.process import new_event_loop
from pairbus.wire import Message as AmqpMessage
from pairbus.wire import Properties, Symbol, encode_message

T = TypeVar("T")

PATIENCE_S: Final = 60
"""Timeout of every wait; generous, because many tests may share the processors."""

LISTENER: Final = AuthorizationRule(
    name="listener", rights=(Right.LISTEN,), primary_key="listener key", secondary_key="listener key 2"
)
SENDER: Final = AuthorizationRule(
    name="sender", rights=(Right.SEND,), primary_key="sender key", secondary_key="sender key 2"
)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def location(self) -> str:
        return self.headers["location"]

    @property
    def csrf_token(self) -> str:
        found = re.search(r'name="csrf_token" value="([^"]+)"', self.text)
        assert found is not None
        return found[1]

    @property
    def alert(self) -> str:
        """The text of the error."""
        found = re.search(r'role="alert">([^<]*)<', self.text)
        assert found is not None
        return unescape(found[1])

    def live(self, key: str) -> str:
        """Return the text of a live value."""
        found = re.search(rf'data-live="{re.escape(key)}"[^>]*>([^<]*)<', self.text)
        assert found is not None, key
        return unescape(found[1])


@dataclass(slots=True)
class Person:
    """A user with a browser."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    def request(
        self, method: str, path: str, form: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            response = self._send(connection, method, path, form, headers or {})
            body = response.read().decode()
            self._keep_cookies(response)
            return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)
        finally:
            connection.close()

    def get(self, path: str = "/console", **query: Any) -> Reply:
        return self.request("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, **form: Any) -> Reply:
        return self.request("POST", path, form)

    def act(self, path: str, **form: Any) -> Reply:
        """Send a form with the CSRF token of the session."""
        return self.post(path, csrf_token=self.get().csrf_token, **form)

    @contextmanager
    def stream(self, **query: Any) -> Iterator[Iterator[tuple[str, str]]]:
        """Yield the events of a page as they arrive."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            yield events_of(self._send(connection, "GET", f"/console/events?{urlencode(query)}", None, {}))
        finally:
            connection.close()

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        form: Mapping[str, Any] | None,
        headers: Mapping[str, str],
    ) -> HTTPResponse:
        given = dict(headers)
        if self.cookies:
            given["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if form is not None:
            given.setdefault("Content-Type", "application/x-www-form-urlencoded")
        connection.request(method, path, None if form is None else urlencode(form), given)
        return connection.getresponse()

    def _keep_cookies(self, response: HTTPResponse) -> None:
        for line in response.headers.get_all("set-cookie") or []:
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')


def events_of(response: HTTPResponse) -> Iterator[tuple[str, str]]:
    assert response.status == 200, response.status
    kind, data = "", []
    while line := response.readline().decode():
        match line.rstrip("\n").partition(": "):
            case ("event", _, text):
                kind = text
            case ("data", _, text):
                data.append(text)
            case ("", _, _) if kind:
                yield kind, "\n".join(data)
                kind, data = "", []


class Site:
    """A server with the console, which runs in a thread."""

    def __init__(self, data: Path, **settings: Any) -> None:
        entities = parse_declaration(
            {
                "queues": [{"name": "orders"}, {"name": "payments"}],
                "topics": [{"name": "news", "subscriptions": [{"name": "all"}]}],
            }
        )
        self.settings = Settings(**{"data": data, "name": "contoso", "port": (0,), "entities": entities, **settings})
        extensions = [partial(open_console, self.settings)] if self.settings.console else []
        self.server = NamespaceServer(self.settings, extensions=extensions)
        self._loop = new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._await(self.server.start())
        self.call(add_keys)

    def stop(self) -> None:
        self._await(self.server.stop())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        return self.server.ports[0]

    def person(self) -> Person:
        """Return a user who is not logged in."""
        return Person(self.port)

    def manager(self) -> Person:
        return self._known(self.settings.key_name, self.server.key)

    def listener(self) -> Person:
        return self._known(LISTENER.name, LISTENER.primary_key)

    def _known(self, name: str, key: str) -> Person:
        person = self.person()
        assert person.post("/console/login", key_name=name, key=key).status == 303
        return person

    def call(self, function: Callable[[NamespaceHost], T]) -> T:
        """Call a function with the host in the server's thread, and wait until its changes are durable."""

        async def called() -> T:
            answer = function(self.server.host)
            await self.server.host.durable()
            return answer

        answer: T = self._await(called())
        return answer

    def send(self, entity: str, *bodies: bytes, **fields: Any) -> None:
        messages = [message(body, **fields) for body in bodies]
        self.call(lambda host: host.use_namespace().send(Address.of(entity), messages, host.now_ms()))

    def dead_letter(self, entity: str, *bodies: bytes, subscription: str | None = None, **fields: Any) -> None:
        """Send messages to an entity and dead-letter them."""
        self.send(entity, *bodies, **fields)
        address = Address.of(entity, subscription)
        settlement = SettlementRequest(
            disposition=SettlementKind.DEAD_LETTER, reason="too hot", description="the <b>cup</b> burns"
        )

        def settle(host: NamespaceHost) -> None:
            for delivery in host.use_namespace().receive(address, len(bodies), host.now_ms()):
                assert delivery.lock_token is not None
                host.use_namespace().settle(address, delivery.lock_token, host.now_ms(), settlement)

        self.call(settle)

    def sequences(self, entity: str, subscription: str | None = None, part: QueuePart = QueuePart.MAIN) -> list[int]:
        address = Address.of(entity, subscription, part)
        return [each.record.sequence for each in self.call(lambda host: _peek(host, address))]

    def ids(self, entity: str, subscription: str | None = None, part: QueuePart = QueuePart.MAIN) -> list[str]:
        address = Address.of(entity, subscription, part)
        return [each.record.message_id for each in self.call(lambda host: _peek(host, address))]

    def _await(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


def _peek(host: NamespaceHost, address: Address) -> Any:
    return host.use_namespace().peek(address, 0, 10_000, host.now_ms())


def add_keys(host: NamespaceHost) -> None:
    rules = host.use_namespace().authorization_rules(host.now_ms())
    host.use_namespace().set_authorization_rules([*rules, LISTENER, SENDER], host.now_ms())


def message(body: bytes, *, message_id: str | None = None, content_type: str | None = None, **named: Any) -> NewMessage:
    """Return a message as a sender sends it."""
    properties = Properties(message_id=message_id, content_type=None if content_type is None else Symbol(content_type))
    return received_message(
        encode_message(AmqpMessage(properties=properties, application_properties=named or None, body=(body,)))
    )
