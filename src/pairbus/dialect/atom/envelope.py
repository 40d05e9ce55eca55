"""Atom entries, feeds and errors, which carry the descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from xml.etree.ElementTree import Element as XmlElement

from pairbus.dialect.atom.document import (
    ATOM,
    CONNECT,
    INSTANCE,
    MAX_REQUEST_ELEMENTS,
    AtomError,
    child,
    in_atom,
    in_connect,
    read,
    text_of,
    write,
)
from pairbus.dialect.atom.table import Table, Values
from pairbus.dialect.atom.values import format_instant

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE: Final = "application/xml; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomEntry:
    """One description with its metadata."""

    table: Table
    values: Values
    title: str = ""
    id: str = ""
    """An absolute address. The SDK for JavaScript reads the names of entities from its path."""

    link: str = ""
    author: str | None = None
    published_ms: int | None = None
    updated_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomFeed:
    """A page of descriptions."""

    title: str = ""
    id: str = ""
    link: str = ""
    next_link: str | None = None
    updated_ms: int = 0
    entries: Sequence[AtomEntry] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The reason why a request was refused."""

    code: int
    detail: str


def write_entry(entry: AtomEntry) -> bytes:
    root = _entry(entry)
    root.set("xmlns", ATOM)
    return write(root)


def write_feed(feed: AtomFeed) -> bytes:
    root = XmlElement("feed", {"xmlns": ATOM})
    child(root, "title", feed.title, type="text")
    child(root, "id", feed.id)
    child(root, "updated", format_instant(feed.updated_ms))
    # The SDK for Python takes the second of exactly two links as the link to the next page.
    child(root, "link", rel="self", href=feed.link)
    if feed.next_link is not None:
        child(root, "link", rel="next", href=feed.next_link)
    root.extend(_entry(entry) for entry in feed.entries)
    return write(root)


def write_error(error: ErrorBody) -> bytes:
    root = XmlElement("Error")
    child(root, "Code", str(error.code))
    child(root, "Detail", error.detail)
    return write(root)


def _entry(entry: AtomEntry) -> XmlElement:
    root = XmlElement("entry")
    child(root, "id", entry.id)
    child(root, "title", entry.title, type="text")
    if entry.published_ms is not None:
        child(root, "published", format_instant(entry.published_ms))
    if entry.updated_ms is not None:
        child(root, "updated", format_instant(entry.updated_ms))
    if entry.author is not None:
        child(child(root, "author"), "name", entry.author)
    child(root, "link", rel="self", href=entry.link)
    description = entry.table.write(entry.values)
    # The prefix has to be i: the SDK for JavaScript reads the attribute by that name.
    description.attrib = {"xmlns": CONNECT, "xmlns:i": INSTANCE, **description.attrib}
    child(root, "content", type="application/xml").append(description)
    return root


def parse_request(document: bytes, *tables: Table) -> tuple[Table, dict[str, Any]]:
    """Return the description in the entry of a request, of one of these tables, without read-only elements."""
    root = read(document, MAX_REQUEST_ELEMENTS)
    if root.tag != in_atom("entry"):
        raise AtomError("the document is not an Atom entry")
    return _description(root, tables, read_only=False)


def parse_entry(document: bytes, *tables: Table) -> AtomEntry:
    """Parse an entry in a response of the service."""
    root = read(document)
    if root.tag != in_atom("entry"):
        raise AtomError("the document is not an Atom entry")
    return _parsed(root, tables)


def parse_feed(document: bytes, *tables: Table) -> AtomFeed:
    root = read(document)
    if root.tag != in_atom("feed"):
        raise AtomError("the document is not an Atom feed")
    return AtomFeed(
        title=_text(root, "title"),
        id=_text(root, "id"),
        link=_link(root, "self") or "",
        next_link=_link(root, "next"),
        entries=tuple(_parsed(entry, tables) for entry in root.findall(in_atom("entry"))),
    )


def parse_error(document: bytes) -> ErrorBody:
    root = read(document)
    code = root.findtext("Code") or ""
    if root.tag != "Error" or not (code.isascii() and code.isdigit() and len(code) <= 5):
        raise AtomError("the document is not an error")
    return ErrorBody(int(code), root.findtext("Detail") or "")


def _parsed(root: XmlElement, tables: Sequence[Table]) -> AtomEntry:
    table, values = _description(root, tables, read_only=True)
    return AtomEntry(
        table=table, values=values, title=_text(root, "title"), id=_text(root, "id"), link=_link(root, "self") or ""
    )


def _description(root: XmlElement, tables: Sequence[Table], *, read_only: bool) -> tuple[Table, dict[str, Any]]:
    content = root.find(in_atom("content"))
    if content is None:
        raise AtomError("the entry has no content")
    for table in tables:
        found = content.find(in_connect(table.name))
        if found is not None:
            return table, table.read(found, read_only=read_only)
    names = " or ".join(table.name for table in tables)
    raise AtomError(f"the content of the entry must be {names}")


def _text(root: XmlElement, name: str) -> str:
    found = root.find(in_atom(name))
    return "" if found is None else text_of(found)


def _link(root: XmlElement, relation: str) -> str | None:
    for link in root.findall(in_atom("link")):
        if link.get("rel") == relation:
            return link.get("href")
    return None
