"""Authentication: every mechanism, every outcome, and what comes too early or too late."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.wire import (
    ANONYMOUS,
    EXTERNAL,
    MSSBCBS,
    PLAIN,
    SENDER,
    Attach,
    Authenticated,
    Begin,
    Configuration,
    ConnectionOpened,
    Open,
    ProtocolError,
    SaslClient,
    SaslCode,
    SaslServer,
    accept_anonymous,
    anonymous,
    external,
    parse_plain,
    plain,
)
from pairbus.wire.errors import (
    AuthenticationError,
    DecodeError,
    FramingError,
    IllegalStateError,
    InvalidFieldError,
    UnknownPerformativeError,
)
from pairbus.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from pairbus.wire.performatives import (
    Close,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from tests.wire.pair import ConnectionPair, Heard, ScriptedPeer, Side, frame


def sasl(performative: object) -> bytes:
    return frame(performative, kind=SASL_FRAME)


def said(performative: object) -> Heard:
    """Return the bytes of an engine that sends this."""
    return Heard(0, performative, b"", SASL_FRAME)


def check_password(mechanism: str, response: bytes) -> SaslCode:
    """Judge a name and a password, as an application would write it."""
    name, password = parse_plain(response)
    return SaslCode.OK if (name, password) == ("ada", "s3cret") else SaslCode.AUTH


def server_with(
    *mechanisms: str,
    authenticate: Callable[[str, bytes], SaslCode | bytes] = accept_anonymous,
    required: bool = True,
) -> ScriptedPeer:
    """A server engine whose client is the test."""
    server = SaslServer(mechanisms=mechanisms or (ANONYMOUS,), authenticate=authenticate, required=required)
    return ScriptedPeer(Side.SERVER, sasl=server)


def client_with(client: SaslClient) -> ScriptedPeer:
    """A client engine, which has begun to speak, whose server is the test."""
    peer = ScriptedPeer(Side.CLIENT, Configuration(container_id="client", hostname="host"), sasl=client)
    peer.engine.open()
    assert peer.heard() == [SASL_HEADER]
    return peer


# Two engines.


@pytest.mark.parametrize(
    ("client", "server", "response"),
    [
        (anonymous(), SaslServer(), b""),
        (SaslClient(mechanism=MSSBCBS), SaslServer(mechanisms=(MSSBCBS, PLAIN, ANONYMOUS)), b""),
        (plain("ada", "s3cret"), SaslServer(mechanisms=(PLAIN,), authenticate=check_password), b"\0ada\0s3cret"),
        (
            external("ada"),
            SaslServer(mechanisms=(ANONYMOUS, EXTERNAL), authenticate=lambda _, who: SaslCode(who != b"ada")),
            b"ada",
        ),
    ],
    ids=["anonymous", "MSSBCBS", "plain", "external"],
)
def test_both_ends_report_authentication(client: SaslClient, server: SaslServer, response: bytes) -> None:
    pair = ConnectionPair(sasl_client=client, sasl_server=server)
    pair.open()
    assert pair.client_events[0] == pair.server_events[0] == Authenticated(client.mechanism, response)
    assert pair.client.is_open
    assert pair.server.is_open


def test_wrong_password_fails_on_both_ends() -> None:
    pair = ConnectionPair(
        sasl_client=plain("ada", "guess"),
        sasl_server=SaslServer(mechanisms=(PLAIN,), authenticate=check_password),
    )
    pair.client.open()
    pair.server.receive_data(pair.client.data_to_send())
    pair.client.receive_data(pair.server.data_to_send())
    with pytest.raises(AuthenticationError, match="PLAIN was refused with AUTH"):
        pair.server.receive_data(pair.client.data_to_send())
    with pytest.raises(AuthenticationError, match="the peer refused PLAIN with AUTH"):
        pair.client.receive_data(pair.server.data_to_send())
    for engine in (pair.client, pair.server):
        assert engine.is_closed
        assert engine.data_to_send() == b"", "an unauthenticated peer gets nothing more"


def test_challenges_are_answered_until_success() -> None:
    asked: list[bytes] = []

    def authenticate(mechanism: str, response: bytes) -> SaslCode | bytes:
        asked.append(response)
        return SaslCode.OK if len(asked) == 4 else b"%d?" % len(asked)

    client = SaslClient(mechanism="STEPS", initial_response=b"hello", respond=lambda challenge: b"re: " + challenge)
    pair = ConnectionPair(sasl_client=client, sasl_server=SaslServer(mechanisms=("STEPS",), authenticate=authenticate))
    pair.open()
    assert asked == [b"hello", b"re: 1?", b"re: 2?", b"re: 3?"]
    assert pair.server_events[0] == Authenticated("STEPS", b"re: 3?")
    assert pair.client_events[0] == Authenticated("STEPS", b"hello")
    assert pair.client.is_open


# The server.


def test_server_offers_mechanisms_in_order() -> None:
    peer = server_with(MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL)
    peer.say(SASL_HEADER)
    offer = SaslMechanisms(sasl_server_mechanisms=(MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL))
    assert peer.heard() == [SASL_HEADER, said(offer)]


@pytest.mark.parametrize("response", [None, b"", b"\0RootManageSharedAccessKey"])
def test_anonymous_response_may_be_anything(response: bytes | None) -> None:
    peer = server_with()
    (event,) = peer.say(SASL_HEADER, sasl(SaslInit(mechanism=ANONYMOUS, initial_response=response)))
    assert event == Authenticated(ANONYMOUS, response or b"")
    assert peer.heard()[-1] == said(SaslOutcome(code=SaslCode.OK))


def test_early_init_is_accepted() -> None:
    peer = server_with()
    events = peer.say(SASL_HEADER, sasl(SaslInit(mechanism=ANONYMOUS)), AMQP_HEADER, frame(Open(container_id="eager")))
    assert [type(event) for event in events] == [Authenticated, ConnectionOpened]
    kinds = [one if isinstance(one, bytes) else type(one.body) for one in peer.heard()]
    assert kinds == [SASL_HEADER, SaslMechanisms, SaslOutcome, AMQP_HEADER]


def test_unoffered_mechanism_is_rejected() -> None:
    def never(mechanism: str, response: bytes) -> SaslCode:
        raise AssertionError("the function must not be called")

    peer = server_with(ANONYMOUS, authenticate=never)
    with pytest.raises(AuthenticationError):
        peer.say(SASL_HEADER, sasl(SaslInit(mechanism=PLAIN, initial_response=b"\0ada\0s3cret")))
    assert peer.heard()[-1] == said(SaslOutcome(code=SaslCode.AUTH))
    assert peer.engine.is_closed


@pytest.mark.parametrize(
    "response", [b"", b"ada", b"\0ada", b"\0ada\0s3cret\0more", b"\0\xff\0s3cret", b"\0ada\0\xff", None]
)
def test_malformed_plain_response_is_rejected(response: bytes | None) -> None:
    peer = server_with(PLAIN, authenticate=check_password)
    with pytest.raises(AuthenticationError):
        peer.say(SASL_HEADER, sasl(SaslInit(mechanism=PLAIN, initial_response=response)))
    assert peer.heard()[-1] == said(SaslOutcome(code=SaslCode.AUTH)), "the client gets the outcome"
    assert peer.engine.is_closed


@pytest.mark.parametrize("code", [code for code in SaslCode if code is not SaslCode.OK])
def test_client_gets_refusal_code(code: SaslCode) -> None:
    peer = server_with(ANONYMOUS, authenticate=lambda *_: code)
    with pytest.raises(AuthenticationError, match=code.name) as caught:
        peer.say(SASL_HEADER, sasl(SaslInit(mechanism=ANONYMOUS)))
    assert caught.value.condition == "amqp:unauthorized-access"
    assert caught.value.events == []
    assert peer.heard()[-1] == said(SaslOutcome(code=code)), "and nothing after it"
    assert peer.engine.is_closed
    assert peer.say(AMQP_HEADER) == []


def test_skipped_sasl_is_rejected_with_header() -> None:
    peer = server_with()
    with pytest.raises(FramingError):
        peer.say(AMQP_HEADER, frame(Open(container_id="rude")))
    assert peer.heard() == [SASL_HEADER]
    assert peer.engine.is_closed


@pytest.mark.parametrize("skip", [True, False])
def test_optional_sasl_may_be_skipped(skip: bool) -> None:
    peer = server_with(required=False)
    if not skip:
        peer.say(SASL_HEADER, sasl(SaslInit(mechanism=ANONYMOUS)))
    events = peer.say(AMQP_HEADER, frame(Open(container_id="client")))
    assert [type(event) for event in events] == [ConnectionOpened]
    peer.engine.open()
    assert peer.engine.is_open


@pytest.mark.parametrize(
    "header", [b"GET / HT", b"AMQP\x00\x00\x09\x01", b"AMQP\x02\x01\x00\x00", b"\x16\x03\x01\x02\0\0\0\0"]
)
def test_other_protocol_is_answered_with_supported_header(header: bytes) -> None:
    for peer, right in ((server_with(), SASL_HEADER), (ScriptedPeer(Side.SERVER), AMQP_HEADER)):
        with pytest.raises(FramingError):
            peer.say(header)
        assert peer.heard() == [right]
        assert peer.engine.is_closed


def test_server_without_sasl_rejects_sasl() -> None:
    peer = ScriptedPeer(Side.SERVER)
    with pytest.raises(FramingError):
        peer.say(SASL_HEADER)
    assert peer.heard() == [AMQP_HEADER]


# The client.


def test_client_sends_hostname_and_response() -> None:
    peer = client_with(plain("ada", "s3cret"))
    peer.say(SASL_HEADER, sasl(SaslMechanisms(sasl_server_mechanisms=(ANONYMOUS, PLAIN))))
    init = SaslInit(mechanism=PLAIN, initial_response=b"\0ada\0s3cret", hostname="host")
    assert peer.heard() == [said(init)]


def test_single_mechanism_may_lack_array() -> None:
    peer = client_with(anonymous())
    peer.say(SASL_HEADER, frame(payload=b"\x00\x53\x40\xc0\x0c\x01\xa3\x09ANONYMOUS", kind=SASL_FRAME))
    assert isinstance(peer.heard()[0].body, SaslInit)


@pytest.mark.parametrize("offered", [(), (PLAIN, EXTERNAL), tuple(f"MECHANISM-{number}" for number in range(100))])
def test_client_fails_without_common_mechanism(offered: tuple[str, ...]) -> None:
    peer = client_with(anonymous())
    peer.engine.begin()
    with pytest.raises(AuthenticationError, match="ANONYMOUS"):
        peer.say(SASL_HEADER, sasl(SaslMechanisms(sasl_server_mechanisms=offered)))
    assert peer.heard() == [], "what was held back never leaves"
    assert peer.engine.is_closed


def test_unanswerable_challenge_ends_exchange() -> None:
    peer = client_with(anonymous())
    peer.say(SASL_HEADER, sasl(SaslMechanisms(sasl_server_mechanisms=(ANONYMOUS,))))
    peer.heard()
    with pytest.raises(AuthenticationError):
        peer.say(sasl(SaslChallenge(challenge=b"who?")))
    assert peer.heard() == []


@pytest.mark.parametrize("code", [code for code in SaslCode if code is not SaslCode.OK])
def test_every_outcome_but_ok_ends_connection(code: SaslCode) -> None:
    peer = client_with(anonymous())
    with pytest.raises(AuthenticationError, match=code.name):
        peer.say(
            SASL_HEADER,
            sasl(SaslMechanisms(sasl_server_mechanisms=(ANONYMOUS,))),
            sasl(SaslOutcome(code=code, additional_data=b"sorry")),
        )
    assert [type(heard.body) for heard in peer.heard()] == [SaslInit]
    assert peer.engine.is_closed


def test_server_that_skips_sasl_is_rejected() -> None:
    peer = client_with(plain("ada", "s3cret"))
    with pytest.raises(FramingError):
        peer.say(AMQP_HEADER, frame(Open(container_id="server")))
    assert peer.heard() == [], "neither the password nor what was held back leaves"


def test_client_without_sasl_does_not_start_it() -> None:
    peer = ScriptedPeer(Side.CLIENT)
    peer.engine.open()
    with pytest.raises(FramingError):
        peer.say(SASL_HEADER)


def test_early_frames_wait_for_outcome_in_order() -> None:
    peer = client_with(anonymous())
    session = peer.engine.begin()
    session.attach("orders", SENDER)
    assert peer.heard() == []
    peer.say(SASL_HEADER, sasl(SaslMechanisms(sasl_server_mechanisms=(ANONYMOUS,))))
    assert [type(heard.body) for heard in peer.heard()] == [SaslInit]
    session.attach("answers", SENDER)
    assert peer.heard() == []
    (event,) = peer.say(sasl(SaslOutcome(code=SaslCode.OK)))
    assert event == Authenticated(ANONYMOUS, b"")
    header, *frames = peer.heard()
    assert header == AMQP_HEADER
    assert [type(heard.body) for heard in frames] == [Open, Begin, Attach, Attach]
    assert [heard.body.name for heard in frames[2:]] == ["orders", "answers"]
    session.attach("more", SENDER)
    assert [heard.body.name for heard in peer.heard()] == ["more"]


def test_early_frames_arrive_in_order_if_taken_late() -> None:
    peer = ScriptedPeer(Side.CLIENT, sasl=anonymous())
    peer.engine.open()
    peer.engine.begin()
    peer.say(
        SASL_HEADER,
        sasl(SaslMechanisms(sasl_server_mechanisms=(ANONYMOUS,))),
        sasl(SaslOutcome(code=SaslCode.OK)),
    )
    kinds = [heard if isinstance(heard, bytes) else type(heard.body) for heard in peer.heard()]
    assert kinds == [SASL_HEADER, SaslInit, AMQP_HEADER, Open, Begin]


def test_client_closing_before_outcome_sends_close() -> None:
    peer = client_with(anonymous())
    peer.engine.close()
    assert peer.heard() == []
    peer.say(
        SASL_HEADER,
        sasl(SaslMechanisms(sasl_server_mechanisms=(ANONYMOUS,))),
        sasl(SaslOutcome(code=SaslCode.OK)),
    )
    kinds = [heard if isinstance(heard, bytes) else type(heard.body) for heard in peer.heard()]
    assert kinds == [SaslInit, AMQP_HEADER, Open, Close]


# Too early, too late, and malformed.


def exchanges() -> list[tuple[ScriptedPeer, bytes]]:
    """A server and a client in the middle of an exchange, each with a frame that would be right."""
    server = server_with()
    server.say(SASL_HEADER)
    client = client_with(anonymous())
    client.say(SASL_HEADER)
    offer = SaslMechanisms(sasl_server_mechanisms=(ANONYMOUS,))
    return [(server, sasl(SaslInit(mechanism=ANONYMOUS))), (client, sasl(offer))]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (frame(Open(container_id="early")), FramingError),
        (frame(), FramingError),
        (frame(SaslInit(mechanism=ANONYMOUS), kind=2), FramingError),
        (frame(kind=SASL_FRAME), DecodeError),
        (frame(kind=SASL_FRAME, doff=1), FramingError),
        (frame(payload=b"\x41", kind=SASL_FRAME), DecodeError),
        (frame(Open(container_id="early"), kind=SASL_FRAME), IllegalStateError),
        (frame(payload=b"\x00\x53\x45\x45", kind=SASL_FRAME), UnknownPerformativeError),
        (frame(payload=b"\x00\x53\x41\x45", kind=SASL_FRAME), InvalidFieldError),
        (frame(payload=b"\x00\x53\x44\xc0\x03\x01\x50\x05", kind=SASL_FRAME), InvalidFieldError),
        (frame(SaslResponse(response=b""), kind=SASL_FRAME, payload=b"\x40"), DecodeError),
        (b"\x00\x00\x00\x07\x02\x01\x00\x00", FramingError),
        (b"\x7f\x00\x00\x00\x02\x01\x00\x00", FramingError),
    ],
    ids=[
        "an AMQP frame",
        "an empty AMQP frame",
        "a frame of no type",
        "an empty SASL frame",
        "a frame without a body",
        "a body that is not described",
        "open in a SASL frame",
        "an unknown performative",
        "init without a mechanism",
        "an outcome that does not exist",
        "bytes after the performative",
        "a frame that is too small",
        "a frame that is too large",
    ],
)
def test_unexpected_frame_ends_exchange(data: bytes, error: type[ProtocolError]) -> None:
    for peer, _ in exchanges():
        peer.heard()
        with pytest.raises(ProtocolError) as caught:
            peer.say(data)
        assert type(caught.value) is error
        assert peer.engine.is_closed
        assert peer.heard() == [], "an unauthenticated peer gets no answer"


def test_sasl_frame_after_exchange_is_not_a_header() -> None:
    peer = server_with()
    peer.say(SASL_HEADER, sasl(SaslInit(mechanism=ANONYMOUS)))
    with pytest.raises(FramingError):
        peer.say(sasl(SaslInit(mechanism=ANONYMOUS)))


@pytest.mark.parametrize("header", [SASL_HEADER, b"AMQP\x00\x00\x09\x01"])
def test_only_amqp_follows_exchange(header: bytes) -> None:
    peer = server_with()
    peer.say(SASL_HEADER, sasl(SaslInit(mechanism=ANONYMOUS)))
    with pytest.raises(FramingError):
        peer.say(header)
    assert peer.engine.is_closed


def test_sasl_frame_after_open_ends_connection() -> None:
    peer = server_with()
    peer.say(SASL_HEADER, sasl(SaslInit(mechanism=ANONYMOUS)), AMQP_HEADER, frame(Open(container_id="client")))
    peer.engine.open()
    peer.heard()
    with pytest.raises(FramingError):
        peer.say(sasl(SaslInit(mechanism=ANONYMOUS)))
    (heard,) = peer.heard()
    assert heard.body.error.condition == "amqp:connection:framing-error"


def test_exchange_works_byte_by_byte() -> None:
    for peer, data in exchanges():
        peer.heard()
        for octet in data:
            peer.say(bytes([octet]))
        assert isinstance(peer.heard()[0].body, SaslOutcome if peer.side is Side.SERVER else SaslInit)


# Passwords.


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    st.text(st.characters(exclude_characters="\0", codec="utf-8")),
)
def test_plain_response_round_trips(name: str, password: str) -> None:
    assert parse_plain(plain(name, password).initial_response) == (name, password)


def test_plain_may_have_authorization_id() -> None:
    assert parse_plain(b"someone else\0ada\0s3cret") == ("ada", "s3cret")


def test_only_empty_claims_are_anonymous() -> None:
    assert [accept_anonymous(mechanism, b"") for mechanism in (ANONYMOUS, MSSBCBS, PLAIN, EXTERNAL)] == [
        SaslCode.OK,
        SaslCode.OK,
        SaslCode.AUTH,
        SaslCode.AUTH,
    ]


def test_external_may_have_empty_response() -> None:
    assert external() == SaslClient(mechanism=EXTERNAL, initial_response=b"")
