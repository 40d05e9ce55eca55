"""Two engines and a naive model of what they carry, under every operation and arbitrary timing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    SENDER,
    Authenticated,
    Configuration,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    Declared,
    Delivery,
    DispositionReceived,
    Error,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LocalProtocolError,
    Modified,
    Received,
    Rejected,
    SaslServer,
    Session,
    SessionBegun,
    SessionEnded,
    TransactionalState,
    anonymous,
)
from pairbus.wire.states import ConnectionState, LinkState
from tests.thoroughness import times
from tests.wire.pair import Side

OTHER: Final = {Side.CLIENT: Side.SERVER, Side.SERVER: Side.CLIENT}
NUMBER: Final = "number"
"""The property of begin and attach by which the model knows a session or link again at the other end."""

Statement = tuple[object, bool]
"""The disposition of one end: the state of a delivery, and whether it is settled."""


@dataclass(eq=False)
class Message:
    """A message as the model sees it."""

    payload: bytes
    tag: bytes
    settled_at_once: bool
    deliveries: dict[Side, Delivery]
    said: dict[Side, list[Statement]]
    heard: dict[Side, list[Statement]]
    carried: Statement | None = None
    """The state sent while the message waited for the window: the transfer itself carries it."""

    def has_settled(self, side: Side) -> bool:
        statements = [*self.said[side], *self.heard[side], (None, self.settled_at_once)]
        if self.carried is not None:
            statements.append(self.carried)
        return any(settled for _, settled in statements)


@dataclass(eq=False)
class Conversation:
    """A session as the model sees it."""

    number: int
    ends: dict[Side, Session]
    gone: set[Side] = field(default_factory=set)
    """The ends that have ended, or know that the other has."""
    reported: set[Side] = field(default_factory=set)


@dataclass(eq=False)
class Route:
    """A link as the model sees it."""

    number: int
    name: str
    sender: Side
    conversation: Conversation
    ends: dict[Side, Link]
    attached: set[Side] = field(default_factory=set)
    gone: set[Side] = field(default_factory=set)
    reported: set[Side] = field(default_factory=set)
    credit: int = 0
    """The number of messages that the sender may still send, as far as it knows."""
    messages: list[Message] = field(default_factory=list)
    arrived: int = 0
    drain_asked: int = 0
    drained: int = 0
    went_beyond: bool = False
    """True if the sender may send without credit."""
    is_drained: bool = False
    """True if the receiver knows that no credit is left, and has granted none since."""

    @property
    def receiver(self) -> Side:
        return OTHER[self.sender]

    def is_up(self, side: Side) -> bool:
        return side in self.attached and side not in self.gone


SIDES: Final = st.sampled_from(Side)
OUTCOMES: Final = st.one_of(
    st.just(ACCEPTED),
    st.just(RELEASED),
    st.builds(Rejected, st.none() | st.builds(Error, st.just("pairbus:no"), st.text(max_size=5))),
    st.builds(Modified, delivery_failed=st.none() | st.booleans(), undeliverable_here=st.none() | st.booleans()),
    st.builds(Declared, st.binary(min_size=1, max_size=4)),
)
STATES: Final = st.one_of(
    OUTCOMES,
    st.builds(Received, section_number=st.integers(0, 300), section_offset=st.integers(0, 2**64 - 1)),
    st.builds(TransactionalState, txn_id=st.binary(min_size=1, max_size=4), outcome=st.none() | OUTCOMES),
)
SELDOM: Final = st.integers(0, 3).map(lambda number: number == 3)
"""Draws whether to perform an operation that ends objects which other operations need."""
SIZES: Final = st.one_of(st.integers(0, 20), st.integers(440, 520), st.integers(0, 3000))


class TwoEngines(RuleBasedStateMachine):
    """A client and a server whose bytes arrive late and in pieces; each may do anything at any time."""

    routes: Bundle[Route] = Bundle("routes")

    def __init__(self) -> None:
        super().__init__()
        self.engines: dict[Side, Connection] = {}
        self.pipes = {side: bytearray() for side in Side}
        """The data in flight to each side."""
        self.unanswered: list[tuple[Side, Event]] = []
        self.sasl = False
        self.first_delivery_id = 0
        self.strict = True
        self.closed: set[Side] = set()
        self.all_conversations: list[Conversation] = []
        self.all_routes: list[Route] = []
        self.early: dict[Delivery, list[Statement]] = {}
        """The dispositions received for incomplete deliveries."""
        self.numbers = 0

    # What either side may do.

    @initialize(
        target=routes,
        windows=st.tuples(st.integers(1, 6), st.integers(1, 6)),
        frame_size=st.sampled_from([512, 600, 65536]),
        sasl=st.booleans(),
        ahead=st.lists(st.tuples(SIDES, SIDES), max_size=3),
        credit=st.integers(0, 12),
        first_delivery_id=st.sampled_from([0, 2**32 - 3]),
        strict=st.booleans(),
    )
    def connect(
        self,
        windows: tuple[int, int],
        frame_size: int,
        sasl: bool,
        ahead: list[tuple[Side, Side]],
        credit: int,
        first_delivery_id: int,
        strict: bool,
    ) -> Any:
        """Connect; some of the time with a few links that are attached already, since much happens only later."""
        self.sasl = sasl
        self.first_delivery_id = first_delivery_id
        self.strict = strict
        client = Configuration(container_id="c", max_frame_size=frame_size, incoming_window=windows[0], strict=strict)
        server = Configuration(container_id="s", max_frame_size=512, incoming_window=windows[1], strict=strict)
        self.engines = {
            Side.CLIENT: Connection(client, anonymous() if sasl else None),
            Side.SERVER: Connection(server, SaslServer() if sasl else None),
        }
        self.engines[Side.CLIENT].open()
        return multiple(*[self._attach_ahead(*sides, credit) for sides in ahead])

    def _attach_ahead(self, beginner: Side, sender: Side, credit: int) -> Route:
        self.fall_silent()
        self.begin(beginner)
        route = self.attach(-1, beginner, SENDER if sender is beginner else RECEIVER, "a")
        assert isinstance(route, Route)
        self.fall_silent()
        self.flow(route, credit, drain=False, echo=False)
        self.fall_silent()
        return route

    @precondition(lambda self: len(self.all_conversations) < 5)
    @rule(side=SIDES)
    def begin(self, side: Side) -> None:
        engine = self.engines[side]
        too_early = side is Side.SERVER and self.sasl and engine.local is ConnectionState.START
        if side in self.closed or too_early:
            with pytest.raises(LocalProtocolError):
                engine.begin()
            return
        conversation = Conversation(self._number(), {})
        conversation.ends[side] = engine.begin(properties={NUMBER: conversation.number})
        conversation.ends[side]._next_delivery_id = self.first_delivery_id
        self.all_conversations.append(conversation)

    @precondition(lambda self: self.all_conversations)
    @rule(target=routes, index=st.integers(0, 4), side=SIDES, role=st.booleans(), letter=st.sampled_from("ab"))
    def attach(self, index: int, side: Side, role: bool, letter: str) -> Any:
        conversation = self.all_conversations[index % len(self.all_conversations)]
        session = conversation.ends.get(side)
        if session is None:
            return multiple()  # the other end has not heard of the session
        name = f"{side}-{letter}"
        sender = side if role == SENDER else OTHER[side]
        same = [other for other in self._routes_of(conversation) if other.name == name and other.sender == sender]
        if side in conversation.gone or any(other.is_up(side) for other in same):
            with pytest.raises(LocalProtocolError):
                session.attach(name, role)
            return multiple()
        if any(side not in other.reported for other in same):
            return multiple()  # we have detached and the other end has not: it is undefined whether the name is free
        route = Route(self._number(), name, sender, conversation, {})
        route.ends[side] = session.attach(name, role, properties={NUMBER: route.number})
        route.attached.add(side)
        self.all_routes.append(route)
        return route

    @precondition(lambda self: self.unanswered)
    @rule(choice=st.integers(0, 9), refuse=st.booleans())
    def answer(self, choice: int, refuse: bool) -> None:
        pending = self.unanswered.pop(choice % len(self.unanswered))
        self._answer(*pending, refuse=refuse and choice > 6)

    @rule(route=routes, sizes=st.lists(SIZES, min_size=1, max_size=4), settled=st.booleans(), beyond=SELDOM)
    def send(self, route: Route, sizes: list[int], settled: bool, beyond: bool) -> None:
        link = route.ends.get(route.sender)
        if link is not None:
            for size in sizes:
                self._send(route, link, size, settled, beyond and not self.strict)

    def _send(self, route: Route, link: Link, size: int, settled: bool, beyond: bool) -> None:
        tag = b"%d" % len(route.messages)
        payload = (b"%d.%d " % (route.number, len(route.messages))).ljust(size, b".")[:size]
        if not route.is_up(route.sender) or (route.credit == 0 and not beyond):
            with pytest.raises(LocalProtocolError):
                link.send(payload, tag=tag, settled=settled, beyond_credit=beyond)
            return
        delivery = link.send(payload, tag=tag, settled=settled, beyond_credit=beyond)
        route.went_beyond |= beyond
        route.credit = max(0, route.credit - 1)
        empty: dict[Side, list[Statement]] = {side: [] for side in Side}
        heard: dict[Side, list[Statement]] = {side: [] for side in Side}
        route.messages.append(Message(payload, tag, settled, {route.sender: delivery}, empty, heard))

    @rule(route=routes, credit=st.integers(0, 12), drain=st.booleans(), echo=st.booleans())
    def flow(self, route: Route, credit: int, drain: bool, echo: bool) -> None:
        link = route.ends.get(route.receiver)
        if link is None:
            return
        if route.receiver not in route.attached | route.gone:
            with pytest.raises(LocalProtocolError):
                link.flow(credit)
            return
        link.flow(credit, drain=drain, echo=echo)
        route.drain_asked += drain
        route.is_drained = False

    @rule(route=routes)
    def give_credit_back(self, route: Route) -> None:
        link = route.ends.get(route.sender)
        if link is None or route.sender not in route.attached:
            return
        link.drained()
        route.credit = 0

    @precondition(lambda self: any(route.messages for route in self.all_routes))
    @rule(choices=st.lists(st.integers(0, 200), min_size=1, max_size=4), state=STATES, settle=st.booleans())
    def tell_state(self, choices: list[int], state: object, settle: bool) -> None:
        known = [
            (route, message, side)
            for route in self.all_routes
            for message in route.messages
            for side in message.deliveries
        ]
        for choice in choices:
            self._tell_state(*known[choice % len(known)], state, settle)

    def _tell_state(self, route: Route, message: Message, side: Side, state: object, settle: bool) -> None:
        expected = side not in route.gone and not message.has_settled(side)
        link = route.ends[side]
        delivery = message.deliveries[side]
        waits = delivery.delivery_id < 0
        reported = link.settle(delivery, state) if settle else link.update(delivery, state)
        assert reported == expected
        if expected and waits:
            message.carried = (state, settle)
        elif expected:
            message.said[side].append((state, settle))

    @rule(route=routes, side=SIDES, closed=st.booleans(), error=st.none() | st.just(Error("pairbus:bye")), sure=SELDOM)
    def detach(self, route: Route, side: Side, closed: bool, error: Error | None, sure: bool) -> None:
        link = route.ends.get(side)
        if not sure or link is None:
            return
        link.detach(closed=closed, error=error)
        route.attached.add(side)
        route.gone.add(side)

    @precondition(lambda self: self.all_conversations)
    @rule(index=st.integers(0, 4), side=SIDES, sure=SELDOM)
    def end(self, index: int, side: Side, sure: bool) -> None:
        conversation = self.all_conversations[index % len(self.all_conversations)]
        session = conversation.ends.get(side)
        if not sure or session is None:
            return
        session.end()
        self._forget(conversation, side)

    @precondition(lambda self: not self.closed and self.numbers > 5)
    @rule(side=SIDES, sure=SELDOM)
    def close(self, side: Side, sure: bool) -> None:
        if not sure or self.engines[side].local is ConnectionState.START:
            return
        self.engines[side].close()
        self._forget_all(side)

    # What the network may do.

    @rule(side=SIDES)
    def write(self, side: Side) -> None:
        self.pipes[OTHER[side]] += self.engines[side].data_to_send()

    @rule(side=SIDES, size=st.integers(1, 40) | st.integers(1, 4000))
    def deliver(self, side: Side, size: int) -> None:
        pipe = self.pipes[side]
        data = bytes(pipe[:size])
        del pipe[:size]
        for event in self.engines[side].receive_data(data):
            self._note(side, event)

    @rule()
    def deliver_everything_written(self) -> None:
        for side in Side:
            self.write(side)
            self.deliver(OTHER[side], len(self.pipes[OTHER[side]]))

    @rule()
    def fall_silent(self) -> None:
        """Answer and deliver everything, until nothing is left to say."""
        for _ in range(1000):
            while self.unanswered:
                self._answer(*self.unanswered.pop(0))
            for side in Side:
                self.write(side)
            if not any(self.pipes.values()):
                return
            for side in Side:
                self.deliver(side, len(self.pipes[side]))
        raise AssertionError("the engines never fall silent")

    # What the model makes of it.

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _routes_of(self, conversation: Conversation) -> Iterator[Route]:
        return (route for route in self.all_routes if route.conversation is conversation)

    def _note(self, side: Side, event: Event) -> None:
        match event:
            case ConnectionOpened():
                if side is Side.SERVER:
                    self.unanswered.append((side, event))
            case SessionBegun(session=session, begin=begin):
                self._note_begin(side, event, session, begin.properties)
            case LinkAttached(link=link, attach=attach):
                self._note_attach(side, event, link, attach.properties)
            case LinkDetached(link=link):
                assert event.violation is None
                route = self._route_of(link)
                assert side not in route.reported, "a link is reported gone once"
                route.reported.add(side)
                route.gone.add(side)
                assert link.remote is LinkState.DETACHED
            case SessionEnded(session=session):
                assert event.violation is None
                conversation = self._conversation_of(session)
                assert side not in conversation.reported, "a session is reported gone once"
                conversation.reported.add(side)
                self._forget(conversation, side)
            case ConnectionClosed():
                self._forget_all(side)
            case CreditGranted(link=link, credit=credit):
                self._route_of(link).credit = credit
            case LinkDrained(link=link):
                route = self._route_of(link)
                route.drained += 1
                route.is_drained = True
                assert route.drained <= route.drain_asked
            case Delivery():
                self._note_delivery(side, event)
            case DispositionReceived():
                for delivery in event.deliveries:
                    self._heard_of(side, delivery).append((event.state, event.settled))
            case _:
                assert isinstance(event, Authenticated), f"{event} has no cause"

    def _note_begin(self, side: Side, event: Event, session: Session, properties: dict[Any, Any] | None) -> None:
        if any(conversation.ends.get(side) is session for conversation in self.all_conversations):
            return
        assert properties is not None
        conversation = next(known for known in self.all_conversations if known.number == properties[NUMBER])
        conversation.ends[side] = session
        session._next_delivery_id = self.first_delivery_id
        self.unanswered.append((side, event))

    def _note_attach(self, side: Side, event: Event, link: Link, properties: dict[Any, Any] | None) -> None:
        if any(route.ends.get(side) is link for route in self.all_routes):
            return
        assert properties is not None
        route = next(known for known in self.all_routes if known.number == properties[NUMBER])
        assert link.name == route.name
        assert link.role == (SENDER if route.sender is side else RECEIVER)
        route.ends[side] = link
        self.unanswered.append((side, event))

    def _note_delivery(self, side: Side, delivery: Delivery) -> None:
        route = self._route_of(delivery.link)
        assert side is route.receiver
        message = route.messages[route.arrived]
        assert route.went_beyond or not route.is_drained, "nothing comes from a sender that has no credit left"
        assert delivery.payload == message.payload
        assert delivery.delivery_tag == message.tag
        message.deliveries[side] = delivery
        message.heard[side] += self.early.pop(delivery, [])
        route.arrived += 1

    def _conversation_of(self, session: Session) -> Conversation:
        return next(known for known in self.all_conversations if session in known.ends.values())

    def _route_of(self, link: Link) -> Route:
        return next(known for known in self.all_routes if link in known.ends.values())

    def _heard_of(self, side: Side, delivery: Delivery) -> list[Statement]:
        for message in self._route_of(delivery.link).messages:
            if message.deliveries.get(side) is delivery:
                return message.heard[side]
        return self.early.setdefault(delivery, [])

    def _answer(self, side: Side, event: Event, *, refuse: bool = False) -> None:
        match event:
            case ConnectionOpened():
                self.engines[side].open()
            case SessionBegun(session=session):
                session.begin()
            case LinkAttached(link=link):
                route = self._route_of(link)
                if side in route.attached:  # we detached before we answered, so that is answered already
                    return
                route.attached.add(side)
                if refuse:
                    link.refuse(Error("pairbus:refused"))
                    route.gone.add(side)
                else:
                    link.attach()

    def _forget(self, conversation: Conversation, side: Side) -> None:
        conversation.gone.add(side)
        for route in self._routes_of(conversation):
            route.gone.add(side)

    def _forget_all(self, side: Side) -> None:
        self.closed.add(side)
        for conversation in self.all_conversations:
            self._forget(conversation, side)

    # What must hold.

    @invariant()
    def the_sender_knows_its_credit(self) -> None:
        for route in self.all_routes:
            if route.is_up(route.sender):
                assert route.ends[route.sender].credit == route.credit

    @invariant()
    def nothing_is_heard_that_was_not_said(self) -> None:
        for route in self.all_routes:
            for message in route.messages:
                for side in Side:
                    heard = message.heard[side]
                    assert heard == message.said[OTHER[side]][: len(heard)]

    def teardown(self) -> None:
        if not self.engines:
            return
        self.fall_silent()
        for engine in self.engines.values():
            assert engine.is_closed == bool(self.closed)
        if self.closed:
            return
        for route in self.all_routes:  # what waits for credit that was taken back can go now
            if not route.gone and not route.conversation.gone:
                self._check_credit(route)
                self.flow(route, credit=1000, drain=False, echo=False)
        self.fall_silent()
        for conversation in self.all_conversations:
            if conversation.gone:
                assert conversation.reported <= set(Side)
                assert conversation.gone == set(Side)
                for side, session in conversation.ends.items():
                    assert session not in self.engines[side].sessions.values()
                continue
            unsettled = sum(
                not any(message.has_settled(side) for side in Side)
                for route in self._routes_of(conversation)
                if not route.gone
                for message in route.messages
            )
            for session in conversation.ends.values():
                assert session.is_mapped
                assert session.queued == 0
                assert session.unsettled == unsettled
            for route in self._routes_of(conversation):
                self._check(route)

    def _check_credit(self, route: Route) -> None:
        """Check that two ends that have fallen silent agree on what was sent and what may be."""
        sender, receiver = route.ends[route.sender], route.ends[route.receiver]
        assert sender.delivery_count == receiver.delivery_count
        if not route.went_beyond and not sender.queued:
            assert sender.credit == receiver.credit

    def _check(self, route: Route) -> None:
        if route.gone:
            assert route.gone == route.reported == set(Side)
            for side, session in route.conversation.ends.items():
                assert route.ends[side] not in session.links.values()
            return
        sender = route.ends[route.sender]
        receiver = route.ends[route.receiver]
        assert sender.is_attached
        assert receiver.is_attached
        assert route.arrived == len(route.messages), "every message sent arrives"
        self._check_credit(route)
        for message in route.messages:
            for side in Side:
                said = message.said[OTHER[side]]
                if any(settled for _, settled in message.said[side]):
                    continue  # an end that has settled a delivery gets no more dispositions for it
                assert message.heard[side] == said, "every statement reaches the other side"
                reported = [message.carried, *said] if message.carried and side is route.receiver else said
                if reported:
                    assert message.deliveries[side].state == reported[-1][0]
                    assert message.deliveries[side].settled == any(settled for _, settled in reported)


TwoEngines.TestCase.settings = settings(max_examples=times(400), stateful_step_count=50, deadline=None)

TestTwoEnginesAgreeWithTheModel = TwoEngines.TestCase
