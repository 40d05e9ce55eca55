"""Frames as text: every performative is shown, and neither bodies nor secrets are."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Error,
    Modified,
    Open,
    Rejected,
    SaslCode,
    Source,
    Symbol,
    Target,
)
from pairbus.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from pairbus.wire.performatives import (
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Transfer,
)
from pairbus.wire.trace import FrameTrace
from tests.wire.pair import frame

LIMIT = 65_536
SECRET = "nobodyMayReadThis0123456789"  # noqa: S105 (of nobody)


def lines(data: bytes) -> list[str]:
    return FrameTrace(LIMIT).feed(data)


def shown(performative: object, payload: bytes = b"", **options: Any) -> str:
    (line,) = lines(frame(performative, payload=payload, **options))
    return line


@pytest.mark.parametrize(
    ("performative", "text"),
    [
        (Open(container_id="app-1", hostname="h"), "open channel=3 container_id=app-1 hostname=h"),
        (
            Begin(next_outgoing_id=1, incoming_window=2, outgoing_window=3),
            "begin channel=3 next_outgoing_id=1 incoming_window=2 outgoing_window=3",
        ),
        (
            Attach(
                name="a link",
                handle=0,
                role=RECEIVER,
                source=Source(address="orders", filter={Symbol("com.microsoft:session-filter"): "s1"}),
                target=Target(address="here"),
            ),
            (
                'attach channel=3 name="a link" handle=0 role=receiver source=source(address=orders'
                " filter={com.microsoft:session-filter:s1}) target=target(address=here)"
            ),
        ),
        (
            Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3, handle=4, link_credit=5, drain=True),
            "flow channel=3 incoming_window=1 next_outgoing_id=2 outgoing_window=3 handle=4 link_credit=5 drain=true",
        ),
        (
            Disposition(role=SENDER, first=1, last=2, settled=True, state=ACCEPTED),
            "disposition channel=3 role=sender first=1 last=2 settled=true state=accepted",
        ),
        (
            Disposition(role=RECEIVER, first=1, state=Rejected(Error("amqp:not-found", "gone", {"k": SECRET}))),
            (
                "disposition channel=3 role=receiver first=1"
                " state=rejected(error=error(condition=amqp:not-found description=gone info={k}))"
            ),
        ),
        (
            Disposition(role=RECEIVER, first=1, state=Modified(message_annotations={"property": SECRET})),
            "disposition channel=3 role=receiver first=1 state=modified(message_annotations={property})",
        ),
        (Detach(handle=1, closed=True), "detach channel=3 handle=1 closed=true"),
        (End(), "end channel=3"),
        (Close(error=Error("amqp:internal-error")), "close channel=3 error=error(condition=amqp:internal-error)"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_performative_is_shown(performative: object, text: str) -> None:
    assert shown(performative, channel=3) == text


def test_transfer_shows_the_size_of_its_payload_alone() -> None:
    transfer = Transfer(handle=0, delivery_id=7, delivery_tag=b"\x01\x02", message_format=0)
    line = shown(transfer, SECRET.encode())
    assert line == (
        f"transfer channel=0 handle=0 delivery_id=7 delivery_tag=0102 message_format=0 payload_bytes={len(SECRET)}"
    )


def test_sasl_shows_mechanisms_and_outcome_and_no_response() -> None:
    frames = [
        SaslMechanisms(sasl_server_mechanisms=("PLAIN", "MSSBCBS")),
        SaslInit(mechanism="PLAIN", initial_response=b"\0root\0" + SECRET.encode()),
        SaslResponse(response=SECRET.encode()),
        SaslOutcome(code=SaslCode.OK),
    ]
    data = SASL_HEADER + b"".join(frame(each, kind=SASL_FRAME) for each in frames) + AMQP_HEADER
    assert lines(data) == [
        "header protocol=sasl",
        "sasl-mechanisms sasl_server_mechanisms=[PLAIN,MSSBCBS]",
        f"sasl-init mechanism=PLAIN initial_response=<{len(SECRET) + 6} bytes>",
        f"sasl-response response=<{len(SECRET)} bytes>",
        "sasl-outcome code=ok",
        "header protocol=amqp",
    ]


@pytest.mark.parametrize(
    "properties",
    [
        {"token": SECRET},
        {"com.example:Shared-Key": SECRET},
        {"authorization": SECRET},
        {"any": f"SharedAccessSignature sr=x&sig={SECRET}"},
        {"any": f"Bearer {SECRET}"},
        {"any": f"eyJ{SECRET}.eyJ{SECRET}.{SECRET}"},
        {"any": f"Endpoint=sb://h;SharedAccessKey={SECRET}"},
        {"any": SECRET.encode()},
        {"any": {"password": SECRET}},
    ],
    ids=str,
)
def test_secret_in_a_property_is_redacted(properties: dict[str, Any]) -> None:
    line = shown(Open(container_id="app", properties={Symbol(name): value for name, value in properties.items()}))
    assert line.startswith("open channel=0 container_id=app properties=")
    assert SECRET not in line


def test_pieces_of_any_size_give_the_same_lines() -> None:
    data = AMQP_HEADER + frame(Open(container_id="app")) + frame() + frame(End(), channel=1)
    whole = lines(data)
    assert whole == ["header protocol=amqp", "open channel=0 container_id=app", "empty channel=0", "end channel=1"]
    for size in range(1, 12):
        trace = FrameTrace(LIMIT)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [line for piece in pieces for line in trace.feed(piece)] == whole
        assert trace.container == "app"


def test_text_of_a_peer_stays_on_its_line_and_is_shortened() -> None:
    line = shown(Open(container_id="a\nopen channel=9 " + "x" * 5_000))
    assert "\n" not in line
    assert len(line) < 300
    many = {Symbol(f"name-{number}"): "y" * 100 for number in range(200)}
    assert len(shown(Open(container_id="a", properties=many))) < 1_100


def test_large_performative_is_not_decoded() -> None:
    data = frame(Open(container_id="a", properties={Symbol("p"): "x" * 20_000}))
    assert lines(data) == [f"open channel=0 size={len(data)}"]


def test_bytes_that_are_no_frames_end_the_trace() -> None:
    trace = FrameTrace(LIMIT)
    assert trace.feed(b"\0\0\0\x04\x02\0\0\0" + SECRET.encode()) == ["invalid size=4"]
    assert trace.feed(frame(End())) == []
    assert FrameTrace(LIMIT).feed(b"\x7f\0\0\0\x02\0\0\0") == [f"invalid size={0x7F << 24}"]


def test_no_bytes_make_it_raise() -> None:
    random = Random(20)  # noqa: S311 (no secret)
    good = [
        frame(Open(container_id="app", properties={Symbol("p"): [1, 2, {"q": 3}]})),
        frame(Attach(name="n", handle=0, role=SENDER, source=Source(address="a"), target=Target())),
        frame(Transfer(handle=0, delivery_id=1, delivery_tag=b"t"), payload=b"payload"),
        frame(Disposition(role=RECEIVER, first=1, state=Rejected(Error("a:b")))),
    ]
    for _ in range(3_000):
        data = bytearray(random.choice(good))
        for _ in range(random.randint(1, 6)):
            data[random.randrange(4, len(data))] = random.randrange(256)
        for line in lines(bytes(data)):
            assert "\n" not in line
            assert len(line) < 1_200
