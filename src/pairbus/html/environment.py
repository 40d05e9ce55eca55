"""Jinja2 environments that escape every value."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

_INVALID: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that HTML does not allow: control characters, and halves of surrogate pairs."""

_BREAKS: Final = re.compile(r"([/._-])(?=\w)")


@cache
def environment(package: str) -> Environment:
    """Return the environment with the templates of a package and the shared ones; templates are compiled once."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("pairbus.html")]),
        autoescape=True,
        auto_reload=False,
        finalize=_valid,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    found.filters["breakable"] = breakable
    found.globals["stylesheet"] = stylesheet
    return found


def compile_templates(templates: Environment) -> None:
    """Compile all templates of an environment, so that the first pages do not have to."""
    for name in templates.list_templates():
        templates.get_template(name)


def breakable(text: str) -> Markup:
    """Escape a text, and allow line breaks after the characters that separate the parts of a name."""
    return Markup(_BREAKS.sub(r"\1<wbr>", str(escape(_valid(text)))))  # noqa: S704 (the text is escaped)


@cache
def stylesheet() -> Markup:
    """Return the shared style sheet."""
    return Markup((files("pairbus.html") / "static" / "base.css").read_text(encoding="utf-8"))  # noqa: S704


def _valid(value: object) -> object:
    """Replace the characters of a value that HTML does not allow by visible ones."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    return _INVALID.sub(_visible, text) if _INVALID.search(text) else text


def _visible(found: re.Match[str]) -> str:
    """Return the Unicode picture of a control character, or a replacement character if it has none."""
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"
