"""A parsed and authorized request, which handlers work on; and request bodies, read within limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request

from pairbus.broker import AuthorizationRule, Namespace, Right
from pairbus.dialect.atom import AtomError, Table, parse_request
from pairbus.server.audit import NOBODY, Actor, AuditAction, key_changes
from pairbus.server.errors import BadRequestError, UnauthorizedError
from pairbus.server.host import NamespaceHost
from pairbus.server.http.credentials import Credentials
from pairbus.server.http.metrics import Monitoring
from pairbus.server.supervision.diagnostics import Diagnostics

MAX_BODY_BYTES: Final = 1 << 20
"""The largest body that any route accepts: a description of an entity, or of a rule with long expressions."""

_DIGITS: Final = 18


class BodyTooLargeError(BadRequestError):
    """The body is larger than the route allows."""

    limit = "http_body_bytes"


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body; raises ``BodyTooLargeError`` as soon as it is too large, or declares that it will be."""
    check_length(request.headers.get("content-length", "0"), max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def check_length(length: str, max_bytes: int) -> None:
    """Raise ``BodyTooLargeError`` if a Content-Length exceeds the limit."""
    if length.isascii() and length.isdigit() and (len(length) > _DIGITS or int(length) > max_bytes):
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body has more than {max_bytes} bytes, the maximum of this route (http_body_bytes)")


API_VERSION: Final = "2021-05"
"""The version for clients that do not name one."""

_HOST: Final = re.compile(r"[A-Za-z0-9._\-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A request whose sender is authorized, unless the route is open to everyone."""

    host: NamespaceHost
    operation: str
    names: Mapping[str, str]
    """The variable parts of the path."""

    query: Mapping[str, str]
    headers: Mapping[str, str]
    credentials: Credentials
    now_ms: int
    authority: str
    """Host and port by which the client knows the server."""

    created_ms: int
    """Creation time of this namespace."""

    monitoring: Monitoring
    diagnostics: Diagnostics | None = None
    actor: Actor = NOBODY
    """The sender, for the audit log."""

    audited: list[AuditAction | str] = field(default_factory=list)
    """Actions whose outcome will be in the audit log."""

    body: bytes = field(default=b"", repr=False)

    @property
    def namespace(self) -> Namespace:
        return self.host.use_namespace()

    @property
    def api_version(self) -> str:
        return self.query.get("api-version", API_VERSION)

    def audit(self, action: AuditAction | str, **facts: Any) -> None:
        """Record a change in the audit log once it is on disk; call it after the change, and before waiting for it."""
        self.audited.append(action)
        self.host.audit_when_durable(action, self.actor, **facts)

    def audit_keys(
        self, before: Iterable[AuthorizationRule], after: Iterable[AuthorizationRule], entity: str = ""
    ) -> None:
        for change in key_changes(before, after):
            self.audit(change.action, entity=entity, key=change.name)

    def description(self, *tables: Table) -> tuple[Table, dict[str, Any]]:
        """Return the description in the body; raises ``BadRequestError``."""
        try:
            return parse_request(self.body, *tables)
        except AtomError as error:
            raise BadRequestError(str(error)) from error

    def id_of(self, path: str) -> str:
        """Return the address of a resource as an identifier: names are not encoded."""
        return f"https://{self.authority}/{path}?api-version={quote(self.api_version)}"

    def link_to(self, path: str, **query: int) -> str:
        """Return the address of a resource as a link."""
        given = {f"${name}": str(value) for name, value in query.items()} | {"api-version": self.api_version}
        return f"https://{self.authority}/{quote(path, safe='/$')}?{urlencode(given, safe='$')}"

    def address_of(self, path: str) -> str:
        """Return the address of an entity as other entities name it as a forwarding target."""
        return f"sb://{self.authority}/{path}"

    def require_forwarding(self, target: str, header: str) -> None:
        """Raise ``UnauthorizedError`` unless the sender may forward messages to an entity."""
        if self.credentials.allows(target, Right.MANAGE, self.host.wall_ms()):
            return
        others = Credentials(self.credentials.authorizer, self.headers.get(header))
        if not others.allows(target, Right.SEND, self.host.wall_ms()):
            raise UnauthorizedError(
                f"to forward to another entity, {header} needs a token with the claim 'Send' for it"
            )


def authority_of(host_header: str | None, otherwise: str) -> str:
    """Return the server's authority in the Host header, if it is a valid host name."""
    return host_header if host_header is not None and _HOST.fullmatch(host_header) else otherwise
