"""Every pair of a state and a frame, against real engines: what the tables allow happens, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from itertools import product
from typing import Any, Final

import pytest

from pairbus.wire import (
    ACCEPTED,
    ANONYMOUS,
    RECEIVER,
    SENDER,
    Attach,
    Authenticated,
    Begin,
    Configuration,
    Link,
    LinkAttached,
    LinkDetached,
    Open,
    ProtocolError,
    SaslClient,
    SaslCode,
    SaslServer,
    Session,
    SessionBegun,
    SessionEnded,
)
from pairbus.wire.errors import (
    FramingError,
    HandleInUseError,
    IllegalStateError,
    UnattachedHandleError,
)
from pairbus.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, FrameWriter
from pairbus.wire.performatives import (
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Transfer,
)
from pairbus.wire.sasl import SaslExchange
from pairbus.wire.states import (
    CONNECTION,
    LINK,
    SASL,
    SESSION,
    ConnectionState,
    Frame,
    LinkState,
    SaslFrame,
    SaslState,
    SessionState,
)
from tests.wire.pair import ScriptedPeer, Side, frame

HANDLE: Final = 5
CHANNEL: Final = ScriptedPeer.FIRST_CHANNEL


def inputs_of(table: Mapping[tuple[int, int], IntEnum]) -> list[Any]:
    """The frames that a table says anything about, in their order."""
    return sorted({given for _, given in table})


def performative_of(kind: Frame, role: bool = RECEIVER) -> object:
    """A valid performative of each kind; for a link of which the engine has ``role``."""
    match kind:
        case Frame.EMPTY:
            return None
        case Frame.OPEN:
            return Open(container_id="peer")
        case Frame.BEGIN:
            return Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
        case Frame.ATTACH:
            count = 0 if role == RECEIVER else None
            return Attach(name="link", handle=HANDLE, role=not role, initial_delivery_count=count)
        case Frame.FLOW:
            return Flow(incoming_window=10, next_outgoing_id=0, outgoing_window=10, handle=HANDLE)
        case Frame.TRANSFER:
            return Transfer(HANDLE, 0, b"tag", 0, False)
        case Frame.DISPOSITION:
            return Disposition(not role, 0, None, True, ACCEPTED)
        case Frame.DETACH:
            return Detach(handle=HANDLE, closed=True)
        case Frame.END:
            return End()
        case Frame.CLOSE:
            return Close()
    raise NotImplementedError(f"nothing is known about {kind.name}: teach this test")


def bytes_of(kind: Frame, channel: int = CHANNEL, role: bool = RECEIVER) -> bytes:
    return AMQP_HEADER if kind is Frame.HEADER else frame(performative_of(kind, role), channel=channel)


@pytest.mark.parametrize(
    ("table", "states", "first"),
    [
        (CONNECTION, ConnectionState, ConnectionState.START),
        (SESSION, SessionState, SessionState.UNMAPPED),
        (LINK, LinkState, LinkState.UNATTACHED),
        (SASL, SaslState, SaslState.START),
    ],
)
def test_every_state_is_reachable_and_every_frame_is_used(
    table: dict[tuple[int, int], IntEnum], states: type[IntEnum], first: IntEnum
) -> None:
    reached = {first}
    for _ in states:
        reached |= {after for (before, _), after in table.items() if before in reached}
    assert reached == set(states)
    assert {before for before, _ in table} <= set(states)
    if table is CONNECTION:
        assert inputs_of(table) == sorted(Frame), "every frame is allowed in some state"
    if table is SASL:
        assert inputs_of(table) == sorted(SaslFrame)


# Connections.


def in_connection_state(state: ConnectionState, side: Side) -> ScriptedPeer:
    """Bring an engine to where its peer's end is in ``state``; where there is a session, it is on ``CHANNEL``."""
    peer = ScriptedPeer(side, Configuration(container_id="engine", handle_max=9))
    if side is Side.CLIENT:
        peer.engine.open()
    match state:
        case ConnectionState.START:
            pass
        case ConnectionState.HEADER:
            peer.say(AMQP_HEADER)
        case ConnectionState.OPENED | ConnectionState.CLOSED:
            peer.say(AMQP_HEADER, frame(Open(container_id="peer")))
            peer.engine.open()
            peer.attach(peer.begin(), "link", RECEIVER)
            if state is ConnectionState.CLOSED:
                peer.close()
    peer.heard()
    assert peer.engine.remote is state
    return peer


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("state", "given"), list(product(ConnectionState, Frame)), ids=lambda value: value.name)
def test_connection_accepts_what_its_table_allows(state: ConnectionState, given: Frame, side: Side) -> None:
    peer = in_connection_state(state, side)
    # The session exists on one channel and a new one begins on the next.
    data = bytes_of(given, CHANNEL + 1 if given is Frame.BEGIN else CHANNEL)
    if (state, given) in CONNECTION:
        peer.say(data)
        assert peer.engine.remote is CONNECTION[state, given]
        assert peer.engine.is_closed == (given is Frame.CLOSE)
    elif state is ConnectionState.CLOSED:
        assert peer.say(data) == [], "frames after close are ignored"
        assert peer.heard() == []
        assert peer.engine.remote is ConnectionState.CLOSED
    else:
        # Where a header is expected, a frame cannot be one, and the other way round.
        expected = FramingError if state is ConnectionState.START or given is Frame.HEADER else IllegalStateError
        with pytest.raises(ProtocolError) as caught:
            peer.say(data)
        assert type(caught.value) is expected
        assert peer.engine.is_closed
        assert peer.engine.remote is ConnectionState.CLOSED
        assert_error_sent(peer, expected, side)


def assert_error_sent(peer: ScriptedPeer, error: type[ProtocolError], side: Side) -> None:
    """Check that the engine wrote one close with the error's condition, or only a header to a peer that sent none."""
    heard = peer.heard()
    if heard and heard[0] == AMQP_HEADER:
        assert side is Side.SERVER
        assert heard == [AMQP_HEADER]
        return
    assert isinstance(heard[-1].body, Close)
    assert heard[-1].body.error is not None
    assert heard[-1].body.error.condition == error.condition
    assert [type(one.body) for one in heard[:-1]] in ([], [Open])


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("given", Frame, ids=lambda value: value.name)
def test_closed_connection_ignores_frames_until_close(given: Frame, side: Side) -> None:
    peer = in_connection_state(ConnectionState.OPENED, side)
    peer.engine.close()
    assert len(peer.heard()) == 1
    if (ConnectionState.OPENED, given) in CONNECTION:
        events = peer.say(bytes_of(given))
        assert len(events) == (given is Frame.CLOSE)
    else:
        with pytest.raises(ProtocolError):
            peer.say(bytes_of(given))
    assert peer.heard() == [], "nothing comes after close"


# Sessions.


def in_session_state(state: SessionState, side: Side) -> tuple[ScriptedPeer, Session | None]:
    """Bring an engine to where the peer's end of the session on ``CHANNEL`` is in ``state``."""
    peer = ScriptedPeer(side).open()
    session: Session | None = None
    if state is SessionState.UNMAPPED:
        session = peer.engine.begin() if side is Side.CLIENT else None
    else:
        session = peer.begin()
        peer.attach(session, "link", RECEIVER)
        if state is SessionState.ENDED:
            peer.end(session)
    peer.heard()
    assert session is None or session.remote is state
    return peer, session


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(
    ("state", "given"), list(product(SessionState, inputs_of(SESSION))), ids=lambda value: value.name
)
def test_session_accepts_what_its_table_allows(state: SessionState, given: Frame, side: Side) -> None:
    peer, session = in_session_state(state, side)
    answers = side is Side.CLIENT and state is SessionState.UNMAPPED and session is not None
    if given is Frame.BEGIN and answers and session is not None:
        begin = Begin(remote_channel=session.channel, next_outgoing_id=0, incoming_window=10, outgoing_window=10)
        data = frame(begin, channel=CHANNEL)
    elif given is Frame.ATTACH:
        data = frame(Attach(name="other", handle=6, role=SENDER, initial_delivery_count=0), channel=CHANNEL)
    else:
        data = bytes_of(given)
    # A channel whose session has ended is free for the next one.
    before = SessionState.UNMAPPED if state is SessionState.ENDED else state
    if (before, given) in SESSION:
        events = peer.say(data)
        if given is Frame.BEGIN:
            (event,) = events
            assert isinstance(event, SessionBegun)
            assert (event.session is session) == answers
            session = event.session
        assert session is not None
        assert session.remote is SESSION[before, given]
        assert not any(isinstance(event, SessionEnded) and event.violation for event in events)
        return
    with pytest.raises(IllegalStateError):
        peer.say(data)
    assert_error_sent(peer, IllegalStateError, side)
    assert session is None or session.remote is SessionState.ENDED


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("given", inputs_of(SESSION), ids=lambda value: value.name)
def test_ended_session_ignores_frames_until_end(given: Frame, side: Side) -> None:
    peer, session = in_session_state(SessionState.MAPPED, side)
    assert session is not None
    session.end()
    assert len(peer.heard()) == 1
    if (SessionState.MAPPED, given) in SESSION:
        events = peer.say(bytes_of(given))
        assert [type(event) for event in events] == ([SessionEnded] if given is Frame.END else [])
        assert session.remote is SESSION[SessionState.MAPPED, given]
        assert peer.heard() == [], "nothing comes after end"
    else:
        with pytest.raises(IllegalStateError):
            peer.say(bytes_of(given))


# Links.


def in_link_state(state: LinkState, side: Side, role: bool) -> tuple[ScriptedPeer, Session, Link | None]:
    """Bring an engine to where the peer's end of the link with ``HANDLE`` is in ``state``."""
    peer = ScriptedPeer(side).open()
    session = peer.begin()
    link: Link | None = None
    if state is LinkState.UNATTACHED:
        link = session.attach("link", role) if side is Side.CLIENT else None
    else:
        link = peer.attach(session, "link", role)
        assert link.remote_handle == HANDLE
        if state is LinkState.DETACHED:
            peer.detach(session, link)
    peer.heard()
    assert link is None or link.remote is state
    return peer, session, link


LINK_PAIRS: Final = [
    pytest.param(state, given, role, id=f"{state.name}-{given.name}-{'receiver' if role else 'sender'}")
    for state, given, role in product(LinkState, inputs_of(LINK), (SENDER, RECEIVER))
    if given is not Frame.TRANSFER or role == RECEIVER  # who may send is not a matter of states
]


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("state", "given", "role"), LINK_PAIRS)
def test_link_accepts_what_its_table_allows(state: LinkState, given: Frame, role: bool, side: Side) -> None:
    peer, session, link = in_link_state(state, side, role)
    answers = side is Side.CLIENT and state is LinkState.UNATTACHED
    events = peer.say(bytes_of(given, role=role))
    # A handle whose link is detached is free for the next one.
    before = LinkState.UNATTACHED if state is LinkState.DETACHED else state
    if (before, given) in LINK:
        if given is Frame.ATTACH:
            (event,) = events
            assert isinstance(event, LinkAttached)
            assert (event.link is link) == answers
            link = event.link
        assert link is not None
        assert link.remote is LINK[before, given]
        assert not any(isinstance(event, (SessionEnded, LinkDetached)) and event.violation for event in events)
        assert session.is_mapped
        return
    (ended,) = events
    assert isinstance(ended, SessionEnded)
    assert type(ended.violation) is (HandleInUseError if given is Frame.ATTACH else UnattachedHandleError)
    (heard,) = peer.heard()
    assert isinstance(heard.body, End)
    assert heard.body.error is not None
    assert heard.body.error.condition == ended.violation.condition
    assert link is None or link.remote is LinkState.DETACHED


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("given", inputs_of(LINK), ids=lambda value: value.name)
def test_detached_link_ignores_frames_until_detach(given: Frame, side: Side) -> None:
    peer, session, link = in_link_state(LinkState.ATTACHED, side, RECEIVER)
    assert link is not None
    link.detach()
    assert len(peer.heard()) == 1
    events = peer.say(bytes_of(given))
    if (LinkState.ATTACHED, given) in LINK:
        assert [type(event) for event in events] == ([LinkDetached] if given is Frame.DETACH else [])
        assert link.remote is LINK[LinkState.ATTACHED, given]
        assert peer.heard() == [], "nothing comes after detach"
        assert session.is_mapped
    else:
        (ended,) = events
        assert isinstance(ended, SessionEnded)
        assert type(ended.violation) is HandleInUseError


# Authentication.

SASL_PERFORMATIVES: Final[dict[SaslFrame, object]] = {
    SaslFrame.MECHANISMS: SaslMechanisms(sasl_server_mechanisms=(ANONYMOUS,)),
    SaslFrame.INIT: SaslInit(mechanism=ANONYMOUS),
    SaslFrame.CHALLENGE: SaslChallenge(challenge=b"who?"),
    SaslFrame.RESPONSE: SaslResponse(response=b"me"),
    SaslFrame.OUTCOME: SaslOutcome(code=SaslCode.OK),
}
FROM_CLIENT: Final = {SaslFrame.INIT, SaslFrame.RESPONSE}
ANSWERS: Final = {
    SaslFrame.MECHANISMS: SaslFrame.INIT,
    SaslFrame.INIT: SaslFrame.OUTCOME,
    SaslFrame.CHALLENGE: SaslFrame.RESPONSE,
    SaslFrame.RESPONSE: SaslFrame.OUTCOME,
}
"""The immediate responses of an engine."""

SASL_SERVER: Final = SaslServer(mechanisms=(ANONYMOUS,))
SASL_CLIENT: Final = SaslClient(mechanism=ANONYMOUS, respond=lambda challenge: challenge)


def is_heard_by(side: Side, given: SaslFrame) -> bool:
    return (given in FROM_CLIENT) == (side is Side.SERVER)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("state", "given"), list(product(SaslState, SaslFrame)), ids=lambda value: value.name)
def test_exchange_accepts_what_its_table_allows(state: SaslState, given: SaslFrame, side: Side) -> None:
    exchange = SaslExchange(SASL_SERVER if side is Side.SERVER else SASL_CLIENT, None, FrameWriter())
    exchange._mechanism = ANONYMOUS
    exchange.state = state
    if (state, given) in SASL and is_heard_by(side, given):
        after = SASL[state, given]
        authenticated = exchange.receive(SASL_PERFORMATIVES[given])
        assert exchange.state is (SASL[after, ANSWERS[given]] if given in ANSWERS else after)
        assert (authenticated is not None) == (exchange.state is SaslState.DONE)
    else:
        with pytest.raises(IllegalStateError):
            exchange.receive(SASL_PERFORMATIVES[given])
        assert exchange.state is state


def sasl_frame(given: SaslFrame) -> bytes:
    return frame(SASL_PERFORMATIVES[given], kind=SASL_FRAME)


SAID: Final[dict[tuple[Side, SaslState], list[bytes]]] = {
    (Side.SERVER, SaslState.START): [],
    (Side.SERVER, SaslState.OFFERED): [SASL_HEADER],
    (Side.SERVER, SaslState.CHALLENGED): [SASL_HEADER, sasl_frame(SaslFrame.INIT)],
    (Side.SERVER, SaslState.DONE): [SASL_HEADER, sasl_frame(SaslFrame.INIT), sasl_frame(SaslFrame.RESPONSE)],
    (Side.CLIENT, SaslState.START): [SASL_HEADER],
    (Side.CLIENT, SaslState.STEPPING): [SASL_HEADER, sasl_frame(SaslFrame.MECHANISMS)],
    (Side.CLIENT, SaslState.DONE): [SASL_HEADER, sasl_frame(SaslFrame.MECHANISMS), sasl_frame(SaslFrame.OUTCOME)],
}
"""The steps that bring an engine into a state in which it waits; in the missing states the other side acts."""


def in_sasl_state(state: SaslState, side: Side) -> ScriptedPeer:
    challenging = SaslServer(mechanisms=(ANONYMOUS,), authenticate=lambda _, said: SaslCode.OK if said else b"who?")
    peer = ScriptedPeer(side, sasl=challenging if side is Side.SERVER else SASL_CLIENT)
    if side is Side.CLIENT:
        peer.engine.open()
    peer.say(*SAID[side, state])
    peer.heard()
    exchange = peer.engine._exchange
    assert (SaslState.START if exchange is None else exchange.state) is state
    return peer


def test_every_exchange_state_is_used() -> None:
    assert {state for _, state in SAID} == set(SaslState)


SASL_PAIRS: Final = [
    pytest.param(side, state, given, id=f"{side}-{state.name}-{given.name}")
    for (side, state), given in product(SAID, SaslFrame)
]


@pytest.mark.parametrize(("side", "state", "given"), SASL_PAIRS)
def test_engine_accepts_sasl_frames_of_table(side: Side, state: SaslState, given: SaslFrame) -> None:
    peer = in_sasl_state(state, side)
    waits_for_header = state is SaslState.DONE or (side is Side.SERVER and state is SaslState.START)
    if (state, given) in SASL and is_heard_by(side, given):
        events = peer.say(sasl_frame(given))
        after = SASL[state, given]
        exchange = peer.engine._exchange
        assert exchange is not None
        if side is Side.SERVER and given is SaslFrame.INIT:
            assert exchange.state is SASL[after, SaslFrame.CHALLENGE]
        else:
            assert exchange.state is (SASL[after, ANSWERS[given]] if given in ANSWERS else after)
        assert [type(event) for event in events] == ([Authenticated] if exchange.state is SaslState.DONE else [])
        return
    with pytest.raises(ProtocolError) as caught:
        peer.say(sasl_frame(given))
    assert type(caught.value) is (FramingError if waits_for_header else IllegalStateError)
    assert peer.engine.is_closed
