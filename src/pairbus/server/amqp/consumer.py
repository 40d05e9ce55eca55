"""The server's end of a link that we send messages on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from pairbus.broker import Address, Disposition, SessionGrant, Settle, Verdict
from pairbus.broker import Delivery as Message
from pairbus.server.amqp.node import Need, Node
from pairbus.server.amqp.peer import Peer
from pairbus.server.amqp.verdicts import echo_of, verdict_of
from pairbus.server.dispatcher import SHARE, Receiver
from pairbus.server.errors import REFUSABLE, refusal_of
from pairbus.server.messages import delivered_payload
from pairbus.server.metering import ReceiveToll
from pairbus.store import StoreError
from pairbus.wire import RELEASED, Delivery, Link, MessageTooLargeError, Received, Rejected, TransactionalState

_TAG_BYTES: Final = 16
"""As long as a lock token: SDKs read the tag as a GUID in every receive mode."""
_MOST_UNSETTLED: Final = 10_000
"""What a receiver may leave unsettled; then the oldest, whose locks have long ended, are forgotten."""
_AT_ONCE_BYTES: Final = 1024 * 1024
"""How much is taken from the broker before it is seen whether the peer reads."""

_RELEASE: Final = Verdict(disposition=Disposition.RELEASE)


class Consumer(Node, Receiver):
    """Takes messages from the broker as the link has credit, and passes on what the receiver says of them."""

    kind = "receiver"

    def __init__(
        self,
        peer: Peer,
        link: Link,
        path: str,
        needs: tuple[Need, ...],
        address: Address,
        *,
        deletes: bool,
        session: SessionGrant | None = None,
    ) -> None:
        Node.__init__(self, link, path, needs)
        self.address = address
        self.session = session
        self._peer = peer
        self._deletes = deletes
        self._taken = 0
        """Messages that are ours for good and go out when that is on disk."""
        self._taken_bytes = 0
        self._usual_bytes = _AT_ONCE_BYTES // SHARE
        """How large a message is, going by the largest one of the last few."""
        self._unsettled: dict[Delivery, int] = {}
        """What the receiver has, and until when it is locked."""
        self.is_lost = False
        self._is_forgotten = False
        self._toll = None if peer.meter is None else ReceiveToll(peer.meter, address, peer.claims.who(path))
        self._was_served = False
        """Whether something was given of the credit that is there now."""
        peer.dispatcher.count(address)
        peer.dispatcher.add(self)

    # Messages out.

    def wants(self) -> bool:
        """Whether there is credit, nothing waits for the session's window, and the peer reads."""
        link = self.link
        if link.queued:
            self._peer.hold(self)
            return False
        return (
            link.can_send
            and link.credit > self._taken
            and self._taken_bytes < _AT_ONCE_BYTES
            and self._peer.is_writable
            and not self._peer.is_draining
        )

    def take(self, most: int) -> int:
        host = self._peer.host
        fitting = max(1, _AT_ONCE_BYTES // self._usual_bytes)
        try:
            messages = host.namespace.receive(
                self.address,
                min(most, self.link.credit - self._taken, fitting),
                host.now_ms(),
                delete=self._deletes,
                session_token=None if self.session is None else self.session.session_token,
            )
        except REFUSABLE as error:
            self.lose(error)
            return 0
        if not messages:
            return 0
        self._usual_bytes = max([len(message.body) for message in messages], default=0) or 1
        if self._deletes:
            self._send_when_gone(messages)
        else:
            self._send_all(messages)
        return len(messages)

    def _send_all(self, messages: Sequence[Message]) -> None:
        sizes: list[int] = []
        try:
            for message in messages:
                sizes.append(self._send(message))  # noqa: PERF401 (what was sent is counted, whatever comes then)
        except MessageTooLargeError as error:  # for this receiver; others may take it
            self._give_back(message.lock_token for message in messages[len(sizes) :])
            self.lose(error)
        self._count(messages, sizes)

    def _count(self, messages: Sequence[Message], sizes: Sequence[int]) -> None:
        """What was sent of them, which may be fewer."""
        if not sizes:
            return
        counters = self._peer.counters
        counters.messages_delivered += len(sizes)
        counters.bytes_delivered += sum(sizes)
        if self._toll is not None:
            self._toll.given(messages, sizes)

    def _send(self, message: Message) -> int:
        """Its size on the wire."""
        payload = delivered_payload(message, self.address)
        token = message.lock_token
        tag = message.record.sequence.to_bytes(_TAG_BYTES) if token is None else token
        delivery = self.link.send(payload, tag=tag, settled=token is None, beyond_credit=token is None)
        if token is not None:
            delivery.context = token
            self._unsettled[delivery] = message.locked_until_ms or 0
            if len(self._unsettled) > _MOST_UNSETTLED:
                self._drop_oldest()
        self._was_served = self.link.credit > 0
        self._peer.wrote(len(payload))
        return len(payload)

    def _drop_oldest(self) -> None:
        oldest, until_ms = next(iter(self._unsettled.items()))
        if self.session is None and until_ms < self._peer.host.now_ms():
            del self._unsettled[oldest]
            self.link.settle(oldest, RELEASED)

    def _send_when_gone(self, messages: Sequence[Message]) -> None:
        """Received and deleted means at most once: a message goes out when its removal is on disk, not before."""
        size = sum([len(message.body) for message in messages])
        self._taken += len(messages)
        self._taken_bytes += size

        def done(error: StoreError | None) -> None:
            self._taken -= len(messages)
            self._taken_bytes -= size
            if error is None and self.link.is_attached:
                self._count(messages, [*map(self._send, messages)])
            self.on_credit()

        self._peer.when_durable(done)

    def on_credit(self) -> None:
        if self.wants() and self.take(SHARE):
            self._peer.host.loop.call_soon(self._peer.guard, self.on_credit)  # others have their turn in between
        elif self.link.drain and not self._taken and self._peer.is_writable and self.link.is_attached:
            if self._toll is not None and self.link.credit and not self._was_served:
                self._toll.went_empty()
            self.link.drained()
            self._was_served = False
            self._peer.flush()

    def on_writable(self) -> None:
        self.on_credit()

    def lose(self, error: Exception) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._forget()
            self.link.detach(error=refusal_of(error).error)
            self._peer.flush()

    # The receiver's word.

    def settle(self, delivery: Delivery, state: object) -> object:
        if delivery not in self._unsettled or state is None or isinstance(state, Received):
            return None
        del self._unsettled[delivery]
        try:
            if isinstance(state, TransactionalState):
                return self._enlist(delivery, state)
            verdict = verdict_of(state)
            host = self._peer.host
            host.namespace.settle(self.address, delivery.context, host.now_ms(), verdict)
        except REFUSABLE as error:
            refusal = refusal_of(error)
            self._peer.counters.refused[refusal.condition] += 1
            return Rejected(refusal.error)
        self._peer.counters.settled[verdict.disposition.name.lower()] += 1
        if self._toll is not None:
            self._toll.settled()
        return echo_of(state)

    def _enlist(self, delivery: Delivery, state: TransactionalState) -> object:
        operation = Settle(self.address, delivery.context, verdict_of(state.outcome))
        self._peer.transactions.enlist(state.txn_id, operation)
        return TransactionalState(txn_id=state.txn_id, outcome=echo_of(state.outcome))

    def on_detached(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Give back what the receiver cannot have seen, and its session with all that it had of it."""
        if self._is_forgotten:
            return
        self._is_forgotten = True
        self._peer.dispatcher.remove(self)
        self._peer.dispatcher.discount(self.address)
        host = self._peer.host
        unsent = [delivery.context for delivery in self._unsettled if delivery.delivery_id < 0]
        self._unsettled.clear()
        if self.session is None:
            self._give_back(unsent)
        else:
            with suppress(*REFUSABLE):  # its lock has ended already, or the entity
                host.namespace.release_session(self.address, self.session.session_token, host.now_ms())

    def _give_back(self, tokens: Iterable[bytes | None]) -> None:
        """Release messages that the receiver has not got."""
        host = self._peer.host
        for token in tokens:
            with suppress(*REFUSABLE):  # its lock has ended already, or the entity
                host.namespace.settle(self.address, token or b"", host.now_ms(), _RELEASE)
