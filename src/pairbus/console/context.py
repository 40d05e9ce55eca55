"""The context of a request: the session, the data that pages show, and the entity that the address names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from pairbus.broker import Address, QueuePart
from pairbus.console.auth import ConsoleLogin
from pairbus.console.sampler import Sampler
from pairbus.server.errors import BadRequestError
from pairbus.server.host import NamespaceHost
from pairbus.server.settings import Settings

_PARTS: Final = {"": QueuePart.MAIN, "dead": QueuePart.DEAD_LETTER, "transfer": QueuePart.TRANSFER_DEAD_LETTER}
_PART_NAMES: Final = {part: name for name, part in _PARTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """A template and its values."""

    template: str
    title: str
    values: Mapping[str, object] = field(default_factory=dict)
    section: str = ""
    """The link of the navigation that is marked as current."""

    events: str = ""
    """The address of the stream that updates the live values."""

    live: Mapping[str, str] = field(default_factory=dict)
    """Texts that are updated while the page is open, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """A request of a user who is logged in."""

    sampler: Sampler
    settings: Settings
    login: ConsoleLogin
    is_admin: bool
    query: Mapping[str, str]
    is_automatic: bool = False
    """True if the page sent the request without an action of the user."""

    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> NamespaceHost:
        return self.sampler.services.host

    def number(self, name: str, default: int = 0) -> int:
        """Return a number of the query, or the default if it is missing or not a number."""
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else default


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleEntity:
    """A queue, topic or subscription, or its dead letters, as an address of the console names it."""

    entity: str
    subscription: str | None = None
    part: QueuePart = QueuePart.MAIN

    @property
    def address(self) -> Address:
        return Address.of(self.entity, self.subscription, self.part)

    @property
    def main_address(self) -> Address:
        """The address without the part."""
        return Address.of(self.entity, self.subscription)

    @property
    def path(self) -> str:
        """The path of the entity, which a user types to confirm an action."""
        return self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a query or form that name the entity."""
        fields = {"entity": self.entity, "subscription": self.subscription or "", "part": _PART_NAMES[self.part]}
        return {name: value for name, value in fields.items() if value}

    def link(self, page: str = "entity", /, **fields: object) -> str:
        return f"/console/{page}?{urlencode({**self.fields, **fields}, errors='replace')}"

    def with_part(self, part: QueuePart) -> ConsoleEntity:
        return ConsoleEntity(entity=self.entity, subscription=self.subscription, part=part)


def entity_of(fields: Mapping[str, str]) -> ConsoleEntity:
    """Return the entity that a query or form names; raise ``BadRequestError`` if it names none."""
    entity, part = fields.get("entity", ""), fields.get("part", "")
    if not entity:
        raise BadRequestError("the address does not name an entity: 'entity' is missing")
    if part not in _PARTS:
        raise BadRequestError(f"'part' must be empty, 'dead' or 'transfer', got '{part}'")
    return ConsoleEntity(entity=entity, subscription=fields.get("subscription") or None, part=_PARTS[part])


def entity_at(path: str, address: Address) -> ConsoleEntity:
    """Return the entity with a path, in the spelling with which it was created."""
    if address.subscription is None:
        return ConsoleEntity(entity=path)
    topic, _, subscription = path.rpartition("/Subscriptions/")
    return ConsoleEntity(entity=topic, subscription=subscription)
