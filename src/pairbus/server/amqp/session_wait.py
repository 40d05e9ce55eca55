"""A link that waits for a session to come free."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pairbus.broker import Address, SessionGrant
from pairbus.server.amqp.node import Need, Node
from pairbus.server.amqp.peer import Peer
from pairbus.server.dispatcher import SessionWaiter
from pairbus.server.errors import OperationTimeoutError, refusal_of
from pairbus.wire import Link


class SessionWait(Node, SessionWaiter):
    """Holds back the answer to an attach until there is a session, or no time left."""

    kind = "session-wait"

    def __init__(
        self,
        peer: Peer,
        link: Link,
        path: str,
        needs: tuple[Need, ...],
        address: Address,
        timeout_ms: int,
        granted: Callable[[SessionGrant], None],
        *,
        session_expires: bool,
    ) -> None:
        Node.__init__(self, link, path, needs)
        self.address = address
        self.session_expires = session_expires
        self._peer = peer
        self._granted = granted
        self._timer = peer.host.loop.call_later(timeout_ms / 1_000, peer.guard, self._time_out)
        peer.dispatcher.count(address)
        peer.dispatcher.add_waiter(self)

    def grant(self, grant: SessionGrant) -> None:
        self._finish()
        self._peer.attempt(self.link, partial(self._granted, grant))

    def refuse(self, error: Exception) -> None:
        self._finish()
        self._peer.guard(partial(self.link.refuse, refusal_of(error).error))
        self._peer.flush()

    def on_detached(self) -> None:
        self._finish()

    def _time_out(self) -> None:
        self.refuse(OperationTimeoutError(f"no session of '{self.address}' came free in the time given"))

    def _finish(self) -> None:
        if not self._timer.cancelled():
            self._timer.cancel()
            self._peer.dispatcher.remove_waiter(self)
            self._peer.dispatcher.discount(self.address)
