"""One message with its body."""

from __future__ import annotations

from collections.abc import Sequence

from pairbus.broker import MessageNotFoundError, Part
from pairbus.console.markup import Markup, fill, join, render
from pairbus.console.message import SHOWN_BYTES, ShownMessage, View, as_json, best_view, body_text, show
from pairbus.console.pages.frame import Page
from pairbus.console.pages.sealed_form import sealed_form
from pairbus.console.place import Place, place_of
from pairbus.console.visit import Visit
from pairbus.console.wording import number, size


def message_page(visit: Visit) -> Page:
    """Raises ``BrokerError`` or ``BadRequestError``."""
    place, sequence = place_of(visit.query), visit.number("sequence")
    message = _find(visit, place, sequence)
    view = _view(visit, message.body)
    return Page(
        title=f"Message {number(sequence)} of {place.path}",
        section="entities",
        content=render(
            "message",
            path=place.path,
            back=place.link(),
            sequence=number(sequence),
            facts=_list(message.facts),
            properties=_properties(message) if message.properties else Markup("<p>There are none.</p>"),
            views=_views(place, message, view),
            kind=message.body_kind,
            size=size(len(message.body)),
            cut=f", of which the first {size(SHOWN_BYTES)} are shown" if len(message.body) > SHOWN_BYTES else "",
            body=body_text(message.body, view),
            action=_action(visit, place, sequence),
        ),
    )


def _find(visit: Visit, place: Place, sequence: int) -> ShownMessage:
    found = visit.host.namespace.peek(place.address, sequence, 1, visit.host.now_ms())
    if not found or found[0].record.sequence != sequence:
        raise MessageNotFoundError(
            f"'{place.address}' has no message {sequence}; it may have been received", place.path
        )
    return show(found[0])


def _view(visit: Visit, body: bytes) -> View:
    wanted = visit.query.get("view", "")
    return View(wanted) if wanted in set(View) else best_view(body)


def _views(place: Place, message: ShownMessage, view: View) -> Markup:
    possible = [each for each in View if each is not View.JSON or as_json(message.body) is not None]
    items = join(
        fill(
            '<li><a href="$link"$mark>$label</a></li>',
            link=place.link("message", sequence=message.sequence, view=each.value),
            mark=Markup(' aria-current="true"') if each is view else Markup(),
            label={View.TEXT: "Text", View.JSON: "JSON", View.HEX: "Bytes"}[each],
        )
        for each in possible
    )
    return fill('<nav aria-label="How the body is shown"><ul class="tabs">$items</ul></nav>', items=items)


def _properties(message: ShownMessage) -> Markup:
    typed = '$text <small class="type">$type</small>'
    return _list([(name, fill(typed, text=value.text, type=value.type)) for name, value in message.properties])


def _list(pairs: Sequence[tuple[str, str]]) -> Markup:
    items = join(fill("<div><dt>$name</dt><dd>$value</dd></div>", name=name, value=value) for name, value in pairs)
    return fill('<dl class="facts">$items</dl>', items=items)


def _action(visit: Visit, place: Place, sequence: int) -> Markup:
    if place.part is Part.MAIN or not visit.can_manage:
        return Markup()
    return sealed_form(
        visit,
        "/console/resubmit",
        {**place.fields, "sequence": sequence},
        Markup('<button type="submit">Resubmit</button>'),
    )
