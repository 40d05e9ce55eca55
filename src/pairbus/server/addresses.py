"""Addresses on the wire as the broker's addresses."""

from __future__ import annotations

from typing import Final

from pairbus.broker import Address, Part
from pairbus.dialect.entity_path import EntityPath, SubQueue

_PARTS: Final = {
    None: Part.MAIN,
    SubQueue.DEAD_LETTER: Part.DEAD_LETTER,
    SubQueue.TRANSFER_DEAD_LETTER: Part.TRANSFER_DEAD_LETTER,
}


def address_of(path: EntityPath) -> Address:
    return Address.of(path.entity, path.subscription, _PARTS[path.sub_queue])
