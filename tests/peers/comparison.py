"""Comparing values together with their AMQP types."""

from __future__ import annotations

from typing import Any

from pairbus.wire import Array, Described


def with_types(value: Any) -> Any:
    """Name the type of a value, and of whatever is inside: ``UInt(1) == 1`` in Python, but not in AMQP."""
    match value:
        case list() | tuple():
            return type(value), [with_types(item) for item in value]
        case dict():
            return dict, [(with_types(key), with_types(item)) for key, item in value.items()]
        case Array():
            return Array, [with_types(item) for item in value.items]
        case Described():
            return Described, with_types(value.descriptor), with_types(value.value)
    return type(value), value
