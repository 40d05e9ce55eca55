"""The management API on a real namespace, called without a network."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote
from uuid import UUID
from xml.etree import ElementTree as ET

from starlette.applications import Starlette

from pairbus.broker import STANDARD, AuthorizationRule, Limits, Namespace, Records, Right
from pairbus.dialect.atom import AtomEntry, AtomFeed, Table, parse_entry, parse_error, parse_feed
from pairbus.dialect.sas import make_sas_token
from pairbus.server.access import Authorizer
from pairbus.server.counters import Counters
from pairbus.server.host import NamespaceHost
from pairbus.server.http.app import make_app
from pairbus.server.http.metrics import Metrics
from pairbus.store import GroupCommitter, KeyValueStore, MemoryStore
from tests.broker.broker import START, View

HOST: Final = "bus.example:5671"
ROOT: Final = AuthorizationRule(
    name="RootManageSharedAccessKey",
    rights=(Right.MANAGE, Right.SEND, Right.LISTEN),
    primary_key="first key",
    secondary_key="second key",
)
SENDER: Final = AuthorizationRule(name="sender", rights=(Right.SEND,), primary_key="s1", secondary_key="s2")
LISTENER: Final = AuthorizationRule(name="listener", rights=(Right.LISTEN,), primary_key="l1", secondary_key="l2")

CONNECT: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
ATOM: Final = "http://www.w3.org/2005/Atom"


def token(rule: AuthorizationRule = ROOT, resource: str = "", *, expires_ms: int = START + 3_600_000) -> str:
    """Return a shared access signature for a resource of the server, by default for all of it."""
    return make_sas_token(f"https://{HOST}/{resource}", rule.name, rule.primary_key, expires_ms // 1_000)


def basic(name: str, key: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{key}".encode()).decode()


def entry(content: str) -> bytes:
    """Return an entry with a description, which is given without its XML namespace."""
    name, rest = content[1:].split(">", 1) if not content.endswith("/>") else (content[1:-2], None)
    tail = "/>" if rest is None else f">{rest}"
    xsi = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml"><{name} xmlns="{CONNECT}" {xsi}{tail}</content></entry>'
    ).encode()


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def detail(self) -> str:
        """Return the reason of a refusal."""
        return parse_error(self.body).detail

    def entry(self, table: Table) -> AtomEntry:
        return parse_entry(self.body, table)

    def feed(self, table: Table) -> AtomFeed:
        return parse_feed(self.body, table)

    def description(self) -> ET.Element:
        """Return the description as it was written."""
        content = ET.fromstring(self.body).find(f"{{{ATOM}}}content")  # noqa: S314 (our own)
        assert content is not None
        return content[0]


class Site:
    """A namespace with its application, on a separate loop and with a fixed clock."""

    def __init__(self, limits: Limits = STANDARD, store: KeyValueStore | None = None, **options: Any) -> None:
        self.now_ms = START
        self.loop = asyncio.new_event_loop()
        ids, tokens = count(1), count(1)

        def make(records: Records) -> Namespace:
            return Namespace(
                records,
                limits=limits,
                view=View,
                fresh_id=lambda: UUID(int=next(ids)),
                fresh_token=lambda: next(tokens).to_bytes(16, "big"),
            )

        self.store = MemoryStore() if store is None else store
        keeper = GroupCommitter(self.store, make, self.now_ms, self.loop.call_soon_threadsafe)
        self.host = NamespaceHost("bus", limits, keeper, lambda: self.now_ms, self.loop)
        self.host.use_namespace().set_authorization_rules([ROOT, SENDER, LISTENER], self.now_ms)
        self.counters = Counters()
        self.metrics = Metrics(self.counters, keeper)
        self.authorizer = Authorizer(self.host)
        self.app: Starlette = make_app(self.host, self.authorizer, self.metrics, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.host.close()
        self.loop.close()

    @property
    def namespace(self) -> Namespace:
        return self.host.use_namespace()

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        authorization: str | None = "",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Make a request. ``authorization`` grants all rights by default."""
        given = {"host": HOST, "content-length": str(len(body)), **(headers or {})}
        if authorization is not None:
            given["authorization"] = authorization or token()
        return self.loop.run_until_complete(call(self.app, method, path, body, given))

    def get(self, path: str, **options: Any) -> Reply:
        return self("GET", path, **options)

    def put(self, path: str, content: str | bytes, **options: Any) -> Reply:
        return self("PUT", path, content if isinstance(content, bytes) else entry(content), **options)

    def update(self, path: str, content: str | bytes, if_match: str = "*", **options: Any) -> Reply:
        return self.put(path, content, headers={"If-Match": if_match}, **options)

    def delete(self, path: str, **options: Any) -> Reply:
        return self("DELETE", path, **options)


async def call(app: Starlette, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    raw_path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "https",
        "path": raw_path,
        "raw_path": quote(raw_path, safe="/%$").encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("test", 1),
        "server": ("bus.example", 5671),
    }
    chunks = [body[start : start + 65_536] for start in range(0, len(body), 65_536)] or [b""]
    incoming = iter(enumerate(chunks, 1))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        number, chunk = next(incoming)
        return {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return Reply(
        sent[0]["status"],
        {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]},
        b"".join(message.get("body", b"") for message in sent[1:]),
    )
