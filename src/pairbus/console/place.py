"""Which messages a page or a form is about, and how its address says that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from pairbus.broker import Address, Part
from pairbus.server.errors import BadRequestError

_PARTS: Final = {"": Part.MAIN, "dead": Part.DEAD_LETTER, "transfer": Part.TRANSFER_DEAD_LETTER}
_NAMES: Final = {part: name for name, part in _PARTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A queue, a topic or a subscription, or its dead letters."""

    entity: str
    subscription: str | None = None
    part: Part = Part.MAIN

    @property
    def address(self) -> Address:
        return Address.of(self.entity, self.subscription, self.part)

    @property
    def whole(self) -> Address:
        return Address.of(self.entity, self.subscription)

    @property
    def path(self) -> str:
        """The name of the entity, which is typed to confirm something."""
        return self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"

    @property
    def fields(self) -> dict[str, str]:
        given = {"entity": self.entity, "subscription": self.subscription or "", "part": _NAMES[self.part]}
        return {name: value for name, value in given.items() if value}

    def link(self, to: str = "entity", /, **more: object) -> str:
        return f"/console/{to}?{urlencode({**self.fields, **more}, errors='replace')}"

    def at(self, part: Part) -> Place:
        return Place(entity=self.entity, subscription=self.subscription, part=part)


def place_of(fields: Mapping[str, str]) -> Place:
    """The place that a query or a form names; raises ``BadRequestError``."""
    entity, part = fields.get("entity", ""), fields.get("part", "")
    if not entity or part not in _PARTS:
        raise BadRequestError("the address names no entity")
    return Place(entity=entity, subscription=fields.get("subscription") or None, part=_PARTS[part])


def place_at(path: str, address: Address) -> Place:
    """The place of an entity by its path, as it was spelled when it was made."""
    if address.subscription is None:
        return Place(entity=path)
    topic, _, subscription = path.rpartition("/Subscriptions/")
    return Place(entity=topic, subscription=subscription)
