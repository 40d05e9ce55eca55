"""A client with nothing in it but the AMQP engine and a socket: what a till in a coffee shop needs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Final, Self
from uuid import uuid4

from pairbus.dialect.connection_string import parse_connection_string
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Configuration,
    Connection,
    Delivery,
    DispositionReceived,
    Event,
    Link,
    LinkDrained,
    Message,
    Properties,
    ReceiverSettleMode,
    Sections,
    SenderSettleMode,
    Source,
    Target,
    encode_message,
    plain,
)

WINDOW: Final = 100
_TIMEOUT_S: Final = 30.0
_CHUNK: Final = 65_536


class Till:
    """One connection to a namespace."""

    def __init__(self, connection_string: str) -> None:
        where = parse_connection_string(connection_string)
        self._socket = socket.create_connection((where.host, where.port or 5672), timeout=_TIMEOUT_S)
        self._engine = Connection(
            Configuration(container_id=f"till-{uuid4().hex[:8]}", hostname=where.host),
            plain(where.key_name or "", where.key or ""),
        )
        self._engine.open()
        self._session = self._engine.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, queue: str, ids: Iterator[str]) -> Iterator[str]:
        """Send messages with these ids; yields each when it is confirmed. Raises ``OSError`` when the line is cut."""
        link = self._session.attach(queue, SENDER, source=Source(address="till"), target=Target(address=queue))
        under_way = 0
        for event in self._events():
            match event:
                case DispositionReceived():
                    for delivery in event.deliveries:
                        under_way -= 1
                        yield delivery.context
            while under_way < WINDOW and link.can_send:
                self._order(link, next(ids))
                under_way += 1

    def _order(self, link: Link, message_id: str) -> None:
        message = Message(properties=Properties(message_id=message_id), body=(b"one espresso",))
        link.send(encode_message(message), tag=message_id.encode()).context = message_id

    def receive(self, queue: str) -> Iterator[str]:
        """Receive and complete what is there; yields the ids, and ends when the queue is empty."""
        link = self._session.attach(
            f"{queue}-out",
            RECEIVER,
            source=Source(address=queue),
            target=Target(address="till"),
            snd_settle_mode=SenderSettleMode.UNSETTLED,
            rcv_settle_mode=ReceiverSettleMode.SECOND,
        )
        link.flow(WINDOW, drain=True)
        received = unsettled = 0
        for event in self._events():
            match event:
                case Delivery():
                    received += 1
                    unsettled += 1
                    yield str(Sections(event.payload).properties().message_id)
                    link.update(event, ACCEPTED)
                case DispositionReceived():
                    unsettled -= len(event.deliveries)
                case LinkDrained():  # that was all there is, or all that was asked for
                    if not received:
                        return
                    received = 0
            if not received and not unsettled:
                link.flow(WINDOW, drain=True)

    def _events(self) -> Iterator[Event]:
        while True:
            self._socket.sendall(self._engine.data_to_send())
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionError("the namespace has hung up")
            yield from self._engine.receive_data(data)
