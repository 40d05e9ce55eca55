"""The bytes that every engine of the comparison is fed: a client that opens, attaches and sends messages of 1 KB."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.wire import (
    SENDER,
    Configuration,
    Connection,
    ConnectionOpened,
    Header,
    LinkAttached,
    Message,
    Properties,
    SessionBegun,
    Source,
    Target,
    encode_message,
)

BODY = b"x" * 1024

MESSAGE = encode_message(
    Message(
        header=Header(durable=True, ttl=60_000),
        message_annotations={"x-opt-partition-key": "p1"},
        properties=Properties(
            message_id="0123456789abcdef", subject="order", correlation_id="c-1", content_type="application/json"
        ),
        application_properties={"region": "eu", "n": 5, "ok": True},
        body=(BODY,),
    )
)

ROUND = 100
"""The maximum number of messages that arrive together: those of one read from a busy socket."""


@dataclass(frozen=True)
class Traffic:
    """A recorded client: the handshake, then rounds of transfers."""

    handshake: bytes
    rounds: list[bytes]
    together: int
    """The number of transfers of a round."""


def record(messages: int, together: int = ROUND) -> Traffic:
    """Record a client that sends ``messages`` messages, so many ``together``, to whoever lets it."""
    client = Connection(Configuration(container_id="client", max_frame_size=65536))
    server = Connection(Configuration(container_id="server", incoming_window=2**31 - 1))
    client.open()
    link = client.begin().attach("orders", SENDER, source=Source(address="here"), target=Target(address="orders"))
    handshake = client.data_to_send()
    for event in server.receive_data(handshake):
        match event:
            case ConnectionOpened():
                server.open()
            case SessionBegun(session=session):
                session.begin()
            case LinkAttached(link=receiver):
                receiver.attach(source=Source(address="here"), target=Target(address="orders"))
                receiver.flow(messages)
    client.receive_data(server.data_to_send())
    rounds: list[bytes] = []
    for start in range(0, messages, together):
        for number in range(start, start + together):
            link.send(MESSAGE, tag=number.to_bytes(4, "big"))
        rounds.append(client.data_to_send())
    return Traffic(handshake, rounds, together)
