"""One request, taken apart: what handlers work on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from pairbus.broker import Namespace, Right
from pairbus.dialect.atom import AtomError, Table, parse_request
from pairbus.server.errors import BadRequestError, UnauthorizedError
from pairbus.server.host import NamespaceHost
from pairbus.server.http.credentials import Credentials
from pairbus.server.http.monitoring import Monitoring

API_VERSION: Final = "2021-05"
"""What a client speaks that does not say."""

_HOST: Final = re.compile(r"[A-Za-z0-9._\-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, whose sender may make it unless the route is open to everyone."""

    host: NamespaceHost
    operation: str
    names: Mapping[str, str]
    """The parts of the path that stand for something."""

    query: Mapping[str, str]
    headers: Mapping[str, str]
    credentials: Credentials
    now_ms: int
    authority: str
    """Host and port by which the client knows the server."""

    created_ms: int
    """Since when there is this namespace."""

    monitoring: Monitoring
    body: bytes = field(default=b"", repr=False)

    @property
    def namespace(self) -> Namespace:
        return self.host.namespace

    @property
    def api_version(self) -> str:
        return self.query.get("api-version", API_VERSION)

    def description(self, *tables: Table) -> tuple[Table, dict[str, Any]]:
        """The description in the body; raises ``BadRequestError``."""
        try:
            return parse_request(self.body, *tables)
        except AtomError as error:
            raise BadRequestError(str(error)) from error

    def id_of(self, path: str) -> str:
        """The address of something as an identifier: names are as they are, not encoded."""
        return f"https://{self.authority}/{path}?api-version={quote(self.api_version)}"

    def link_to(self, path: str, **query: int) -> str:
        """The address of something to follow."""
        given = {f"${name}": str(value) for name, value in query.items()} | {"api-version": self.api_version}
        return f"https://{self.authority}/{quote(path, safe='/$')}?{urlencode(given, safe='$')}"

    def address_of(self, path: str) -> str:
        """An entity as others name it to forward to it."""
        return f"sb://{self.authority}/{path}"

    def require_forwarding(self, target: str, header: str) -> None:
        """Raise ``UnauthorizedError`` unless the sender may have messages forwarded to an entity."""
        if self.credentials.allows(target, Right.MANAGE, self.host.wall_ms()):
            return
        others = Credentials(self.credentials.gatekeeper, self.headers.get(header))
        if not others.allows(target, Right.SEND, self.host.wall_ms()):
            raise UnauthorizedError(
                f"to forward to another entity, {header} needs a token with the claim 'Send' for it"
            )


def authority_of(host_header: str | None, otherwise: str) -> str:
    """What the client calls the server, if that can be the name of a host."""
    return host_header if host_header is not None and _HOST.fullmatch(host_header) else otherwise
