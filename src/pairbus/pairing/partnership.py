"""Two factories that are of use only together."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.client.factory import FactoryState, MessagingFactory

_log = logging.getLogger(__name__)

PATIENCE_S: Final = 5.0
"""How long one of them may be closed before the other one has to be."""


async def share_fate(first: MessagingFactory, second: MessagingFactory) -> None:
    """Wait until one of them has ended; the other one is faulted if it does not end soon after."""
    ends = (first.ended(), second.ended())
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(ends, timeout=PATIENCE_S)
    for factory, partner in ((first, second), (second, first)):
        if factory.state is FactoryState.OPEN:
            _log.warning("%s is faulted, because its partner %s is %s", factory, partner, partner.state.value)
            factory.fault(
                MessagingError(
                    f"the other namespace of its pair, {partner.endpoint}, was {partner.state.value} "
                    f"more than {PATIENCE_S:g} s before"
                )
            )
