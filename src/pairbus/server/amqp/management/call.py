"""One request to a ``$management`` node, with its fields checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

from pairbus.broker import Address, Namespace
from pairbus.dialect.management import ASSOCIATED_LINK, Request
from pairbus.server.amqp.peer import Peer
from pairbus.server.errors import BadRequestError
from pairbus.wire import Array

T = TypeVar("T")


class Call:
    """What an operation gets to see."""

    def __init__(self, peer: Peer, address: Address, request: Request) -> None:
        self.peer = peer
        self.address = address
        self._request = request
        self._body = request.body if isinstance(request.body, Mapping) else {}

    @property
    def namespace(self) -> Namespace:
        return self.peer.host.namespace

    @property
    def now_ms(self) -> int:
        return self.peer.host.now_ms()

    def session_token(self) -> bytes | None:
        """What holds the session of the link that the request names."""
        return self.peer.session_token(
            self._request.properties.get(ASSOCIATED_LINK), self.address, self._body.get("session-id")
        )

    # Fields. What is missing and what has the wrong type is told by name.

    def text(self, name: str) -> str:
        return _expect(self._body.get(name), str, name, "text")

    def optional_text(self, name: str) -> str | None:
        return None if self._body.get(name) is None else self.text(name)

    def number(self, name: str, default: int | None = None) -> int:
        value = self._body.get(name, default)
        if isinstance(value, bool):
            raise BadRequestError(f"'{name}' is {value}, which is no number")
        return int(_expect(value, int, name, "a number"))

    def optional_bytes(self, name: str) -> bytes | None:
        value = self._body.get(name)
        return None if value is None else _expect(value, bytes, name, "binary")

    def mapping(self, name: str) -> Mapping[Any, Any]:
        return _expect(self._body.get(name) or {}, Mapping, name, "a map")  # type: ignore[type-abstract]

    def numbers(self, name: str) -> list[int]:
        return [int(_expect(item, int, name, "a list of numbers")) for item in self.items(name)]

    def lock_tokens(self, name: str) -> list[bytes]:
        return [_expect(item, UUID, name, "a list of UUIDs").bytes_le for item in self.items(name)]

    def items(self, name: str) -> list[Any]:
        """The items of a list or an array; at least one."""
        value = self._body.get(name)
        items = list(value.items) if isinstance(value, Array) else value
        if not isinstance(items, list) or not items:
            raise BadRequestError(f"'{name}' is no list with something in it")
        return items


def _expect(value: object, kind: type[T], name: str, what: str) -> T:
    if not isinstance(value, kind):
        raise BadRequestError(f"'{name}' is {value!r:.100}; it has to be {what}")
    return value
