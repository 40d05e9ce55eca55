"""Parsing of untrusted XML documents, and writing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element, SubElement

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser


class AtomError(ValueError):
    """An invalid document or value; ``element`` is its element, if that is known."""

    def __init__(self, reason: str, element: str | None = None) -> None:
        super().__init__(reason if element is None else f"{element}: {reason}")
        self.element = element


ATOM: Final = "http://www.w3.org/2005/Atom"
CONNECT: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

TYPE: Final = f"{{{INSTANCE}}}type"
NIL: Final = f"{{{INSTANCE}}}nil"


def in_atom(name: str) -> str:
    return f"{{{ATOM}}}{name}"


def in_connect(name: str) -> str:
    return f"{{{CONNECT}}}{name}"


def in_counts(name: str) -> str:
    return f"{{{COUNTS}}}{name}"


def local(name: str) -> str:
    """Return a name without its namespace, from ``{uri}name`` or ``prefix:name``."""
    return name.rpartition("}")[2].rpartition(":")[2]


MAX_DEPTH: Final = 32
MAX_ELEMENTS: Final = 100_000
"""Enough for a page of a few hundred entries."""

MAX_REQUEST_ELEMENTS: Final = 10_000
"""The same for a description: reading it keeps the other requests waiting."""

MAX_NAME: Final = 1_000
"""Maximum length of a name. It includes its namespace: one of half a megabyte would be copied for each element."""

MAX_ATTRIBUTES: Final = 100
"""Maximum number of attributes of an element."""

MAX_NAMESPACES: Final = 10_000
"""Maximum number of namespace declarations in a document: each entry of a page has a few."""

_DECLARATION: Final = b'<?xml version="1.0" encoding="utf-8"?>'
_UNSPEAKABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML cannot represent, not even escaped."""


class _Builder(ET.TreeBuilder):
    """Stops as soon as a document is unreasonably deep or long."""

    def __init__(self, max_elements: int) -> None:
        super().__init__()
        self._max_elements = max_elements
        self._depth = 0
        self._elements = 0
        self._namespaces = 0

    def start_ns(self, prefix: str, uri: str, /) -> None:
        self._namespaces += 1
        if self._namespaces > MAX_NAMESPACES or len(prefix) + len(uri) > MAX_NAME:
            raise AtomError("the document has too many namespaces, or one with a long name")

    def start(self, tag: str, attrs: Mapping[Any, Any], /) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH or self._elements > self._max_elements:
            raise AtomError("the document has too many elements, or they are nested too deeply")
        if len(attrs) > MAX_ATTRIBUTES or len(tag) > MAX_NAME:
            raise AtomError("an element has too many attributes, or a long name")
        return super().start(tag, dict(attrs))

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def read(document: bytes, max_elements: int = MAX_ELEMENTS) -> Element:
    """Return the root of a document; raises ``AtomError``. Document types and entities are rejected."""
    parser = DefusedXMLParser(target=_Builder(max_elements), forbid_dtd=True)
    try:
        parser.feed(document)
        root = parser.close()
    except AtomError:
        raise
    except DefusedXmlException:
        raise AtomError("the document has a document type or entities, which are not allowed") from None
    except (ET.ParseError, LookupError, ValueError) as error:  # an unknown encoding raises LookupError
        raise AtomError(f"not an XML document: {error}") from error
    if not isinstance(root, Element):
        raise AtomError("not an XML document: it has no elements")
    return root


def write(root: Element) -> bytes:
    text: bytes = ET.tostring(root, encoding="utf-8")
    # A parser would convert a bare carriage return into a line feed.
    return _DECLARATION + text.removeprefix(b"<?xml version='1.0' encoding='utf-8'?>\n").replace(b"\r", b"&#13;")


def speakable(text: str) -> str:
    """Return the text with replacement characters for characters that XML cannot represent."""
    return _UNSPEAKABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def child(parent: Element, name: str, text: str | None = None, **attributes: str) -> Element:
    """Append an element."""
    element = SubElement(parent, name, {key: speakable(value) for key, value in attributes.items()})
    if text is not None:
        element.text = speakable(text)
    return element


def text_of(element: Element) -> str:
    """Return the text of an element that contains only text."""
    return element.text or ""
