"""Addresses on the wire as the broker's addresses."""

from __future__ import annotations

from typing import Final

from pairbus.broker import Address, Part
from pairbus.dialect.entity_path import EntityPath, SubQueue, parse_entity_path

_PARTS: Final = {
    None: Part.MAIN,
    SubQueue.DEAD_LETTER: Part.DEAD_LETTER,
    SubQueue.TRANSFER_DEAD_LETTER: Part.TRANSFER_DEAD_LETTER,
}


def address_of(path: EntityPath) -> Address:
    return Address.of(path.entity, path.subscription, _PARTS[path.sub_queue])


def parse_address(text: str) -> Address | None:
    """The entity that a path means, or ``None``: the namespace itself, or nothing that could be an entity."""
    path = parse_entity_path(text)
    return None if path is None else address_of(path)
