"""Sessions: channels with windows that carry links (part 2.5 of the standard)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from pairbus.wire import encoder
from pairbus.wire.configuration import Bounds, Configuration, NumberPool
from pairbus.wire.decoder import count_values
from pairbus.wire.errors import (
    Condition,
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
    CreditGranted,
    Delivery,
    DeliveryAborted,
    Link,
    LinkAttached,
    LinkDetached,
    LinkDrained,
)
from pairbus.wire.performatives import RECEIVER, SENDER, Attach, Begin, Detach, Disposition, End, Flow
from pairbus.wire.settlement import Error, ReceiverSettleMode, Rejected, SenderSettleMode, error_of, shortened
from pairbus.wire.states import LINK, SESSION, Frame, LinkState, SessionState

_OUTGOING_WINDOW: Final = SERIAL >> 1
_FREE_SEARCHES: Final = 100_000
_SEARCHES_PER_DELIVERY: Final = 16
"""A delivery occurs in one or two dispositions. A peer that repeats the same ones is misbehaving."""
_BARE_ATTACH_SIZE: Final = 64
"""The maximum size of an attach without terminus and name."""

# Module constants, because an enum member lookup for every message would cost more than handling it.
_MAPPED: Final = SessionState.MAPPED
_DETACHED: Final = LinkState.DETACHED


class Host(ABC):
    """The interface of the connection that a session uses."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        """The limits of the peer; raised once it is authenticated."""
        self.link_count = 0
        """The number of attached links of all sessions."""
        self.incomplete_bytes = 0
        """The number of buffered bytes of incomplete messages of all sessions."""

    def check_values(self, frame: bytes, position: int) -> None:
        """Raise ``PeerLimitError`` if the performative at ``position`` holds too many values."""
        limit = self.bounds.values
        if len(frame) - position > limit and count_values(frame, position, limit) > limit:  # a value has >= 1 byte
            name = self.bounds.name_of("values")
            raise PeerLimitError(f"a frame holds more than {limit} values, the maximum ({name})", name)

    @abstractmethod
    def open(self) -> None:
        """Send our open, unless it has been sent."""


class _Outgoing:
    """A delivery that waits, completely or in part, for the peer's window."""

    __slots__ = ("beyond_credit", "delivery", "payload", "position")

    def __init__(self, delivery: Delivery, payload: bytes, beyond_credit: bool) -> None:
        self.delivery = delivery
        self.payload = payload
        self.beyond_credit = beyond_credit
        self.position = 0

    def lacks_credit(self) -> bool:
        """True if the receiver has taken back its credit; a delivery that has begun is completed."""
        return self.delivery.link.granted_to_us == 0 and not self.beyond_credit and self.delivery.delivery_id < 0


class Session:
    """One session of a connection."""

    def __init__(self, host: Host, channel: int, configuration: Configuration, writer: FrameWriter) -> None:
        self.channel = channel
        """Our channel of the session."""
        self.remote_channel = -1
        """The peer's channel of the session; -1 until it has begun."""
        self.local = SessionState.UNMAPPED
        self.remote = SessionState.UNMAPPED
        self.peer: Begin | None = None
        """The peer's begin."""
        self.context: Any = None
        """Reserved for the application; the engine does not use it."""
        self.end_reported = False
        """True if the end of the session has been reported to the application."""
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
        """Deliveries queued with credit that the receiver has taken back since."""
        self._next_delivery_id = 0
        # The session's flow state, named as in part 2.5.6.
        self._next_incoming_id = 0
        self._incoming_window = configuration.incoming_window
        self._low_window = configuration.incoming_window >> 1
        """The size of the window at which an update is sent."""
        self._max_unsettled = configuration.max_unsettled
        self._next_outgoing_id = 0
        self._remote_incoming_window = 0
        self._searches = _FREE_SEARCHES
        """The number of deliveries that the peer's dispositions may still make us search in vain."""
        self._searched_at = 0

    def __repr__(self) -> str:
        return f"<Session on channel {self.channel}, local {self.local.name}, remote {self.remote.name}>"

    @property
    def is_mapped(self) -> bool:
        """True if both ends have begun and neither has ended."""
        return self.local is SessionState.MAPPED and self.remote is SessionState.MAPPED

    @property
    def unsettled(self) -> int:
        """The number of unsettled deliveries, in both directions."""
        return len(self._incoming) + len(self._outgoing)

    @property
    def queued(self) -> int:
        """The number of deliveries that wait for the peer's window."""
        return len(self._outbox) + len(self._parked)

    # Outgoing.

    def begin(self, *, properties: dict[str, Any] | None = None) -> None:
        """Send begin, unless it has been sent: for a new session, or in answer to the peer's."""
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
        """Attach a new link with us as the ``SENDER`` or the ``RECEIVER``."""
        if not isinstance(role, bool):
            raise TypeError(f"role must be SENDER or RECEIVER, got {role!r:.200}")
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
        """End the session and its links."""
        if self.local is SessionState.ENDED:
            return
        self.begin()
        self._write(End(error=shortened(error, self._writer.max_frame_size)))
        self.local = SESSION[self.local, Frame.END]
        self._forget_everything()

    def abandon(self) -> None:
        """Release the session, because its connection is closed."""
        self.local = self.remote = SessionState.ENDED
        self._forget_everything()

    def send_attach(self, link: Link, attach: Attach) -> None:
        """Write our attach."""
        if self.local is SessionState.ENDED:
            return
        self.begin()
        self._write(attach)
        link.local = LINK[link.local, Frame.ATTACH]

    def send_detach(self, link: Link, closed: bool, error: Error | None) -> None:
        """Write our detach, and drop the deliveries that the link has queued."""
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
        """Write the current flow state of the session and of the link."""
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
        """Write a delivery, now or as soon as the peer's window allows."""
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
        """Write a delivery at once if it fits into one frame and need not wait, as usual; return True if so."""
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
        """Send what the link has queued without credit too, to keep the order of its messages."""
        self._unpark()
        for outgoing in self._outbox:
            if outgoing.delivery.link is link:
                outgoing.beyond_credit = True

    def _check_state(self, state: object) -> None:
        """Reject a state that would leave no room in a transfer, before anything is queued."""
        if state is not None and len(encode_state(state)) > self._writer.max_frame_size // 2:
            raise FrameTooLargeError("a delivery state that does not fit a frame of the peer's")

    def _pump(self) -> None:
        """Write what the peer's window allows."""
        while self._outbox and self._remote_incoming_window > 0:
            outgoing = self._outbox[0]
            if outgoing.lacks_credit():
                self._parked.append(self._outbox.popleft())
            elif self._write_transfer(outgoing):
                self._outbox.popleft()

    def _unpark(self) -> None:
        """Queue deliveries that waited for credit before the rest, but after one that has begun."""
        if self._parked:
            begun = self._outbox.popleft() if self._outbox and self._outbox[0].delivery.delivery_id >= 0 else None
            self._outbox.extendleft(reversed(self._parked))
            self._parked.clear()
            if begun is not None:
                self._outbox.appendleft(begun)

    def _write_transfer(self, outgoing: _Outgoing) -> bool:
        """Write the next frame of a delivery; return True if it was the last."""
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
        """Write the state of a delivery; return False if the session has forgotten it."""
        if delivery.delivery_id < 0:  # it waits for the peer's window: its transfer will carry the state
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

    # Incoming.

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
                bound = self._host.bounds.name_of("links")
                raise SessionResourceError(
                    f"the connection has {self._host.link_count} links, the maximum ({bound})", bound
                )
            link = self._new_link(attach.name, role)
        link.receive_attach(attach)
        self._remote_links[attach.handle] = link
        if link.local is LinkState.DETACHED:  # we detached it before the peer answered
            self._free_name(link)
            return None
        return LinkAttached(link, attach)

    def detach_stolen(self, attach: Attach) -> LinkDetached | None:
        """Detach the link whose name the peer attaches again (part 2.6.1): the new link takes over the name."""
        link = self._names.get((attach.name, not attach.role))
        if link is None or link.remote is LinkState.UNATTACHED or attach.handle in self._remote_links:
            return None
        reason = Error(Condition.STOLEN, "a link of the same name was attached")
        link.detach(error=reason)
        link.detach_reported = True
        return LinkDetached(link, True, reason)

    def receive_flow(self, flow: Flow) -> CreditGranted | LinkDrained | None:
        """Apply a flow of the peer to the session and a link (parts 2.5.6 and 2.6.7)."""
        expected = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        in_flight = (self._next_outgoing_id - expected) & SERIAL
        if in_flight > SERIAL >> 1:  # the peer expects transfers that we have not sent
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
        """Process a transfer frame whose performative is at ``position``."""
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
        """Count a transfer frame; return its link, or ``None`` if we have detached that link."""
        window = self._incoming_window - 1
        if window < 0 and self._strict:
            raise WindowViolationError("the peer sent more transfers than the incoming window allows")
        self._incoming_window = window
        self._next_incoming_id = (self._next_incoming_id + 1) & SERIAL
        link = self._remote_links.get(handle)
        if link is None:
            raise UnattachedHandleError(f"transfer for handle {handle}, which is not attached")
        if window <= self._low_window:
            self.send_flow(None, False)
        return None if link.local is _DETACHED else link

    def remember(self, delivery: Delivery) -> None:
        """Store an incoming delivery until it is settled; raise if there are too many."""
        before = self._incoming.get(delivery.delivery_id)
        if before is not None:
            # The Azure SDK for Python gives concurrent requests the same number. Their responses report the result, so
            # it does no harm there; a message must not get the outcome of another one.
            if self._strict or not (before.link.shares_ids and delivery.link.shares_ids):
                raise DeliveryIdError(f"delivery-id {delivery.delivery_id} is in use already")
            self.forget(before)
        if len(self._incoming) >= self._max_unsettled:
            raise SessionResourceError(f"the session has {len(self._incoming)} unsettled deliveries, the maximum")
        self._incoming[delivery.delivery_id] = delivery
        delivery.link.unsettled += 1

    def forget(self, delivery: Delivery) -> None:
        """Remove an incoming delivery that the sender settled or aborted."""
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
        """Find the deliveries from ``first`` to ``last``, at a cost that the peer cannot raise at will."""
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
            raise SessionResourceError("repeated dispositions for the same deliveries")

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

    # Bookkeeping.

    def reserve(self, size: int) -> None:
        """Reserve memory for bytes of an incomplete message; raise if the limit is reached."""
        if self._host.incomplete_bytes + size > self._host.bounds.incomplete_bytes:
            bound = self._host.bounds.name_of("incomplete_bytes")
            held = self._host.incomplete_bytes
            raise SessionResourceError(
                f"{held} bytes are held of incomplete messages, and {size} more exceed the maximum ({bound})", bound
            )
        self._host.incomplete_bytes += size

    def release(self, size: int) -> None:
        """Release reserved memory."""
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
        """Release the name for the peer, which may reuse it before it has answered our detach."""
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
        for delivery_id, delivery in reversed(known.items()):  # latest first: a new link is soon done
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
    """The session is ended: by the peer, or by us because the peer violated the protocol (``violation``).

    Its links are detached. It needs no answer; ours has been written.
    """

    session: Session
    error: Error | None
    violation: ProtocolError | None = None


@dataclass(frozen=True, slots=True)
class DispositionReceived:
    """The peer sent the state of unsettled deliveries."""

    session: Session
    deliveries: list[Delivery]
    state: Any
    settled: bool
