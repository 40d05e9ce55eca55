"""Writes standard.json, the tables of the AMQP 1.0 standard: python tests/wire/make_standard.py FOLDER-WITH-ITS-XML."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

PARTS = ("types", "transport", "messaging", "transactions", "security")
STANDARD = Path(__file__).with_name("standard.json")

_NAMESPACE = "{http://www.amqp.org/schema/amqp.xsd}"
_WIDTH = 120


def collect(folder: Path) -> dict[str, Any]:
    """Collect the types and definitions of all parts of the standard."""
    types: dict[str, Any] = {}
    definitions: dict[str, str] = {}
    for part in PARTS:
        root = ET.parse(folder / f"{part}.xml").getroot()  # noqa: S314, the standard's own files, named by the caller
        for element in root.iter(f"{_NAMESPACE}type"):
            name = element.attrib["name"]
            if name in types:
                raise ValueError(f"the type {name} is defined twice")
            types[name] = _type(element)
        for element in root.iter(f"{_NAMESPACE}definition"):
            definitions[element.attrib["name"]] = element.attrib["value"]
    return {"definitions": definitions, "types": types}


def _type(element: ET.Element) -> dict[str, Any]:
    facts: dict[str, Any] = {"class": element.attrib["class"]}
    if "source" in element.attrib:
        facts["source"] = element.attrib["source"]
    if "provides" in element.attrib:
        facts["provides"] = [role.strip() for role in element.attrib["provides"].split(",")]
    for descriptor in element.findall(f"{_NAMESPACE}descriptor"):
        facts["descriptor"] = {"name": descriptor.attrib["name"], "code": _code(descriptor.attrib["code"])}
    encodings = [_encoding(encoding) for encoding in element.findall(f"{_NAMESPACE}encoding")]
    if encodings:
        facts["encodings"] = encodings
    choices = {choice.attrib["name"]: choice.attrib["value"] for choice in element.findall(f"{_NAMESPACE}choice")}
    if choices:
        facts["choices"] = choices
    if facts["class"] == "composite":
        facts["fields"] = [_field(field) for field in element.findall(f"{_NAMESPACE}field")]
    return facts


def _code(text: str) -> str:
    """Join the domain and the number of a descriptor, such as 0x00000000:0x00000010, to one code."""
    domain, _, number = text.partition(":")
    return f"0x{int(domain, 16) << 32 | int(number, 16):02x}"


def _encoding(element: ET.Element) -> dict[str, Any]:
    attributes = element.attrib
    name = {"name": attributes["name"]} if "name" in attributes else {}
    return {**name, "code": attributes["code"], "category": attributes["category"], "width": int(attributes["width"])}


def _field(element: ET.Element) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": element.attrib["name"], "type": element.attrib["type"]}
    for attribute in ("requires", "default"):
        if attribute in element.attrib:
            facts[attribute] = element.attrib[attribute]
    for attribute in ("mandatory", "multiple"):
        if element.attrib.get(attribute) == "true":
            facts[attribute] = True
    return facts


def render(value: Any, indent: int = 0, prefix: str = "") -> str:
    """Write JSON with everything that fits into a line on one line."""
    line = prefix + json.dumps(value)
    if indent + len(line) < _WIDTH:
        return " " * indent + line
    if isinstance(value, dict):
        members = [render(member, indent + 2, f"{json.dumps(key)}: ") for key, member in value.items()]
        opening, closing = "{}"
    else:
        members = [render(member, indent + 2) for member in value]
        opening, closing = "[]"
    margin = " " * indent
    return f"{margin}{prefix}{opening}\n" + ",\n".join(members) + f"\n{margin}{closing}"


if __name__ == "__main__":
    STANDARD.write_text(render(collect(Path(sys.argv[1]))) + "\n")
