"""Links: one-way message routes with credit (part 2.6 of the standard)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pairbus.wire.errors import (
    LocalProtocolError,
    MessageSizeError,
    MessageTooLargeError,
    ProtocolError,
    ResumeError,
    TransferDirectionError,
    TransferLimitError,
    TransferSequenceError,
)
from pairbus.wire.performatives import RECEIVER, SENDER, Attach, Flow, Transfer
from pairbus.wire.settlement import Error, ReceiverSettleMode, SenderSettleMode
from pairbus.wire.states import LINK, Frame, LinkState

if TYPE_CHECKING:
    from pairbus.wire.session import Session

SERIAL: Final = 0xFFFFFFFF
"""The maximum of a sequence number, which then wraps around (RFC 1982)."""


class Delivery:
    """A message in transit over a link, until both ends have settled it.

    A complete incoming delivery is also the event that reports it.
    """

    __slots__ = (
        "context",
        "delivery_id",
        "delivery_tag",
        "link",
        "message_format",
        "payload",
        "rcv_settle_mode",
        "settled",
        "state",
    )

    def __init__(
        self, link: Link, delivery_id: int, delivery_tag: bytes, message_format: int, settled: bool, payload: bytes
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        """The id within the session; -1 while an outgoing delivery waits for the session's window."""
        self.delivery_tag = delivery_tag
        self.message_format = message_format
        self.payload = payload
        """The message as it arrived; empty for an outgoing delivery."""
        self.settled = settled
        """True if either end has settled it."""
        self.state: object = None
        """The last state, sent by the peer or in our own transfer."""
        self.rcv_settle_mode: ReceiverSettleMode | None = None
        """The settle mode that the sender requests for this delivery, if it differs from the link's mode."""
        self.context: Any = None
        """Reserved for the application; the engine does not use it."""

    def __repr__(self) -> str:
        return f"<Delivery {self.delivery_id} on {self.link.name!r}{', settled' if self.settled else ''}>"


class _Partial:
    """A delivery whose frames have not all arrived."""

    __slots__ = ("buffer", "delivery", "oversized")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.buffer = bytearray()
        self.oversized = False


class Link:
    """One end of a link.

    Calls on a link that the peer has detached or whose session has ended write nothing, because there is no receiver;
    only ``send`` raises then, because its message would be lost.
    """

    __slots__ = (
        "_given_back",
        "_giving_back",
        "_granted",
        "_partial",
        "_reject_oversized",
        "_strict",
        "_told_drained",
        "available",
        "context",
        "credit",
        "delivery_count",
        "detach_reported",
        "drain",
        "granted_to_us",
        "handle",
        "local",
        "max_message_size",
        "name",
        "peer",
        "queued",
        "rcv_settle_mode",
        "remote",
        "remote_handle",
        "remote_max_message_size",
        "role",
        "session",
        "shares_ids",
        "snd_settle_mode",
        "unsettled",
    )

    def __init__(
        self, session: Session, name: str, role: bool, handle: int, max_message_size: int, strict: bool, reject: bool
    ) -> None:
        self.session = session
        self.name = name
        self.role = role
        """Our role: ``SENDER`` or ``RECEIVER``."""
        self.handle = handle
        """Our handle of the link."""
        self.remote_handle = -1
        """The peer's handle of the link; -1 until it has attached."""
        self.local = LinkState.UNATTACHED
        self.remote = LinkState.UNATTACHED
        self.peer: Attach | None = None
        """The peer's attach."""
        self.snd_settle_mode = SenderSettleMode.MIXED
        self.rcv_settle_mode = ReceiverSettleMode.FIRST
        self.max_message_size = max_message_size
        """The largest message that this link accepts, in bytes."""
        self.remote_max_message_size = 0
        """The largest message that the peer accepts, in bytes; 0 for no limit."""
        self.delivery_count = 0
        self.credit = 0
        """The remaining credit: ours as the sender, the peer's if we are the receiver."""
        self.unsettled = 0
        """The number of unsettled deliveries."""
        self.available = 0
        """The number of messages that the sender has available, as it last reported."""
        self.drain = False
        """True if the receiver requests that the credit is used up or returned."""
        self.context: Any = None
        """Reserved for the application; the engine does not use it."""
        self.shares_ids = False
        """True if a peer that is not treated strictly may reuse a delivery id that another such link has in use."""
        self.detach_reported = False
        """True if the loss of the link has been reported to the application."""
        self.queued = 0
        """The number of deliveries that wait for the session's window, or for credit that was taken back."""
        self.granted_to_us = 0
        """The number of deliveries that the receiver accepts from the current delivery count on, including queued."""
        self._given_back = 0
        self._giving_back = False
        self._granted = 0
        """The highest delivery count for which we ever granted credit: deliveries that the peer sent before it learned
        of a reduction are not a violation."""
        self._told_drained = False
        self._partial: _Partial | None = None
        self._strict = strict
        self._reject_oversized = reject

    def __repr__(self) -> str:
        role = "receiver" if self.role == RECEIVER else "sender"
        return f"<Link {self.name!r}, {role}, local {self.local.name}, remote {self.remote.name}>"

    @property
    def can_send(self) -> bool:
        """True if ``send`` would accept a message now."""
        return (
            self.role == SENDER
            and self.credit > 0
            and self.local is LinkState.ATTACHED
            and self.remote is not LinkState.DETACHED
        )

    @property
    def is_attached(self) -> bool:
        """True if both ends are attached."""
        return self.local is LinkState.ATTACHED and self.remote is LinkState.ATTACHED

    # Outgoing.

    def attach(
        self,
        *,
        source: Any = None,
        target: Any = None,
        snd_settle_mode: SenderSettleMode | None = None,
        rcv_settle_mode: ReceiverSettleMode | None = None,
        max_message_size: int | None = None,
        properties: dict[str, Any] | None = None,
        offered_capabilities: tuple[str, ...] = (),
        desired_capabilities: tuple[str, ...] = (),
    ) -> None:
        """Attach our end. Settle modes that are not given are the peer's, or the standard's defaults."""
        if self.local is LinkState.ATTACHED:
            raise LocalProtocolError(f"the link {self.name!r} is already attached")
        if self.local is LinkState.DETACHED:
            return
        if snd_settle_mode is not None:
            self.snd_settle_mode = snd_settle_mode
        if rcv_settle_mode is not None:
            self.rcv_settle_mode = rcv_settle_mode
        if max_message_size:  # 0 means no limit on the wire, and our own limit applies
            self.max_message_size = max_message_size
        self.session.send_attach(
            self,
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role,
                snd_settle_mode=self.snd_settle_mode,
                rcv_settle_mode=self.rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=self.delivery_count if self.role == SENDER else None,
                max_message_size=self.max_message_size if self.role == RECEIVER else max_message_size,
                offered_capabilities=offered_capabilities,
                desired_capabilities=desired_capabilities,
                properties=properties,
            ),
        )

    def refuse(self, error: Error) -> None:
        """Refuse the peer's attach: attach without a terminus, then detach with the reason (part 2.6.3)."""
        self.attach()
        self.detach(error=error)

    def detach(self, *, closed: bool = True, error: Error | None = None) -> None:
        """Detach our end."""
        self.session.send_detach(self, closed, error)

    def flow(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """As the receiver, grant credit for ``credit`` deliveries, counted from now."""
        if self.role != RECEIVER:
            raise LocalProtocolError(f"only a receiver grants credit, and {self.name!r} is a sender")
        if self.local is LinkState.UNATTACHED:
            raise LocalProtocolError(f"{self.name!r} has not been attached")
        if not 0 <= credit <= SERIAL >> 1:
            raise LocalProtocolError(f"credit must be between 0 and {SERIAL >> 1}, got {credit}")
        self.credit = credit
        self.drain = drain
        self._told_drained = False
        granted = (self.delivery_count + credit) & SERIAL
        if (granted - self._granted) & SERIAL <= SERIAL >> 1:
            self._granted = granted
        self.session.send_flow(self, echo)

    def drained(self) -> None:
        """As the sender, return the remaining credit, because there is nothing to send."""
        if self.role != SENDER:
            raise LocalProtocolError(f"only a sender is drained, and {self.name!r} is a receiver")
        if self.local is LinkState.UNATTACHED:
            raise LocalProtocolError(f"{self.name!r} has not been attached")
        self._given_back += self.credit
        self._giving_back = True
        self.credit = 0
        if self.queued == 0:
            self._give_back()

    def _give_back(self) -> None:
        """Report the drain to the receiver, after everything that was sent with its credit has been written."""
        self.delivery_count = (self.delivery_count + self._given_back) & SERIAL
        self.granted_to_us = max(0, self.granted_to_us - self._given_back)
        self._given_back = 0
        self._giving_back = False
        self.session.send_flow(self, False)
        self.drain = False

    def send(
        self,
        payload: bytes,
        *,
        tag: bytes,
        message_format: int = 0,
        settled: bool = False,
        state: object = None,
        beyond_credit: bool = False,
    ) -> Delivery:
        """Send one message.

        ``beyond_credit`` sends without credit, for peers that grant credit once and expect responses forever.
        """
        if self.role != SENDER:
            raise LocalProtocolError(f"{self.name!r} is a receiver and cannot send")
        if self.local is not LinkState.ATTACHED or self.remote is LinkState.DETACHED:
            raise LocalProtocolError(f"{self.name!r} is not attached; the message was not sent")
        if not isinstance(payload, bytes):
            raise TypeError(f"a payload must be bytes, got {type(payload).__name__}; use encode_message for a Message")
        if not isinstance(tag, bytes):
            raise TypeError(f"a delivery tag must be bytes, got {type(tag).__name__}")
        if self.credit <= 0 and not beyond_credit:
            raise LocalProtocolError(f"{self.name!r} has no credit; wait for CreditGranted; the message was not sent")
        if self.remote_max_message_size and len(payload) > self.remote_max_message_size:
            raise MessageTooLargeError(
                f"{self.name!r} takes messages of at most {self.remote_max_message_size} bytes, not {len(payload)}; "
                "the message was not sent"
            )
        if len(tag) > 32:
            raise LocalProtocolError(f"a delivery tag must have at most 32 bytes, got {len(tag)}")
        if not 0 <= message_format <= SERIAL:
            raise LocalProtocolError(f"{message_format} is not a message format")
        settled = settled or self.snd_settle_mode == SenderSettleMode.SETTLED
        delivery = Delivery(self, -1, tag, message_format, settled, b"")
        delivery.state = state
        self.session.send_transfer(delivery, payload, beyond_credit)
        return delivery

    def count_queued(self) -> None:
        """Count a delivery that will be sent."""
        self.queued += 1
        if self.credit > 0:
            self.credit -= 1

    def count_sent(self) -> None:
        """Count a delivery that was written completely at once, with credit."""
        self.credit -= 1
        self.granted_to_us -= 1
        self.delivery_count = (self.delivery_count + 1) & SERIAL

    def count_started(self) -> None:
        """Count a delivery whose first frame has been written: only now the receiver knows of it."""
        self.queued -= 1
        self.granted_to_us = max(0, self.granted_to_us - 1)
        self.delivery_count = (self.delivery_count + 1) & SERIAL
        if self._giving_back and self.queued == 0:
            self._give_back()

    def settle(self, delivery: Delivery, state: object = None) -> bool:
        """Settle a delivery with ``state``.

        Returns True if the peer is notified; not if the delivery was settled before, or ended with its link or session.
        """
        return self.session.send_disposition(delivery, state, True)

    def update(self, delivery: Delivery, state: object) -> bool:
        """Send a state without settling, so that the peer may settle first; return True if the peer is notified."""
        return self.session.send_disposition(delivery, state, False)

    def is_drained(self) -> bool:
        """Return True, once, if the sender has used up or returned all credit after a drain request."""
        if not self.drain or self.credit or self._partial is not None:
            return False
        # Until the sender confirms, more may be in transit, if we ever granted more credit than now.
        if not self._told_drained and self.delivery_count != self._granted:
            return False
        self.drain = False
        return True

    def flow_state(self) -> tuple[int, int | None, int, int | None, bool]:
        """The link's part of a flow: handle, delivery-count, link-credit, available and drain."""
        if self.role == SENDER:
            return self.handle, self.delivery_count, self.credit, self.available, self.drain
        # The sender sets the count, in its attach.
        count = None if self.remote is LinkState.UNATTACHED else self.delivery_count
        return self.handle, count, self.credit, None, self.drain

    # Incoming.

    def receive_attach(self, attach: Attach) -> None:
        self.remote = LINK[self.remote, Frame.ATTACH]
        self.remote_handle = attach.handle
        self.peer = attach
        self.remote_max_message_size = attach.max_message_size or 0
        # Each end decides its own mode; until we have attached, the other one is only the peer's preference.
        if self.role == RECEIVER or self.local is LinkState.UNATTACHED:
            self.snd_settle_mode = attach.snd_settle_mode
        if self.role == SENDER or self.local is LinkState.UNATTACHED:
            self.rcv_settle_mode = attach.rcv_settle_mode
        if self.role == RECEIVER and attach.initial_delivery_count is not None:
            self._granted = (self._granted - self.delivery_count + attach.initial_delivery_count) & SERIAL
            self.delivery_count = attach.initial_delivery_count

    def receive_flow(self, flow: Flow) -> None:
        """Apply a flow of the peer to the link (part 2.6.7)."""
        if self.role == SENDER:
            if flow.link_credit is not None:
                # Our initial-delivery-count is 0; a receiver that does not know the count yet assumes the same.
                counted = 0 if flow.delivery_count is None else flow.delivery_count
                uncounted = (self.delivery_count - counted) & SERIAL
                # Beyond half the range, the receiver claims to have counted deliveries that we have not sent.
                self.granted_to_us = max(0, flow.link_credit - (uncounted if uncounted <= SERIAL >> 1 else 0))
                self.credit = max(0, self.granted_to_us - self.queued - self._given_back)
            self.drain = flow.drain
            return
        if flow.available is not None:
            self.available = flow.available
        if flow.delivery_count is not None:
            advanced = (flow.delivery_count - self.delivery_count) & SERIAL
            allowed = (self._granted - self.delivery_count) & SERIAL
            if advanced <= allowed <= SERIAL >> 1:
                self.delivery_count = flow.delivery_count
                self.credit = max(0, self.credit - advanced)
        if self.drain and self.credit == 0 and flow.drain and flow.link_credit == 0:
            self._told_drained = True

    def receive_whole(
        self, delivery_id: int, tag: bytes, message_format: int, settled: bool, payload: bytes
    ) -> Delivery | DeliveryAborted | None:
        """Process a delivery that arrived in one frame."""
        if self._partial is not None or self.role == SENDER or len(payload) > self.max_message_size:
            return self.receive_part(Transfer(self.remote_handle, delivery_id, tag, message_format, settled), payload)
        self._take_credit(delivery_id)
        delivery = Delivery(self, delivery_id, tag, message_format, settled, payload)
        if not settled:
            self.session.remember(delivery)
        return delivery

    def receive_part(self, transfer: Transfer, payload: bytes) -> Delivery | DeliveryAborted | None:
        """Process one frame of a delivery; return the delivery when it is complete."""
        partial = self._partial
        if partial is None:
            partial = self._partial = self._start(transfer)
        return self._continue(partial, transfer, payload)

    def _start(self, transfer: Transfer) -> _Partial:
        if self.role == SENDER:
            raise TransferDirectionError(f"transfer on link {self.name!r}, on which the peer is the receiver")
        if transfer.delivery_id is None or transfer.delivery_tag is None:
            raise TransferSequenceError("the first transfer of a delivery lacks its delivery-id or delivery-tag")
        if transfer.resume:
            raise ResumeError("deliveries cannot be resumed")
        self._take_credit(transfer.delivery_id)
        delivery = Delivery(self, transfer.delivery_id, transfer.delivery_tag, transfer.message_format or 0, False, b"")
        delivery.state = transfer.state
        delivery.rcv_settle_mode = transfer.rcv_settle_mode
        self.session.remember(delivery)
        return _Partial(delivery)

    def _take_credit(self, delivery_id: int) -> None:
        if self.credit > 0:
            self.credit -= 1
        elif self._strict and self.delivery_count == self._granted:
            raise TransferLimitError(f"delivery {delivery_id} was sent without link credit")
        self.delivery_count = (self.delivery_count + 1) & SERIAL

    def _continue(self, partial: _Partial, transfer: Transfer, payload: bytes) -> Delivery | DeliveryAborted | None:
        delivery = partial.delivery
        if transfer.delivery_id is not None and transfer.delivery_id != delivery.delivery_id:
            raise TransferSequenceError(
                f"delivery {transfer.delivery_id} starts while {delivery.delivery_id} is not complete"
            )
        if (transfer.settled or transfer.aborted) and not delivery.settled:
            self.session.forget(delivery)
        if transfer.aborted:
            self.forget_partial()
            return DeliveryAborted(delivery, None)
        self._append(partial, payload)
        if transfer.more:
            return None
        delivery.payload = bytes(partial.buffer)
        self.forget_partial()
        return DeliveryAborted(delivery, self._size_error()) if partial.oversized else delivery

    def forget_partial(self) -> None:
        if self._partial is not None:
            self.session.release(len(self._partial.buffer))
            self._partial = None

    def _append(self, partial: _Partial, payload: bytes) -> None:
        if partial.oversized:
            return
        if len(partial.buffer) + len(payload) > self.max_message_size:
            if not self._reject_oversized:
                raise self._size_error()
            partial.oversized = True
            self.session.release(len(partial.buffer))
            partial.buffer.clear()
        else:
            self.session.reserve(len(payload))
            partial.buffer += payload

    def _size_error(self) -> MessageSizeError:
        return MessageSizeError(f"{self.name!r} takes messages of at most {self.max_message_size} bytes")


@dataclass(frozen=True, slots=True)
class LinkAttached:
    """The peer attached its end: a new link to answer with ``attach`` or ``refuse``, or the answer to ours."""

    link: Link
    attach: Attach


@dataclass(frozen=True, slots=True)
class LinkDetached:
    """The link is detached: by the peer, or by us because the peer violated the protocol (``violation``).

    It needs no answer; ours has been written.
    """

    link: Link
    closed: bool
    error: Error | None
    violation: ProtocolError | None = None


@dataclass(frozen=True, slots=True)
class CreditGranted:
    """The receiver granted credit; with ``drain`` it requests that the rest is returned by ``Link.drained``."""

    link: Link
    credit: int
    drain: bool


@dataclass(frozen=True, slots=True)
class LinkDrained:
    """The sender has used up or returned all credit after a drain request."""

    link: Link


@dataclass(frozen=True, slots=True)
class DeliveryAborted:
    """A delivery was aborted by the sender, or was too large and has been rejected (``error``)."""

    delivery: Delivery
    error: ProtocolError | None
