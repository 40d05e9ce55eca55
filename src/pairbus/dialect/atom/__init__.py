"""The management API's documents: descriptions of entities in Atom entries and feeds."""

from __future__ import annotations

from pairbus.dialect.atom.duration import NEVER, format_duration, parse_duration
from pairbus.dialect.atom.envelope import (
    ENTRY_TYPE,
    ERROR_TYPE,
    FEED_TYPE,
    Entry,
    ErrorBody,
    Feed,
    parse_entry,
    parse_error,
    parse_feed,
    parse_request,
    write_entry,
    write_error,
    write_feed,
)
from pairbus.dialect.atom.errors import AtomError
from pairbus.dialect.atom.instant import Zoneless, format_instant, parse_instant
from pairbus.dialect.atom.schema import AUTHORIZATION_RULE, NAMESPACE, QUEUE, RULE, SUBSCRIPTION, TOPIC
from pairbus.dialect.atom.table import Element, Table, Values
from pairbus.dialect.atom.values import TypedValue, ValueType

__all__ = [
    "AUTHORIZATION_RULE",
    "ENTRY_TYPE",
    "ERROR_TYPE",
    "FEED_TYPE",
    "NAMESPACE",
    "NEVER",
    "QUEUE",
    "RULE",
    "SUBSCRIPTION",
    "TOPIC",
    "AtomError",
    "Element",
    "Entry",
    "ErrorBody",
    "Feed",
    "Table",
    "TypedValue",
    "ValueType",
    "Values",
    "Zoneless",
    "format_duration",
    "format_instant",
    "parse_duration",
    "parse_entry",
    "parse_error",
    "parse_feed",
    "parse_instant",
    "parse_request",
    "write_entry",
    "write_error",
    "write_feed",
]
