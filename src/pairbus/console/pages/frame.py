"""What all pages have around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pairbus.console.markup import Markup, fill, join, render
from pairbus.console.visit import Visit

LINKS: Final = {
    "entities": ("/console", "Entities"),
    "pair": ("/console/pair", "Pair"),
    "server": ("/console/server", "Server"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The part of a page that is its own."""

    title: str
    content: Markup
    section: str = ""
    """Which of the links on top it belongs to."""

    events: str = ""
    """Where its live numbers come from."""

    live: dict[str, str] = field(default_factory=dict)


def framed(page: Page, visit: Visit) -> Markup:
    return render(
        "frame",
        title=page.title,
        namespace=visit.settings.name,
        links=join(_link(name, page.section) for name in LINKS),
        who=visit.session.who,
        rights="may change things" if visit.can_manage else "may look only",
        seal=visit.session.seal,
        events=page.events,
        notice=Markup() if visit.by_itself else _notice(visit.session.take_notice()),
        summary=page.live.get("summary", ""),
        content=page.content,
    )


def _link(name: str, current: str) -> Markup:
    address, label = LINKS[name]
    mark = Markup(' aria-current="page"') if name == current else Markup()
    return fill('<li><a href="$address"$mark>$label</a></li>', address=address, mark=mark, label=label)


def _notice(text: str) -> Markup:
    """What was done. It has the focus: whoever uses a keyboard or listens is told, and goes on from there."""
    return fill('<p class="notice" tabindex="-1" autofocus role="status">$text</p>', text=text) if text else Markup()


def cell(live: dict[str, str], key: str, kind: str = "td", label: str = "") -> Markup:
    """A number that is kept up to date. Its label stands beside it where a row is narrow, and has no heading above."""
    return fill(
        '<$kind class="number" data-live="$key"$label>$value</$kind>',
        kind=kind,
        key=key,
        label=fill(' data-label="$label"', label=label) if label else Markup(),
        value=live[key],
    )


def refusal_page(title: str, text: str) -> Page:
    return Page(title=title, content=render("refusal", title=title, text=text))
