"""A real server with its console, and somebody who asks it as a browser does."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import unescape
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlencode

from pairbus.broker import Address, AuthorizationRule, Disposition, Message, Part, Right, Verdict
from pairbus.console import open_console
from pairbus.server import NamespaceServer, Settings
from pairbus.server.declaration import parse_declaration
from pairbus.server.event_loop import new_event_loop
from pairbus.server.host import NamespaceHost
from pairbus.server.messages import received_message
from pairbus.wire import Message as AmqpMessage
from pairbus.wire import Properties, Symbol, encode_message

T = TypeVar("T")

PATIENCE_S: Final = 60
"""Generous: whoever waits may share the processors with many."""

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
    def seal(self) -> str:
        found = re.search(r'name="seal" value="([^"]+)"', self.text)
        assert found is not None
        return found[1]

    @property
    def alert(self) -> str:
        """What was refused, and why."""
        found = re.search(r'role="alert">([^<]*)<', self.text)
        assert found is not None
        return unescape(found[1])

    def live(self, key: str) -> str:
        """The text of a number that is kept up to date."""
        found = re.search(rf'data-live="{re.escape(key)}"[^>]*>([^<]*)<', self.text)
        assert found is not None, key
        return unescape(found[1])


@dataclass(slots=True)
class Person:
    """Somebody with a browser."""

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
        """Send a form with the seal that pages carry."""
        return self.post(path, seal=self.get().seal, **form)

    @contextmanager
    def stream(self, **query: Any) -> Iterator[Iterator[tuple[str, str]]]:
        """The events of a page, as they come."""
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
    """A server with the console on a thread of its own."""

    def __init__(self, data: Path, **settings: Any) -> None:
        entities = parse_declaration(
            {
                "queues": [{"name": "orders"}, {"name": "payments"}],
                "topics": [{"name": "news", "subscriptions": [{"name": "all"}]}],
            }
        )
        self.settings = Settings(**{"data": data, "name": "contoso", "port": (0,), "entities": entities, **settings})
        annexes = [partial(open_console, self.settings)] if self.settings.console else []
        self.server = NamespaceServer(self.settings, annexes=annexes)
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
        """Somebody who is not logged in."""
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
        """Do something to the namespace, where it lives, and wait until it is on disk."""

        async def called() -> T:
            answer = function(self.server.host)
            await self.server.host.durable()
            return answer

        answer: T = self._await(called())
        return answer

    def send(self, entity: str, *bodies: bytes, **fields: Any) -> None:
        messages = [message(body, **fields) for body in bodies]
        self.call(lambda host: host.namespace.send(Address.of(entity), messages, host.now_ms()))

    def dead_letter(self, entity: str, *bodies: bytes, subscription: str | None = None, **fields: Any) -> None:
        """Have messages among the dead letters of an entity."""
        self.send(entity, *bodies, **fields)
        address = Address.of(entity, subscription)
        verdict = Verdict(disposition=Disposition.DEAD_LETTER, reason="too hot", description="the <b>cup</b> burns")

        def bury(host: NamespaceHost) -> None:
            for delivery in host.namespace.receive(address, len(bodies), host.now_ms()):
                assert delivery.lock_token is not None
                host.namespace.settle(address, delivery.lock_token, host.now_ms(), verdict)

        self.call(bury)

    def sequences(self, entity: str, subscription: str | None = None, part: Part = Part.MAIN) -> list[int]:
        address = Address.of(entity, subscription, part)
        return [each.record.sequence for each in self.call(lambda host: _peek(host, address))]

    def ids(self, entity: str, subscription: str | None = None, part: Part = Part.MAIN) -> list[str]:
        address = Address.of(entity, subscription, part)
        return [each.record.message_id for each in self.call(lambda host: _peek(host, address))]

    def _await(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


def _peek(host: NamespaceHost, address: Address) -> Any:
    return host.namespace.peek(address, 0, 10_000, host.now_ms())


def add_keys(host: NamespaceHost) -> None:
    rules = host.namespace.authorization_rules(host.now_ms())
    host.namespace.set_authorization_rules([*rules, LISTENER, SENDER], host.now_ms())


def message(body: bytes, *, message_id: str | None = None, content_type: str | None = None, **named: Any) -> Message:
    """A message as a sender sends it."""
    properties = Properties(message_id=message_id, content_type=None if content_type is None else Symbol(content_type))
    return received_message(
        encode_message(AmqpMessage(properties=properties, application_properties=named or None, body=(body,)))
    )


def eventually(condition: Callable[[], T | Literal[False]]) -> T:
    """Wait until something is so; what it is then."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
