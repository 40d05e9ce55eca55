"""Elements in a fixed order, each with a kind and the name of the value that it holds: read and written alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from xml.etree.ElementTree import Element as XmlElement

from pairbus.dialect.atom.errors import AtomError
from pairbus.dialect.atom.names import NIL, in_connect

Values: TypeAlias = Mapping[str, Any]
"""What a description says, by the names of its table."""


class Kind(Protocol):
    """How a value is written as an element."""

    def write(self, name: str, value: Any) -> XmlElement | None:
        """``None`` if the element is left away."""

    def read(self, element: XmlElement) -> Any:
        """Raises ``AtomError``."""


@dataclass(frozen=True, slots=True)
class Element:
    """One row of a table."""

    name: str
    kind: Kind
    attribute: str
    read_only: bool = False
    """The service says it; a request may repeat it, and it means nothing then."""


@dataclass(frozen=True, slots=True)
class Table:
    """What a description is made of, in the order in which it is written."""

    name: str
    elements: tuple[Element, ...]

    def write(self, values: Values, name: str | None = None) -> XmlElement:
        """An element with those of the values that are given."""
        root = XmlElement(name or self.name)
        for element in self.elements:
            if element.attribute in values:
                written = element.kind.write(element.name, values[element.attribute])
                if written is not None:
                    root.append(written)
        return root

    def read(self, root: XmlElement, *, read_only: bool = False) -> dict[str, Any]:
        """The values that are there, in any order; raises ``AtomError``. What is not in the table is passed over."""
        rows = {in_connect(element.name): element for element in self.elements if read_only or not element.read_only}
        values: dict[str, Any] = {}
        for found in root:
            row = rows.get(found.tag)
            if row is None or found.get(NIL) == "true":
                continue
            if row.attribute in values:
                raise AtomError("is there twice", row.name)
            values[row.attribute] = row.kind.read(found)
        return values
