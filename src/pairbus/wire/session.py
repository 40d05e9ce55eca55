"""Sessions: channels with windows that carry links (part 2.5 of the standard)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from pairbus.wire import encoder
from pairbus.wire.conditions import Condition
from pairbus.wire.configuration import Bounds, Configuration
from pairbus.wire.decoder import count_values
from pairbus.wire.errors import (
    DeliveryIdError,
    FrameTooLargeError,
    FramingError,
    HandleInUseError,
    InvalidFieldError,
    LinkError,
    LocalProtocolError,
    PeerLimitError,
    ProtocolError,
    SessionResourceError,
    UnattachedHandleError,
    WindowViolationError,
)
from pairbus.wire.frames import HEADER_SIZE, FrameWriter
from pairbus.wire.hotpath import (
    UNUSUAL,
    encode_state,
    read_transfer,
    read_whole_transfer,
    write_continuation,
    write_flow,
    write_transfer,
)
from pairbus.wire.link import (
    SERIAL,
    Carrier,
    CreditGranted,
    Delivery,
    DeliveryAborted,
    Link,
    LinkAttached,
    LinkDetached,
    LinkDrained,
)
from pairbus.wire.numbers import NumberPool
from pairbus.wire.performatives import RECEIVER, SENDER, Attach, Begin, Detach, Disposition, End, Flow
from pairbus.wire.settlement import Error, ReceiverSettleMode, Rejected, SenderSettleMode, error_of, shortened
from pairbus.wire.states import LINK, SESSION, Frame, LinkState, SessionState

_OUTGOING_WINDOW: Final = SERIAL >> 1
_FREE_SEARCHES: Final = 100_000
_SEARCHES_PER_DELIVERY: Final = 16
"""A delivery is told of in one or two dispositions. A peer that names the same ones over and over is up to no good."""
_BARE_ATTACH_SIZE: Final = 64
"""What an attach without terminus takes beside its name, at the most."""

# For every message: looking up a member of an enumeration costs more than all else that is done with it.
_MAPPED: Final = SessionState.MAPPED
_DETACHED: Final = LinkState.DETACHED


class Host(ABC):
    """What a session needs of the connection that holds it."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        """How much the peer may take; to be replaced as it gains trust."""
        self.link_count = 0
        """How many links are attached, over all sessions."""
        self.incomplete_bytes = 0
        """How much is held of messages that have not arrived whole, over all sessions."""

    def check_values(self, frame: bytes, position: int) -> None:
        """Raise ``PeerLimitError`` if the performative at ``position`` holds more values than it may."""
        most = self.bounds.values
        if len(frame) - position > most and count_values(frame, position, most) > most:  # a value takes a byte or more
            raise PeerLimitError(f"a frame holds more than {most} values")

    @abstractmethod
    def open(self) -> None:
        """Open our end, unless that is done."""


class _Outgoing:
    """A delivery that the peer's window has not let through yet, or not all of it."""

    __slots__ = ("beyond_credit", "delivery", "payload", "position")

    def __init__(self, delivery: Delivery, payload: bytes, beyond_credit: bool) -> None:
        self.delivery = delivery
        self.payload = payload
        self.beyond_credit = beyond_credit
        self.position = 0

    def lacks_credit(self) -> bool:
        """Whether the receiver has taken back the credit that it was sent with; what has begun is finished."""
        return self.delivery.link.granted_to_us == 0 and not self.beyond_credit and self.delivery.delivery_id < 0


class Session(Carrier):
    """One session of a connection."""

    def __init__(self, host: Host, channel: int, configuration: Configuration, writer: FrameWriter) -> None:
        self.channel = channel
        """Our number for the session."""
        self.remote_channel = -1
        """The peer's number for the session; -1 until it has begun."""
        self.local = SessionState.UNMAPPED
        self.remote = SessionState.UNMAPPED
        self.peer: Begin | None = None
        """The peer's begin."""
        self.context: Any = None
        """The application's own: the engine never looks at it."""
        self.end_reported = False
        """Whether the application has been told that the session is gone."""
        self.links: dict[int, Link] = {}
        """The links by our handle."""
        self._remote_links: dict[int, Link] = {}
        self._names: dict[tuple[str, bool], Link] = {}
        self._configuration = configuration
        self._strict = configuration.strict
        self._writer = writer
        self._host = host
        self._handles = NumberPool()
        self._incoming: dict[int, Delivery] = {}
        self._outgoing: dict[int, Delivery] = {}
        self._outbox: deque[_Outgoing] = deque()
        self._parked: list[_Outgoing] = []
        """What was queued with credit that the receiver has taken back since."""
        self._next_delivery_id = 0
        # The session's flow state, named as in part 2.5.6.
        self._next_incoming_id = 0
        self._incoming_window = configuration.incoming_window
        self._low_window = configuration.incoming_window >> 1
        """When it has come down to this, the peer hears that there is room again."""
        self._max_unsettled = configuration.max_unsettled
        self._next_outgoing_id = 0
        self._remote_incoming_window = 0
        self._searches = _FREE_SEARCHES
        """How many deliveries the peer's dispositions may still make us look at in vain."""
        self._searched_at = 0

    def __repr__(self) -> str:
        return f"<Session on channel {self.channel}, local {self.local.name}, remote {self.remote.name}>"

    @property
    def is_mapped(self) -> bool:
        """Whether both ends have begun and neither has ended."""
        return self.local is SessionState.MAPPED and self.remote is SessionState.MAPPED

    @property
    def unsettled(self) -> int:
        """How many deliveries wait to be settled, in both directions."""
        return len(self._incoming) + len(self._outgoing)

    @property
    def queued(self) -> int:
        """How many deliveries wait for the peer's window."""
        return len(self._outbox) + len(self._parked)

    # What we say.

    def begin(self, *, properties: dict[str, Any] | None = None) -> None:
        """Begin our end, unless that is done: a new session, or the answer to the peer's."""
        if self.local is not SessionState.UNMAPPED:
            return
        self._host.open()
        self._write(
            Begin(
                remote_channel=self.remote_channel if self.remote_channel >= 0 else None,
                next_outgoing_id=self._next_outgoing_id,
                incoming_window=self._incoming_window,
                outgoing_window=_OUTGOING_WINDOW,
                handle_max=self._configuration.handle_max,
                properties=properties,
            )
        )
        self.local = SESSION[self.local, Frame.BEGIN]

    def attach(
        self,
        name: str,
        role: bool,
        *,
        source: Any = None,
        target: Any = None,
        snd_settle_mode: SenderSettleMode | None = None,
        rcv_settle_mode: ReceiverSettleMode | None = None,
        max_message_size: int | None = None,
        properties: dict[str, Any] | None = None,
        offered_capabilities: tuple[str, ...] = (),
        desired_capabilities: tuple[str, ...] = (),
    ) -> Link:
        """Attach a new link, of which we are the ``SENDER`` or the ``RECEIVER``."""
        if not isinstance(role, bool):
            raise TypeError(f"a role is SENDER or RECEIVER, not {role!r:.200}")
        if (name, role) in self._names:
            raise LocalProtocolError(f"the session has a link {name!r} in this direction already")
        if self.local is SessionState.ENDED:
            raise LocalProtocolError(f"the session on channel {self.channel} has ended")
        handle_max = SERIAL if self.peer is None else self.peer.handle_max
        if self._handles.lowest() > handle_max:
            raise LocalProtocolError(f"the peer allows {handle_max + 1} links in a session")
        link = self._new_link(name, role)
        try:
            link.attach(
                source=source,
                target=target,
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                max_message_size=max_message_size,
                properties=properties,
                offered_capabilities=offered_capabilities,
                desired_capabilities=desired_capabilities,
            )
        except LocalProtocolError:
            self._free_name(link)
            self._release(link)
            raise
        return link

    def end(self, *, error: Error | None = None) -> None:
        """End our end; its links are gone with it."""
        if self.local is SessionState.ENDED:
            return
        self.begin()
        self._write(End(error=shortened(error, self._writer.max_frame_size)))
        self.local = SESSION[self.local, Frame.END]
        self._forget_everything()

    def abandon(self) -> None:
        """Forget the session, because its connection is gone."""
        self.local = self.remote = SessionState.ENDED
        self._forget_everything()

    def send_attach(self, link: Link, attach: Attach) -> None:
        if self.local is SessionState.ENDED:
            return
        self.begin()
        self._write(attach)
        link.local = LINK[link.local, Frame.ATTACH]

    def send_detach(self, link: Link, closed: bool, error: Error | None) -> None:
        if link.local is LinkState.DETACHED or self.local is SessionState.ENDED:
            return
        if link.local is LinkState.UNATTACHED:
            link.attach()
        self._write(Detach(handle=link.handle, closed=closed, error=shortened(error, self._writer.max_frame_size)))
        link.local = LINK[link.local, Frame.DETACH]
        if link.remote is not LinkState.UNATTACHED:
            self._free_name(link)
        self._forget_deliveries(link)
        if link.remote is LinkState.DETACHED:
            self._release(link)

    def send_flow(self, link: Link | None, echo: bool) -> None:
        if self.local is not SessionState.MAPPED or (link is not None and link.local is not LinkState.ATTACHED):
            return
        self._incoming_window = self._configuration.incoming_window
        known = None if self.remote is SessionState.UNMAPPED else self._next_incoming_id
        self._writer.write(
            self.channel,
            write_flow(
                known,
                self._incoming_window,
                self._next_outgoing_id,
                _OUTGOING_WINDOW,
                None if link is None else link.flow_state(),
                echo,
            ),
        )

    def send_transfer(self, delivery: Delivery, payload: bytes, beyond_credit: bool) -> None:
        if self.local is not SessionState.MAPPED or self.remote is SessionState.ENDED:
            raise LocalProtocolError(f"the session on channel {self.channel} has ended; the message was not sent")
        if not self._outbox and delivery.state is None and self._send_at_once(delivery, payload):
            return
        self._check_state(delivery.state)
        if beyond_credit and delivery.link.queued:
            self._let_beyond_credit(delivery.link)
        delivery.link.count_queued()
        self._outbox.append(_Outgoing(delivery, payload, beyond_credit))
        self._pump()

    def _send_at_once(self, delivery: Delivery, payload: bytes) -> bool:
        """Write a delivery that fits one frame and has to wait for nothing, as most; whether it was such a one."""
        link = delivery.link
        if self._remote_incoming_window <= 0 or link.credit <= 0 or link.queued or link.granted_to_us <= 0:
            return False
        delivery_id = self._next_delivery_id
        body = write_transfer(
            link.handle,
            delivery_id,
            delivery.delivery_tag,
            delivery.message_format,
            delivery.settled,
            False,
            None,
        )
        if HEADER_SIZE + len(body) + len(payload) > self._writer.max_frame_size:
            return False
        self._writer.write(self.channel, body, payload)
        delivery.delivery_id = delivery_id
        if not delivery.settled:
            self._outgoing[delivery_id] = delivery
            link.unsettled += 1
        self._next_delivery_id = (delivery_id + 1) & SERIAL
        self._next_outgoing_id = (self._next_outgoing_id + 1) & SERIAL
        self._remote_incoming_window -= 1
        link.count_sent()
        return True

    def _let_beyond_credit(self, link: Link) -> None:
        """Let what the link has queued go without credit too: a link's messages keep their order."""
        self._unpark()
        for outgoing in self._outbox:
            if outgoing.delivery.link is link:
                outgoing.beyond_credit = True

    def _check_state(self, state: object) -> None:
        """Refuse a state that would leave no room in a transfer; later it would be too late."""
        if state is not None and len(encode_state(state)) > self._writer.max_frame_size // 2:
            raise FrameTooLargeError("a delivery state that does not fit a frame of the peer's")

    def _pump(self) -> None:
        """Write what the peer's window has room for."""
        while self._outbox and self._remote_incoming_window > 0:
            outgoing = self._outbox[0]
            if outgoing.lacks_credit():
                self._parked.append(self._outbox.popleft())
            elif self._write_transfer(outgoing):
                self._outbox.popleft()

    def _unpark(self) -> None:
        """Queue again, ahead of the rest, what waited for credit; but what has begun is finished first."""
        if self._parked:
            begun = self._outbox.popleft() if self._outbox and self._outbox[0].delivery.delivery_id >= 0 else None
            self._outbox.extendleft(reversed(self._parked))
            self._parked.clear()
            if begun is not None:
                self._outbox.appendleft(begun)

    def _write_transfer(self, outgoing: _Outgoing) -> bool:
        """Write the next frame of a delivery; return whether it was the last."""
        delivery = outgoing.delivery
        link = delivery.link
        first = delivery.delivery_id < 0
        if first:
            delivery.delivery_id = self._next_delivery_id
            self._next_delivery_id = (self._next_delivery_id + 1) & SERIAL
            if not delivery.settled:
                self._outgoing[delivery.delivery_id] = delivery
                link.unsettled += 1
            body = self._first_transfer(delivery, False)
        else:
            body = write_continuation(link.handle, False)
        room = self._writer.max_frame_size - HEADER_SIZE - len(body)
        left = len(outgoing.payload) - outgoing.position
        more = left > room
        if more:
            body = self._first_transfer(delivery, True) if first else write_continuation(link.handle, True)
        if first and not more:
            payload = outgoing.payload
        else:
            payload = outgoing.payload[outgoing.position : outgoing.position + room]
            outgoing.position += len(payload)
        self._writer.write(self.channel, body, payload)
        self._next_outgoing_id = (self._next_outgoing_id + 1) & SERIAL
        self._remote_incoming_window -= 1
        if first:
            link.count_started()
        return not more

    def _first_transfer(self, delivery: Delivery, more: bool) -> bytes:
        return write_transfer(
            delivery.link.handle,
            delivery.delivery_id,
            delivery.delivery_tag,
            delivery.message_format,
            delivery.settled,
            more,
            delivery.state,
        )

    def send_disposition(self, delivery: Delivery, state: object, settled: bool) -> bool:
        if delivery.delivery_id < 0:  # it waits for the peer's window: its transfer will tell
            self._check_state(state)
            if delivery.settled or delivery.link.local is _DETACHED:
                return False
            delivery.state = state
            delivery.settled = settled
            return True
        known = self._incoming if delivery.link.role == RECEIVER else self._outgoing
        if known.get(delivery.delivery_id) is not delivery:
            return False
        if self.local is not _MAPPED:
            self.begin()
        self._writer.dispose(self.channel, delivery.link.role, delivery.delivery_id, settled, state)
        if settled:
            del known[delivery.delivery_id]
            delivery.link.unsettled -= 1
            delivery.settled = True
        return True

    def _write(self, performative: object) -> None:
        self._writer.write(self.channel, encoder.encode(performative))

    # What the peer says.

    def receive_begin(self, channel: int, begin: Begin) -> None:
        self.remote = SESSION[self.remote, Frame.BEGIN]
        self.remote_channel = channel
        self.peer = begin
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_incoming_window = begin.incoming_window
        self._pump()

    def receive_attach(self, attach: Attach) -> LinkAttached | None:
        if attach.handle > self._configuration.handle_max:
            raise FramingError(f"handle {attach.handle}, where {self._configuration.handle_max} is the highest")
        if attach.handle in self._remote_links:
            raise HandleInUseError(f"handle {attach.handle} is attached already")
        if len(attach.name.encode()) > self._writer.max_frame_size - _BARE_ATTACH_SIZE:
            raise InvalidFieldError("the name of a link is too long for the peer's own frames")
        role = not attach.role
        link = self._names.get((attach.name, role))
        if link is None:
            if self._host.link_count >= self._host.bounds.links:
                raise SessionResourceError(f"the connection has {self._host.link_count} links, and may have no more")
            link = self._new_link(attach.name, role)
        link.receive_attach(attach)
        self._remote_links[attach.handle] = link
        if link.local is LinkState.DETACHED:  # we thought better of it before the peer answered
            self._free_name(link)
            return None
        return LinkAttached(link, attach)

    def detach_stolen(self, attach: Attach) -> LinkDetached | None:
        """Detach the link whose name the peer attaches anew (part 2.6.1): the name goes to the new one."""
        link = self._names.get((attach.name, not attach.role))
        if link is None or link.remote is LinkState.UNATTACHED or attach.handle in self._remote_links:
            return None
        reason = Error(Condition.STOLEN, "a link of the same name was attached")
        link.detach(error=reason)
        link.detach_reported = True
        return LinkDetached(link, True, reason)

    def receive_flow(self, flow: Flow) -> CreditGranted | LinkDrained | None:
        """Take over the peer's view of the session and of a link (parts 2.5.6 and 2.6.7)."""
        expected = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        in_flight = (self._next_outgoing_id - expected) & SERIAL
        if in_flight > SERIAL >> 1:  # the peer expects what we have not sent
            in_flight = 0
        self._remote_incoming_window = max(0, flow.incoming_window - in_flight)
        link = None
        event: CreditGranted | LinkDrained | None = None
        if flow.handle is not None:
            link = self._attached(flow.handle, Frame.FLOW)
            event = self._receive_link_flow(link, flow)
        self._pump()
        if flow.echo:
            self.send_flow(link, False)
        return event

    def _receive_link_flow(self, link: Link, flow: Flow) -> CreditGranted | LinkDrained | None:
        if link.local is LinkState.DETACHED:
            return None
        link.receive_flow(flow)
        if link.role == SENDER:
            self._unpark()
            return CreditGranted(link, link.credit, link.drain)
        return LinkDrained(link) if link.is_drained() else None

    def receive_transfer(self, frame: bytes, position: int) -> Delivery | DeliveryAborted | LinkDetached | None:
        """Take in a transfer frame whose performative stands at ``position``."""
        handle, delivery_id, tag, message_format, settled, start = read_whole_transfer(frame, position)
        transfer = None
        if handle == UNUSUAL:
            self._host.check_values(frame, position)
            transfer, start = read_transfer(frame, position)
            handle = transfer.handle
        link = self._account(handle)
        if link is None:
            return None
        try:
            if transfer is None:
                received = link.receive_whole(delivery_id, tag, message_format, settled, frame[start:])
            else:
                received = link.receive_part(transfer, frame[start:])
        except LinkError as error:
            return self._detach_violator(link, error)
        if isinstance(received, DeliveryAborted) and received.error is not None:
            link.settle(received.delivery, Rejected(error_of(received.error)))
        return received

    def _account(self, handle: int) -> Link | None:
        """Count a transfer frame; return the link it is for, or ``None`` when we have detached that link."""
        window = self._incoming_window - 1
        if window < 0 and self._strict:
            raise WindowViolationError("more transfers than the incoming window has room for")
        self._incoming_window = window
        self._next_incoming_id = (self._next_incoming_id + 1) & SERIAL
        link = self._remote_links.get(handle)
        if link is None:
            raise UnattachedHandleError(f"a transfer for handle {handle}, which no link is attached to")
        if window <= self._low_window:
            self.send_flow(None, False)
        return None if link.local is _DETACHED else link

    def remember(self, delivery: Delivery) -> None:
        before = self._incoming.get(delivery.delivery_id)
        if before is not None:
            # The Azure SDK for Python numbers requests alike that are made at the same time. What becomes of them is
            # told in their answers, so there it does no harm; a message must not be told the outcome of another.
            if self._strict or not (before.link.shares_ids and delivery.link.shares_ids):
                raise DeliveryIdError(f"delivery-id {delivery.delivery_id} is in use already")
            self.forget(before)
        if len(self._incoming) >= self._max_unsettled:
            raise SessionResourceError(f"{len(self._incoming)} deliveries wait to be settled; no more are taken")
        self._incoming[delivery.delivery_id] = delivery
        delivery.link.unsettled += 1

    def forget(self, delivery: Delivery) -> None:
        if self._incoming.get(delivery.delivery_id) is delivery:
            del self._incoming[delivery.delivery_id]
            delivery.link.unsettled -= 1
        delivery.settled = True

    def _detach_violator(self, link: Link, error: LinkError) -> LinkDetached:
        reason = error_of(error)
        link.detach(error=reason)
        link.detach_reported = True
        return LinkDetached(link, True, reason, error)

    def receive_disposition(self, disposition: Disposition) -> DispositionReceived | None:
        known = self._outgoing if disposition.role == RECEIVER else self._incoming
        deliveries = self._in_range(known, disposition.first, disposition.last)
        if disposition.settled:
            self._searches += len(deliveries)
        for delivery in deliveries:
            if disposition.state is not None:
                delivery.state = disposition.state
            if disposition.settled:
                delivery.settled = True
                delivery.link.unsettled -= 1
                del known[delivery.delivery_id]
        if not deliveries:
            return None
        return DispositionReceived(self, deliveries, disposition.state, disposition.settled)

    def _in_range(self, known: dict[int, Delivery], first: int, last: int | None) -> list[Delivery]:
        """Find the deliveries from ``first`` to ``last``, at a cost that the peer cannot raise as it likes."""
        if last is None or last == first:
            delivery = known.get(first)
            return [] if delivery is None else [delivery]
        span = (last - first) & SERIAL
        if span > SERIAL >> 1:
            raise DeliveryIdError(f"a disposition for deliveries {first} to {last}")
        self._pay_for_search(min(span + 1, len(known)))
        if span < len(known):
            found = [known.get((first + offset) & SERIAL) for offset in range(span + 1)]
            return [delivery for delivery in found if delivery is not None]
        return [delivery for delivery in known.values() if (delivery.delivery_id - first) & SERIAL <= span]

    def _pay_for_search(self, cost: int) -> None:
        transfers = (self._next_incoming_id + self._next_outgoing_id) & SERIAL
        earned = ((transfers - self._searched_at) & SERIAL) * _SEARCHES_PER_DELIVERY
        self._searched_at = transfers
        self._searches = min(self._searches + earned, _FREE_SEARCHES + self._max_unsettled) - cost
        if self._searches < 0:
            raise SessionResourceError("dispositions for the same deliveries over and over")

    def receive_detach(self, detach: Detach) -> LinkDetached | None:
        link = self._attached(detach.handle, Frame.DETACH)
        link.remote = LINK[link.remote, Frame.DETACH]
        del self._remote_links[detach.handle]
        if link.local is LinkState.DETACHED:
            self._release(link)
        else:
            link.detach(closed=detach.closed)
        if link.detach_reported:
            return None
        link.detach_reported = True
        return LinkDetached(link, detach.closed, detach.error)

    def receive_end(self) -> None:
        self.remote = SESSION[self.remote, Frame.END]
        self.end()

    def _attached(self, handle: int, frame: Frame) -> Link:
        link = self._remote_links.get(handle)
        state = LinkState.UNATTACHED if link is None else link.remote
        if link is None or (state, frame) not in LINK:
            raise UnattachedHandleError(f"a {frame.name.lower()} for handle {handle}, which is {state.name}")
        return link

    # What we remember.

    def reserve(self, size: int) -> None:
        if self._host.incomplete_bytes + size > self._host.bounds.incomplete_bytes:
            raise SessionResourceError(f"{self._host.incomplete_bytes} bytes are held of incomplete messages already")
        self._host.incomplete_bytes += size

    def release(self, size: int) -> None:
        self._host.incomplete_bytes -= size

    def _new_link(self, name: str, role: bool) -> Link:
        handle = self._handles.take()
        configuration = self._configuration
        link = Link(
            self,
            name,
            role,
            handle,
            configuration.max_message_size,
            configuration.strict,
            configuration.reject_oversized,
        )
        self.links[handle] = link
        self._names[name, role] = link
        self._host.link_count += 1
        return link

    def _free_name(self, link: Link) -> None:
        """Let the peer use the name again, which it may do before it has answered our detach."""
        del self._names[link.name, link.role]

    def _release(self, link: Link) -> None:
        del self.links[link.handle]
        self._handles.give_back(link.handle)
        self._host.link_count -= 1

    def _forget_deliveries(self, link: Link) -> None:
        if link.queued or (self._outbox and self._outbox[0].delivery.link is link):
            self._unpark()
            self._outbox = deque(outgoing for outgoing in self._outbox if outgoing.delivery.link is not link)
            link.queued = 0
        known = self._incoming if link.role == RECEIVER else self._outgoing
        forgotten: list[int] = []
        for delivery_id, delivery in reversed(known.items()):  # the latest first: a link that just came is soon done
            if len(forgotten) == link.unsettled:
                break
            if delivery.link is link:
                forgotten.append(delivery_id)
        for delivery_id in forgotten:
            del known[delivery_id]
        link.unsettled = 0
        link.forget_partial()

    def _forget_everything(self) -> None:
        self._host.link_count -= len(self.links)
        for link in self.links.values():
            link.local = link.remote = LinkState.DETACHED
            link.unsettled = link.queued = link.credit = 0
            link.forget_partial()
        self.links.clear()
        self._remote_links.clear()
        self._names.clear()
        self._outbox.clear()
        self._parked.clear()
        self._incoming.clear()
        self._outgoing.clear()


@dataclass(frozen=True, slots=True)
class SessionBegun:
    """The peer began its end: a new session to answer with ``begin``, or the answer to ours."""

    session: Session
    begin: Begin


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is gone: ended by the peer, or by us because the peer broke the protocol (``violation``).

    Its links are gone with it. It needs no answer; ours has been written.
    """

    session: Session
    error: Error | None
    violation: ProtocolError | None = None


@dataclass(frozen=True, slots=True)
class DispositionReceived:
    """The peer told the state of some of the deliveries that are not settled yet."""

    session: Session
    deliveries: list[Delivery]
    state: Any
    settled: bool
