"""Tables of elements in a fixed order, each with a kind and the name of its value, for parsing and writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias
from xml.etree.ElementTree import Element as XmlElement

from pairbus.dialect.atom.document import COUNTS as COUNTS_NAMESPACE
from pairbus.dialect.atom.document import (
    NIL,
    SCHEMA,
    TYPE,
    AtomError,
    child,
    in_connect,
    in_counts,
    local,
    speakable,
    text_of,
)
from pairbus.dialect.atom.values import (
    TypedValue,
    ValueType,
    format_boolean,
    format_duration,
    format_instant,
    format_value,
    parse_boolean,
    parse_duration,
    parse_instant,
    parse_integer,
    parse_value,
)

Values: TypeAlias = Mapping[str, Any]
"""The values of a description, by the names of its table."""


class ElementKind(Protocol):
    """The conversion between a value and an element."""

    def write(self, name: str, value: Any) -> XmlElement | None:
        """Return the element, or ``None`` if it is omitted."""

    def read(self, element: XmlElement) -> Any:
        """Return the value of an element. Raises ``AtomError``."""


@dataclass(frozen=True, slots=True)
class Element:
    """One row of a table."""

    name: str
    kind: ElementKind
    attribute: str
    read_only: bool = False
    """True if only the service sets it; a request may contain it, and it is ignored."""


@dataclass(frozen=True, slots=True)
class Table:
    """The elements of a description, in the order in which they are written."""

    name: str
    elements: tuple[Element, ...]

    def write(self, values: Values, name: str | None = None) -> XmlElement:
        """Return an element with the values that are set."""
        root = XmlElement(name or self.name)
        for element in self.elements:
            if element.attribute in values:
                written = element.kind.write(element.name, values[element.attribute])
                if written is not None:
                    root.append(written)
        return root

    def read(self, root: XmlElement, *, read_only: bool = False) -> dict[str, Any]:
        """Return the values of the children, in any order; raises ``AtomError``. Unknown children are ignored."""
        rows = {in_connect(element.name): element for element in self.elements if read_only or not element.read_only}
        values: dict[str, Any] = {}
        for found in root:
            row = rows.get(found.tag)
            if row is None or found.get(NIL) == "true":
                continue
            if row.attribute in values:
                raise AtomError("occurs twice", row.name)
            values[row.attribute] = row.kind.read(found)
        return values


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as text."""

    format: Callable[[Any], str]
    parse: Callable[[str], Any]
    strip: bool = True
    writes_none: bool = False

    def write(self, name: str, value: Any) -> XmlElement | None:
        if value is None and not self.writes_none:
            return None
        element = XmlElement(name)
        element.text = speakable(self.format(value))
        return element

    def read(self, element: XmlElement) -> Any:
        if len(element):
            raise AtomError("has elements where a text should be", local(element.tag))
        text = text_of(element)
        try:
            return self.parse(text.strip() if self.strip else text)
        except ValueError as error:
            raise AtomError(str(error), local(element.tag)) from None


def one_of(*choices: str) -> Scalar:
    """Return a kind for a word from a closed list."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text[:64]!r} is not one of {', '.join(choices)}")
        return text

    return Scalar(str, parse)


TEXT: Final = Scalar(str, str, strip=False)
INTEGER: Final = Scalar(str, parse_integer)
BOOLEAN: Final = Scalar(format_boolean, parse_boolean)
DURATION: Final = Scalar(format_duration, parse_duration, writes_none=True)
"""Milliseconds; ``None`` means never."""

INSTANT: Final = Scalar(format_instant, parse_instant)
"""Milliseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class Nested:
    """A description within a description."""

    table: Table

    def write(self, name: str, value: Values | None) -> XmlElement | None:
        return None if value is None else self.table.write(value, name)

    def read(self, element: XmlElement) -> dict[str, Any]:
        return self.table.read(element)


@dataclass(frozen=True, slots=True)
class ListOf:
    """Elements of one name; others are ignored."""

    name: str
    kind: Scalar | Nested
    type: str | None = None
    """The ``i:type`` of each element."""

    def write(self, name: str, value: Iterable[Any]) -> XmlElement:
        element = XmlElement(name)
        for item in value:
            written = self.kind.write(self.name, item)
            if written is not None:
                if self.type is not None:
                    written.set("i:type", self.type)
                element.append(written)
        return element

    def read(self, element: XmlElement) -> tuple[Any, ...]:
        return tuple(self.kind.read(found) for found in element.findall(in_connect(self.name)))


@dataclass(frozen=True, slots=True)
class Variant:
    """A description whose table is chosen by ``i:type``, which is its value ``type``."""

    tables: Mapping[str, Table]

    def write(self, name: str, value: Values) -> XmlElement:
        element = self.tables[value["type"]].write(value, name)
        element.set("i:type", value["type"])
        return element

    def read(self, element: XmlElement) -> dict[str, Any]:
        chosen = local(element.get(TYPE, ""))
        table = self.tables.get(chosen)
        if table is None:
            choices = ", ".join(self.tables)
            raise AtomError(f"its type must be one of {choices}, got {chosen[:64]!r}", local(element.tag))
        return {"type": chosen, **table.read(element)}


class Counts:
    """Message counts. The SDK for JavaScript finds them by the prefix that their parent declares."""

    # name of the element: name of the value
    NAMES: Final = {
        "ActiveMessageCount": "active",
        "DeadLetterMessageCount": "dead_letter",
        "ScheduledMessageCount": "scheduled",
        "TransferMessageCount": "transfer",
        "TransferDeadLetterMessageCount": "transfer_dead_letter",
    }

    def write(self, name: str, value: Mapping[str, int]) -> XmlElement:
        element = XmlElement(name, {"xmlns:d2p1": COUNTS_NAMESPACE})
        for count_name, attribute in self.NAMES.items():
            child(element, f"d2p1:{count_name}", str(value.get(attribute, 0)))
        return element

    def read(self, element: XmlElement) -> dict[str, int]:
        names = {in_counts(name): attribute for name, attribute in self.NAMES.items()}
        return {names[found.tag]: INTEGER.read(found) for found in element if found.tag in names}


class Pairs:
    """Names with values of any type. The SDK for JavaScript expects prefixes of four characters before the types."""

    def write(self, name: str, value: Mapping[str, TypedValue]) -> XmlElement | None:
        if not value:
            return None  # the SDK for JavaScript fails on a list without pairs
        element = XmlElement(name)
        for key, typed in value.items():
            pair = child(element, "KeyValueOfstringanyType")
            child(pair, "Key", key)
            self._write_value(pair, typed)
        return element

    def _write_value(self, pair: XmlElement, typed: TypedValue) -> None:
        attributes = {"i:type": f"d6p1:{typed.type.value}", "xmlns:d6p1": SCHEMA}
        text = format_value(typed)
        if text is None:
            attributes["i:nil"] = "true"
        child(pair, "Value", text, **attributes)

    def read(self, element: XmlElement) -> dict[str, TypedValue]:
        pairs: dict[str, TypedValue] = {}
        for pair in element.findall(in_connect("KeyValueOfstringanyType")):
            key, value = pair.find(in_connect("Key")), pair.find(in_connect("Value"))
            if key is None or value is None:
                raise AtomError("a pair needs a Key and a Value", local(element.tag))
            name = text_of(key)
            if name in pairs:
                raise AtomError(f"{name[:64]!r} occurs twice", local(element.tag))
            pairs[name] = self._read_value(value, name)
        return pairs

    def _read_value(self, value: XmlElement, name: str) -> TypedValue:
        if value.get(NIL) == "true":
            return TypedValue(ValueType.STRING, None)
        try:
            return parse_value(local(value.get(TYPE, "string")), text_of(value))
        except ValueError as error:
            raise AtomError(f"of {name[:64]!r}: {error}", "Value") from None


COUNTS: Final = Counts()
PAIRS: Final = Pairs()
