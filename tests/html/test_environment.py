"""Templates: every value is escaped, and invalid characters are replaced."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markupsafe import Markup

from pairbus.html import breakable, environment

ENVIRONMENT = environment("pairbus.console")
PACKAGES = ("pairbus.html", "pairbus.console", "pairbus.jobs")
TEMPLATES = [
    path
    for package in PACKAGES
    for path in sorted((files(package) / "templates").iterdir(), key=lambda path: path.name)
    if path.name.endswith(".html")
]


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        self.tags.append(tag)


def render(source: str, **values: object) -> str:
    return ENVIRONMENT.from_string(source).render(**values)


@given(st.text() | st.characters(categories=["Cs", "Cc"]))
def test_any_value_is_rendered_as_text(value: str) -> None:
    text = render('<p title="{{ value }}">{{ value }}</p>', value=value)
    assert Tags(text).tags == ["p"]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)


@given(st.text() | st.characters(categories=["Cs", "Cc"]))
def test_breakable_text_has_no_tags_but_line_breaks(value: str) -> None:
    text = render("<p>{{ value | breakable }}</p>", value=value)
    assert set(Tags(text).tags) <= {"p", "wbr"}
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)


@given(st.text() | st.characters(categories=["Cs", "Cc"]))
def test_value_of_a_macro_is_escaped_once(value: str) -> None:
    macro = "{% macro cell(text) %}<b>{{ text }}</b>{% endmacro %}"
    assert render(macro + "<p>{{ cell(value) }}</p>", value=value) == render("<p><b>{{ value }}</b></p>", value=value)


def test_control_characters_are_shown_as_pictures() -> None:
    assert render("{{ value }}", value="a\x00\x1b\x7f\ud800\n\tz") == "a␀␛��\n\tz"


def test_markup_is_not_escaped_again() -> None:
    assert render("<b>{{ a }}{{ b }}</b>", a=Markup("<i>"), b="<i>") == "<b><i>&lt;i&gt;</b>"


def test_names_break_after_separators() -> None:
    assert breakable("a/b-<c>.d") == "a/<wbr>b-&lt;c&gt;.<wbr>d"


def test_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("{{ nothing }}")


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_template_compiles_and_does_not_turn_escaping_off(template: object) -> None:
    source = template.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    ENVIRONMENT.parse(source)
    assert not re.search(r"\|\s*safe\b|autoescape", source)


def test_templates_are_compiled_once() -> None:
    assert ENVIRONMENT is environment("pairbus.console")
    assert ENVIRONMENT.get_template("pair.html") is ENVIRONMENT.get_template("pair.html")
