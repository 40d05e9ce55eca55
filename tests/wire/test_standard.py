"""Every table of the wire against the tables of the standard."""

from __future__ import annotations

import inspect
import json
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pairbus.wire import (
    RECEIVER,
    SENDER,
    Condition,
    Configuration,
    Connection,
    Link,
    ReceiverSettleMode,
    SaslCode,
    SenderSettleMode,
    TerminusDurability,
    TerminusExpiryPolicy,
    decode,
    encode,
    sections,
)
from pairbus.wire.composites import LAYOUTS, AmqpType, Field, Layout, Provides
from pairbus.wire.decoder import READERS
from pairbus.wire.errors import DecodeError, InvalidFieldError
from pairbus.wire.frames import AMQP_HEADER, SASL_HEADER, FrameWriter
from pairbus.wire.performatives import Open
from pairbus.wire.states import Frame, SaslFrame
from pairbus.wire.types import Symbol, Timestamp, UByte, UInt, ULong, UShort
from tests.wire.make_standard import STANDARD, collect, render

FACTS: dict[str, Any] = json.loads(STANDARD.read_text())
TYPES: dict[str, Any] = FACTS["types"]
COMPOSITES = {name: facts for name, facts in TYPES.items() if facts["class"] == "composite"}
PRIMITIVES = {name: facts for name, facts in TYPES.items() if facts["class"] == "primitive"}

BY_NAME: dict[str, Layout] = {layout.name: layout for layout in LAYOUTS.values()}
FIELDS = [(name, index) for name, facts in COMPOSITES.items() for index in range(len(facts["fields"]))]

DECODED: dict[str, type] = {
    "boolean": bool,
    "ubyte": UByte,
    "ushort": UShort,
    "uint": UInt,
    "ulong": ULong,
    "timestamp": Timestamp,
    "uuid": UUID,
    "binary": bytes,
    "string": str,
    "symbol": Symbol,
    "map": dict,
}


def primitive_of(name: str) -> str:
    """Follow a restricted type to the primitive type that it restricts."""
    while TYPES[name]["class"] == "restricted":
        name = TYPES[name]["source"]
    return name


def providers_of(role: str) -> list[str]:
    return [name for name, facts in TYPES.items() if role in facts.get("provides", ())]


def layout_of(name: str) -> Layout:
    return BY_NAME[COMPOSITES[name]["descriptor"]["name"]]


def field_of(name: str, index: int) -> tuple[Field, dict[str, Any]]:
    return layout_of(name).fields[index], COMPOSITES[name]["fields"][index]


def restriction_of(facts: dict[str, Any]) -> dict[str, str]:
    """The values by name that the type of a field is restricted to."""
    choices: dict[str, str] = TYPES.get(facts["type"], {}).get("choices", {})
    return choices


def python_value(primitive: str, text: str) -> object:
    if primitive == "boolean":
        return {"true": True, "false": False}[text]
    return text if primitive == "symbol" else int(text)


def choices_of(name: str) -> dict[str, object]:
    """The values of a restricted type, by the names that an enumeration in Python gives them."""
    choices = TYPES[name]["choices"].items()
    return {choice.upper().replace("-", "_"): python_value(primitive_of(name), text) for choice, text in choices}


def members_of(enumeration: type[Enum]) -> dict[str, object]:
    return {member.name: member.value for member in enumeration}


def test_declared_composites_equal_standard() -> None:
    assert sorted(BY_NAME) == sorted(facts["descriptor"]["name"] for facts in COMPOSITES.values())
    assert len(BY_NAME) == len(LAYOUTS)


@pytest.mark.parametrize("name", COMPOSITES)
def test_composite_has_code_roles_and_fields_of_standard(name: str) -> None:
    facts = COMPOSITES[name]
    layout = layout_of(name)
    assert layout.code == int(facts["descriptor"]["code"], 16)
    assert layout.provides == set(facts.get("provides", ()))
    assert [field.name for field in layout.fields] == [field["name"] for field in facts["fields"]]
    assert layout.composite.__name__ == "".join(word.capitalize() for word in name.split("-"))


@pytest.mark.parametrize(("name", "index"), FIELDS)
def test_field_has_type_of_standard(name: str, index: int) -> None:
    field, facts = field_of(name, index)
    if facts["type"] in COMPOSITES:
        assert field.kind is layout_of(facts["type"]).composite
        return
    allowed = providers_of(facts["requires"]) if facts["type"] == "*" else [facts["type"]]
    primitives = {primitive_of(allowed_type) for allowed_type in allowed} & set(PRIMITIVES)
    if not primitives:  # composites, or what the standard leaves to others to define
        assert field.kind == Provides(facts["requires"])
        return
    assert isinstance(field.kind, AmqpType)
    assert field.kind.name == (primitives.pop() if len(primitives) == 1 else facts["requires"])
    assert field.kind.decoded == {DECODED[primitive_of(allowed_type)] for allowed_type in allowed}


@pytest.mark.parametrize(("name", "index"), FIELDS)
def test_field_attributes_equal_standard(name: str, index: int) -> None:
    field, facts = field_of(name, index)
    assert field.mandatory == facts.get("mandatory", False)
    assert field.multiple == facts.get("multiple", False)
    if "default" in facts:
        text = restriction_of(facts).get(facts["default"], facts["default"])
        default = python_value(primitive_of(facts["type"]), text)
        assert field.default == default
        assert isinstance(field.default, type(default))
    else:
        assert field.default == (() if field.multiple and not field.mandatory else None)


@pytest.mark.parametrize(("name", "index"), FIELDS)
def test_field_choices_equal_standard(name: str, index: int) -> None:
    field, facts = field_of(name, index)
    made = field.kind.make if isinstance(field.kind, AmqpType) else None
    enumeration = made if isinstance(made, type) and issubclass(made, Enum) else None
    if restriction_of(facts) and facts["type"] != "role":  # a role is a bool, which has its two choices by itself
        assert enumeration is not None
        assert members_of(enumeration) == choices_of(facts["type"])
    else:
        assert enumeration is None


@pytest.mark.parametrize(
    ("enumeration", "name"),
    [
        (SenderSettleMode, "sender-settle-mode"),
        (ReceiverSettleMode, "receiver-settle-mode"),
        (SaslCode, "sasl-code"),
        (TerminusDurability, "terminus-durability"),
        (TerminusExpiryPolicy, "terminus-expiry-policy"),
    ],
)
def test_enumeration_equals_standard(enumeration: type[Enum], name: str) -> None:
    assert members_of(enumeration) == choices_of(name)


def test_roles_equal_standard() -> None:
    assert choices_of("role") == {"SENDER": SENDER, "RECEIVER": RECEIVER}


def test_error_conditions_equal_standard() -> None:
    conditions = [value for name in providers_of("error-condition") for value in TYPES[name]["choices"].values()]
    assert sorted(Condition) == sorted(conditions)


def test_sections_equal_standard() -> None:
    described = {name: TYPES[name]["descriptor"] for name in providers_of("section")}
    codes = {descriptor["name"]: int(descriptor["code"], 16) for descriptor in described.values()}
    assert codes == sections.SECTION_CODES
    for name, descriptor in described.items():
        assert getattr(sections, name.upper().replace("-", "_")) == int(descriptor["code"], 16)


@pytest.mark.parametrize(("frames", "role", "prefix"), [(Frame, "frame", ""), (SaslFrame, "sasl-frame", "sasl-")])
def test_frames_equal_standard(frames: type[Enum], role: str, prefix: str) -> None:
    expected = {name: int(TYPES[name]["descriptor"]["code"], 16) for name in providers_of(role)}
    named = {prefix + member.name.lower(): member.value for member in frames}
    assert {name: code for name, code in named.items() if name not in {"header", "empty"}} == expected


def test_readers_equal_encodings_of_standard() -> None:
    codes = {int(encoding["code"], 16) for facts in PRIMITIVES.values() for encoding in facts["encodings"]}
    unknown = READERS[0xFF]
    assert len(READERS) == 256
    assert {code for code, reader in enumerate(READERS) if reader is not unknown} == codes | {0x00}
    for code in set(range(1, 256)) - codes:
        with pytest.raises(DecodeError, match=f"0x{code:02x} is not a format code"):
            decode(bytes((code,)) + bytes(16))


def test_max_frame_size_below_standard_minimum_is_rejected() -> None:
    least = int(FACTS["definitions"]["MIN-MAX-FRAME-SIZE"])
    assert FrameWriter().max_frame_size == least
    assert Configuration(container_id="c", max_frame_size=least).max_frame_size == least
    with pytest.raises(ValueError, match="max_frame_size"):
        Configuration(container_id="c", max_frame_size=least - 1)
    Connection(Configuration(container_id="c")).receive_data(opening_bytes(least))
    with pytest.raises(InvalidFieldError, match="max-frame-size"):
        Connection(Configuration(container_id="c")).receive_data(opening_bytes(least - 1))


def opening_bytes(max_frame_size: int) -> bytes:
    writer = FrameWriter()
    writer.write_header(AMQP_HEADER)
    writer.write(0, encode(Open(container_id="peer", max_frame_size=max_frame_size)))
    return writer.take()


def test_protocol_headers_and_message_format_equal_standard() -> None:
    definitions = {name: int(value) for name, value in FACTS["definitions"].items()}
    assert bytes(definitions[name] for name in ("MAJOR", "MINOR", "REVISION")) == AMQP_HEADER[5:]
    assert bytes(definitions[f"SASL-{name}"] for name in ("MAJOR", "MINOR", "REVISION")) == SASL_HEADER[5:]
    assert inspect.signature(Link.send).parameters["message_format"].default == definitions["MESSAGE-FORMAT"]


def test_tables_equal_generator_output() -> None:
    assert STANDARD.read_text() == render(FACTS) + "\n"


def test_table_generator_keeps_every_fact(tmp_path: Path) -> None:
    for part in ("types", "messaging", "transactions", "security"):
        (tmp_path / f"{part}.xml").write_text('<amqp xmlns="http://www.amqp.org/schema/amqp.xsd"/>')
    (tmp_path / "transport.xml").write_text(
        """<amqp xmlns="http://www.amqp.org/schema/amqp.xsd"><section>
        <type name="tea" class="composite" source="list" provides="drink, comfort">
          <descriptor name="tea:list" code="0x00000001:0x0000000a"/>
          <field name="leaf" type="*" requires="plant" mandatory="true"/>
          <field name="minutes" type="uint" default="3" mandatory="false"/>
          <field name="guests" type="symbol" multiple="true"/>
        </type>
        <type name="sort" class="restricted" source="symbol"><choice name="green" value="tea:green"/></type>
        <type name="sugar" class="primitive"><encoding name="one" code="0x4f" category="fixed" width="0"/></type>
        <definition name="CUPS" value="2"/>
        </section></amqp>"""
    )
    assert collect(tmp_path) == {
        "definitions": {"CUPS": "2"},
        "types": {
            "tea": {
                "class": "composite",
                "source": "list",
                "provides": ["drink", "comfort"],
                "descriptor": {"name": "tea:list", "code": "0x10000000a"},
                "fields": [
                    {"name": "leaf", "type": "*", "requires": "plant", "mandatory": True},
                    {"name": "minutes", "type": "uint", "default": "3"},
                    {"name": "guests", "type": "symbol", "multiple": True},
                ],
            },
            "sort": {"class": "restricted", "source": "symbol", "choices": {"green": "tea:green"}},
            "sugar": {
                "class": "primitive",
                "encodings": [{"name": "one", "code": "0x4f", "category": "fixed", "width": 0}],
            },
        },
    }
