"""What a side buffer needs of the namespace that it stands beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from pairbus.broker import Namespace
from pairbus.store import StoreError, StoreFailedError, StoreFullError

PASSING: Final = (StoreFullError, StoreFailedError)
"""What may be over in a while. Everything else is told whoever has sent."""


class Store(Protocol):
    """The namespace, its clock, and what its store knows of the buffer."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def namespace(self) -> Namespace: ...

    def now_ms(self) -> int: ...

    def when_durable(self, done: Callable[[StoreError | None], object]) -> None: ...

    def probe(self, identity: bytes, done: Callable[[StoreError | None], object]) -> None:
        """Have someone told whether the store can be written; nothing is taken back if it cannot."""

    def merged(self, identity: bytes) -> Mapping[str, int]:
        """Up to where what lay in a buffer is in the store, by entity."""

    def put_merged(self, identity: bytes, entity: str, position: int) -> None:
        """Note it in the commit that takes the messages in."""
