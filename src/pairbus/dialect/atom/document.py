"""XML documents: read without trust, and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element, SubElement

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from pairbus.dialect.atom.errors import AtomError

MAX_DEPTH: Final = 32
MAX_ELEMENTS: Final = 100_000
"""A page of a few hundred entries fits."""

_DECLARATION: Final = b'<?xml version="1.0" encoding="utf-8"?>'
_UNSPEAKABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What XML has no way to write, not even escaped."""


class _Builder(ET.TreeBuilder):
    """Gives up as soon as a document is deeper or longer than anything sensible."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._elements = 0

    def start(self, tag: str, attrs: Mapping[Any, Any], /) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH or self._elements > MAX_ELEMENTS:
            raise AtomError("the document has too many elements, or they are nested too deeply")
        return super().start(tag, dict(attrs))

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def read(document: bytes) -> Element:
    """The root of a document; raises ``AtomError``. Document types and entities are refused."""
    parser = DefusedXMLParser(target=_Builder(), forbid_dtd=True)
    try:
        parser.feed(document)
        root = parser.close()
    except AtomError:
        raise
    except DefusedXmlException:
        raise AtomError("the document has a document type or entities, which are not allowed") from None
    except (ET.ParseError, LookupError, ValueError) as error:  # an unknown encoding is a LookupError
        raise AtomError(f"this is no XML document: {error}") from error
    if not isinstance(root, Element):
        raise AtomError("this is no XML document: it has no elements")
    return root


def write(root: Element) -> bytes:
    text: bytes = ET.tostring(root, encoding="utf-8")
    # A reader would turn a bare carriage return into a line feed.
    return _DECLARATION + text.removeprefix(b"<?xml version='1.0' encoding='utf-8'?>\n").replace(b"\r", b"&#13;")


def speakable(text: str) -> str:
    """The text with a replacement character for what XML cannot say."""
    return _UNSPEAKABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def child(parent: Element, name: str, text: str | None = None, **attributes: str) -> Element:
    """Append an element."""
    element = SubElement(parent, name, {key: speakable(value) for key, value in attributes.items()})
    if text is not None:
        element.text = speakable(text)
    return element


def text_of(element: Element) -> str:
    """The text of an element that has nothing but text."""
    return element.text or ""
