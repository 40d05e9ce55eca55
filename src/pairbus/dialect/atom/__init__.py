"""The documents of the management API: descriptions of entities in Atom entries and feeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.dialect.atom.document import AtomError
from pairbus.dialect.atom.envelope import (
    ENTRY_TYPE,
    ERROR_TYPE,
    FEED_TYPE,
    AtomEntry,
    AtomFeed,
    ErrorBody,
    parse_entry,
    parse_error,
    parse_feed,
    parse_request,
    write_entry,
    write_error,
    write_feed,
)
from pairbus.dialect.atom.schema import AUTHORIZATION_RULE, NAMESPACE, QUEUE, RULE, SUBSCRIPTION, TOPIC
from pairbus.dialect.atom.table import Element, Table, Values
from pairbus.dialect.atom.values import (
    NEVER,
    TypedValue,
    ValueType,
    Zoneless,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)
from pairbus.renamed import renamed

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
    "AtomEntry",
    "AtomError",
    "AtomFeed",
    "Element",
    "ErrorBody",
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

if not TYPE_CHECKING:  # type checkers see the new names alone
    __getattr__ = renamed(
        __name__,
        {
            "Entry": "AtomEntry",
            "Feed": "AtomFeed",
        },
    )
