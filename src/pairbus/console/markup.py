"""HTML from templates: every value is escaped, unless it is HTML already."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

_TEMPLATES: Final = files("pairbus.console") / "templates"


class Markup(str):
    """Text that is HTML, and is not escaped again."""

    __slots__ = ()


def fill(template: str, **values: object) -> Markup:
    """HTML with ``$name`` replaced by what is given."""
    return Markup(Template(template).substitute({name: escaped(value) for name, value in values.items()}))


def render(name: str, **values: object) -> Markup:
    """The same, with a template that is a file."""
    return fill(_template(name), **values)


def join(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def escaped(value: object) -> Markup:
    """A value as it can stand in a text or an attribute. What is no character for a page becomes a question mark."""
    if isinstance(value, Markup):
        return value
    text = str(value).encode("utf-8", "replace").decode()
    return Markup(escape("".join(_shown(character) for character in text)))


def _shown(character: str) -> str:
    """HTML has no control characters; there are pictures for them."""
    if character >= " " or character in "\n\t":
        return "\N{REPLACEMENT CHARACTER}" if "\x7f" <= character < "\xa0" else character
    return chr(0x2400 + ord(character))


@cache
def _template(name: str) -> str:
    return (_TEMPLATES / f"{name}.html").read_text(encoding="utf-8")
