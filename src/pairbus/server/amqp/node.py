"""What a link leads to, seen from the connection that carries it."""

from __future__ import annotations

from typing import TypeAlias

from pairbus.broker import Right
from pairbus.store import StoreError
from pairbus.wire import Delivery, Link

Need: TypeAlias = tuple[str, tuple[Right, ...]]
"""A path in lower case, and the claims of which one has to hold there; none where it is empty."""


class Node:
    """The server's end of a link. A node does only what its kind of link is for; the rest is passed over."""

    kind = ""
    """What the metrics call it."""

    def __init__(self, link: Link, path: str, needs: tuple[Need, ...] = ()) -> None:
        self.link = link
        self.path = path
        """The address in lower case."""
        self.needs = needs
        """What has to be allowed as long as the link is up."""

    def on_delivery(self, delivery: Delivery) -> None:
        """The peer sent a message."""

    def rescue(self, delivery: Delivery, error: StoreError) -> bool:  # noqa: ARG002
        """A message of the peer's could not be kept; whether it will be, elsewhere, and is confirmed then."""
        return False

    def on_credit(self) -> None:
        """The peer takes more messages, or wants the rest of its credit back."""

    def on_writable(self) -> None:
        """The connection takes more bytes again."""

    def settle(self, delivery: Delivery, state: object) -> object:  # noqa: ARG002
        """The peer told what becomes of a message that we sent; what to answer, or ``None`` to say nothing."""
        return None

    def on_detached(self) -> None:
        """The link is gone."""
