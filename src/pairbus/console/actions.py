"""What can be done from a page: each does it, and says what was done and where to look next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from pairbus.broker import Part
from pairbus.console.place import Place, place_of
from pairbus.console.purge import purge
from pairbus.console.resubmission import destination_of, resubmit, resubmit_all
from pairbus.console.visit import Visit
from pairbus.console.wording import number
from pairbus.server.errors import BadRequestError


class Done(NamedTuple):
    """What was done, and the address of the page that shows it."""

    told: str
    following: str


Act: TypeAlias = Callable[[Visit], Awaitable[Done]]


async def purge_place(visit: Visit) -> Done:
    place = place_of(visit.form)
    _check_confirmation(visit, place)
    visit.host.check_busy("purge", place.address)
    count = await purge(visit.host, place.address)
    return Done(f"{_messages(count)} removed from {_name(place)}.", place.link())


async def resubmit_place(visit: Visit) -> Done:
    """One dead letter, or all of them where none is named."""
    place = place_of(visit.form)
    if place.part is Part.MAIN:
        raise BadRequestError("only dead letters are sent again")
    destination = destination_of(place.address)
    visit.host.check_busy("send", destination)
    text = visit.form.get("sequence", "")
    if not text:
        count = await resubmit_all(visit.host, place.address)
        return Done(f"{_messages(count)} sent again to {destination}.", place.link())
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise BadRequestError("the form names no message")
    await resubmit(visit.host, place.address, int(text))
    return Done(f"Message {text} was sent again to {destination}.", place.link())


ACTIONS: Final[Mapping[str, Act]] = {"/console/purge": purge_place, "/console/resubmit": resubmit_place}


def _check_confirmation(visit: Visit, place: Place) -> None:
    if visit.form.get("confirmation", "").strip() != place.path:
        raise BadRequestError(f"nothing was removed: what was typed is not '{place.path}'")


def _name(place: Place) -> str:
    return place.path if place.part is Part.MAIN else f"the dead letters of {place.path}"


def _messages(count: int) -> str:
    return "One message was" if count == 1 else f"{number(count)} messages were"
