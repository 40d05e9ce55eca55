"""One entity: its counts, its messages, and what can be done with them."""

from __future__ import annotations

from typing import Final

from pairbus.broker import Part, TopicDescription
from pairbus.console.markup import Markup, fill, join, render
from pairbus.console.message import ShownMessage, View, body_text, show
from pairbus.console.pages import subscriptions
from pairbus.console.pages.frame import Page, cell
from pairbus.console.pages.sealed_form import sealed_form
from pairbus.console.pages.settings import rules_table, settings_list
from pairbus.console.place import Place, place_of
from pairbus.console.resubmission import destination_of
from pairbus.console.visit import Visit
from pairbus.console.wording import moment, number, rate, size

_ON_A_PAGE: Final = 25
_LOOKED_AT_BYTES: Final = 4 * 1024 * 1024
_PREVIEW: Final = 80
_LETTERS: Final = (Part.DEAD_LETTER, Part.TRANSFER_DEAD_LETTER)


def entity_page(visit: Visit) -> Page:
    """Raises ``BrokerError`` or ``BadRequestError``."""
    place = place_of(visit.query)
    info = visit.host.namespace.entity(place.whole, visit.host.now_ms())
    live = live_values(visit)
    messages, following = _look(visit, place)
    is_topic = isinstance(info.description, TopicDescription)
    return Page(
        title=place.path,
        section="entities",
        events=place.link("events", page="entity"),
        live=live,
        content=render(
            "entity",
            path=place.path,
            status=info.description.status.value,
            created=moment(info.created_ms),
            cards=join(_card(live, key, label) for key, label in _cards(is_topic=is_topic)),
            subscriptions=subscriptions.table(visit, place, live) if is_topic else Markup(),
            rules=rules_table(visit, place),
            settings=settings_list(visit, info),
            tabs=_tabs(place, live, is_topic=is_topic),
            heading=_heading(place, is_topic=is_topic),
            table=_table(visit, place, messages),
            paging=_paging(place, visit.number("from"), following),
            actions=_actions(visit, place, has_messages=bool(messages), is_topic=is_topic),
        ),
    )


def live_values(visit: Visit) -> dict[str, str]:
    """Counts as they are at this moment, and rates of the last seconds."""
    place = place_of(visit.query)
    info = visit.host.namespace.entity(place.whole, visit.host.now_ms())
    # Names compare without regard to case, and the books have them as they were spelled first.
    path = _known_path(visit, place)
    dead = info.dead_letter_count + info.transfer_dead_letter_count
    values = subscriptions.live_values(visit, place) if isinstance(info.description, TopicDescription) else {}
    return values | {
        "active": number(info.active_count),
        "locked": number(info.locked_count),
        "deferred": number(info.deferred_count),
        "scheduled": number(info.scheduled_count),
        "dead": number(dead),
        "in": rate(visit.watch.rates.arriving(path)),
        "out": rate(visit.watch.rates.leaving(path)),
        "size": size(info.size_bytes),
        "tab:messages": number(info.active_count + info.scheduled_count),
        "tab:dead": number(info.dead_letter_count),
        "tab:transfer": number(info.transfer_dead_letter_count),
        "summary": f"{number(info.active_count)} messages wait in {place.path}, {number(dead)} are dead letters",
    }


def _known_path(visit: Visit, place: Place) -> str:
    entities = visit.watch.reading.census.entities
    if place.path in entities:
        return place.path
    return next((path for path, entity in entities.items() if entity.address == place.whole), place.path)


def _look(visit: Visit, place: Place) -> tuple[list[ShownMessage], int | None]:
    """The messages of one page, and where the next page begins."""
    found = visit.host.namespace.peek(
        place.address, visit.number("from"), _ON_A_PAGE + 1, visit.host.now_ms(), max_bytes=_LOOKED_AT_BYTES
    )
    if len(found) > _ON_A_PAGE:
        following = found[_ON_A_PAGE].record.sequence
    elif found and sum(len(each.body) for each in found) * 2 > _LOOKED_AT_BYTES:  # bytes may have ended the page
        following = found[-1].record.sequence + 1
    else:
        following = None
    return [show(delivery) for delivery in found[:_ON_A_PAGE]], following


def _cards(*, is_topic: bool) -> list[tuple[str, str]]:
    if is_topic:
        return [("scheduled", "Scheduled"), ("in", "In, a second"), ("size", "Size")]
    return [
        ("active", "Active"),
        ("locked", "of these locked"),
        ("deferred", "of these deferred"),
        ("scheduled", "Scheduled"),
        ("dead", "Dead letters"),
        ("in", "In, a second"),
        ("out", "Out, a second"),
        ("size", "Size"),
    ]


def _card(live: dict[str, str], key: str, label: str) -> Markup:
    return fill("<div><dt>$label</dt>$value</div>", label=label, value=cell(live, key, "dd"))


def _heading(place: Place, *, is_topic: bool) -> str:
    if is_topic:
        return "Scheduled messages"
    return {Part.MAIN: "Messages", Part.DEAD_LETTER: "Dead letters"}.get(place.part, "Failed transfers")


def _tabs(place: Place, live: dict[str, str], *, is_topic: bool) -> Markup:
    if is_topic:
        return Markup()
    tabs = (
        (Part.MAIN, "Messages", "tab:messages"),
        (Part.DEAD_LETTER, "Dead letters", "tab:dead"),
        (Part.TRANSFER_DEAD_LETTER, "Failed transfers", "tab:transfer"),
    )
    items = join(
        fill(
            '<li><a href="$link"$mark>$label ($count)</a></li>',
            link=place.at(part).link(),
            mark=Markup(' aria-current="true"') if part is place.part else Markup(),
            label=label,
            count=cell(live, key, "span"),
        )
        for part, label, key in tabs
    )
    return fill('<nav aria-label="Parts of the entity"><ul class="tabs">$items</ul></nav>', items=items)


def _table(visit: Visit, place: Place, messages: list[ShownMessage]) -> Markup:
    if not messages:
        return Markup("<p>There are none.</p>")
    is_letters = place.part in _LETTERS
    return render(
        "messages",
        caption=f"{_heading(place, is_topic=False)} of {place.path}",
        reason=Markup('<th scope="col">Reason</th>') if is_letters else Markup(),
        action=Markup('<th scope="col">Action</th>') if is_letters and visit.can_manage else Markup(),
        rows=join(_row(visit, place, message) for message in messages),
    )


def _row(visit: Visit, place: Place, message: ShownMessage) -> Markup:
    is_letters = place.part in _LETTERS
    return render(
        "message_row",
        link=place.link("message", sequence=message.sequence),
        sequence=message.sequence,
        id=message.message_id,
        enqueued=message.enqueued,
        state=message.state,
        deliveries=message.deliveries,
        size=message.size,
        preview=body_text(message.body[: _PREVIEW * 4], View.TEXT)[:_PREVIEW],
        reason=_reason(message) if is_letters else Markup(),
        action=_resubmit_cell(visit, place, message.sequence) if is_letters and visit.can_manage else Markup(),
    )


def _reason(message: ShownMessage) -> Markup:
    return fill(
        "<td>$reason<br><small>$description</small></td>", reason=message.reason, description=message.description
    )


def _resubmit_cell(visit: Visit, place: Place, sequence: int) -> Markup:
    button = fill('<button type="submit" aria-label="Resubmit message $number">Resubmit</button>', number=sequence)
    return fill(
        "<td>$form</td>", form=sealed_form(visit, "/console/resubmit", {**place.fields, "sequence": sequence}, button)
    )


def _paging(place: Place, start: int, following: int | None) -> Markup:
    links = []
    if start:
        links.append(fill('<a href="$link">First</a> ', link=place.link()))
    if following is not None:
        links.append(fill('<a href="$link">Next</a>', link=place.link("entity", **{"from": following})))
    return fill('<nav class="paging" aria-label="Pages">$links</nav>', links=join(links)) if links else Markup()


def _actions(visit: Visit, place: Place, *, has_messages: bool, is_topic: bool) -> Markup:
    if not visit.can_manage or is_topic or not has_messages:
        return Markup()
    return render(
        "actions",
        resubmit=_resubmit_all(visit, place) if place.part in _LETTERS else Markup(),
        purge=sealed_form(visit, "/console/purge", place.fields, render("purge", path=place.path)),
    )


def _resubmit_all(visit: Visit, place: Place) -> Markup:
    destination = destination_of(place.address)
    told = f"A copy of each goes to {destination}"
    if place.subscription is not None:
        told += ", and so to every subscription whose rules take it"
    button = fill('<p>$told.</p><button type="submit">Resubmit all</button>', told=told)
    return sealed_form(visit, "/console/resubmit", place.fields, button)
