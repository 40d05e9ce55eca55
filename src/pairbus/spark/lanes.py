"""The ways to entities that stay open between tasks: each takes longer to open than a batch takes to send."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from pairbus.client.factory import MessagingFactory
from pairbus.client.lane import Lane, Opener

_MOST: Final = 256
"""How many stay open; a connection has room for some thousand."""


class Lanes:
    """The lanes of one factory that nobody uses at the moment."""

    def __init__(self, factory: Opener, most: int = _MOST) -> None:
        self._factory = factory
        self._most = most
        self._idle: OrderedDict[str, Lane] = OrderedDict()
        """The one that was used last at the end."""

    def take(self, path: str) -> Lane:
        """A lane for one user alone, until it is given back."""
        return self._idle.pop(path.lower(), None) or Lane(self._factory, path)

    async def give_back(self, lane: Lane) -> None:
        key = lane.path.lower()
        spare = self._idle.pop(key, None)  # two may have been in use at once
        self._idle[key] = lane
        if spare is None and len(self._idle) > self._most:
            _, spare = self._idle.popitem(last=False)
        if spare is not None:
            await spare.close()


_LANES: Final[dict[MessagingFactory, Lanes]] = {}


def lanes_of(factory: MessagingFactory) -> Lanes:
    """The lanes of a factory that is kept for the whole process; for use on the loop."""
    for closed in [one for one in _LANES if one.is_closed]:
        del _LANES[closed]
    return _LANES.setdefault(factory, Lanes(factory))
