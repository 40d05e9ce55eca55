"""Two AMQP engines talk to each other in memory, and every step is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from pairbus.wire import (
    ACCEPTED,
    RELEASED,
    SENDER,
    Accepted,
    Configuration,
    Connection,
    ConnectionOpened,
    Delivery,
    DispositionReceived,
    Error,
    Event,
    Link,
    LinkAttached,
    Message,
    Modified,
    Properties,
    Rejected,
    SaslServer,
    Sections,
    SessionBegun,
    Source,
    Target,
    anonymous,
    encode_message,
)

OUTCOMES: dict[str, object] = {
    "espresso": ACCEPTED,
    "decaf": Rejected(Error("demo:not-on-the-menu", "we do not serve that")),
    "lungo": RELEASED,
    "ristretto": Modified(delivery_failed=True),
    "a novel": ACCEPTED,
}
"""What is ordered, and how the server settles it."""


@dataclass
class Tally:
    """What has happened so far."""

    sent: list[Delivery] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    client_bytes: int = 0
    server_bytes: int = 0


class Engines:
    """A client and a server that have nothing between them but two byte strings."""

    def __init__(self) -> None:
        self.client = Connection(Configuration(container_id="demo-client", hostname="contoso"), anonymous())
        self.server = Connection(Configuration(container_id="demo-server"), SaslServer())
        self.tally = Tally()

    def run(self) -> bool:
        """Run the demo; return whether everything that was sent arrived and was settled."""
        self.client.open()
        sender = self.client.begin().attach(
            "orders", SENDER, source=Source(address="till"), target=Target(address="orders")
        )
        self.exchange()
        for name in OUTCOMES:
            self.order(sender, name)
        self.exchange()
        sender.detach()
        self.exchange()
        self.client.close()
        self.exchange()
        return self.report()

    def order(self, sender: Link, name: str) -> None:
        body = name.encode() * (20_000 if name == "a novel" else 1)
        payload = encode_message(Message(properties=Properties(message_id=name), body=(body,)))
        self.tally.sent.append(sender.send(payload, tag=name.encode()))
        say("client", f"sends {name!r}, {len(payload):,} bytes")

    def exchange(self) -> None:
        """Carry bytes to and fro until there are none."""
        while True:
            to_server, to_client = self.client.data_to_send(), self.server.data_to_send()
            if not to_server and not to_client:
                return
            self.tally.client_bytes += len(to_server)
            self.tally.server_bytes += len(to_client)
            for event in self.server.receive_data(to_server):
                self.serve(event)
            for event in self.client.receive_data(to_client):
                self.tell("client", event)

    def serve(self, event: Event) -> None:
        """Do what a server does about each event."""
        self.tell("server", event)
        match event:
            case ConnectionOpened():
                self.server.open()
            case SessionBegun(session=session):
                session.begin()
            case LinkAttached(link=link, attach=attach):
                link.attach(source=attach.source, target=attach.target)
                link.flow(100)
            case Delivery():
                sections = Sections(event.payload)
                self.tally.received.append(sections.data())
                event.link.settle(event, OUTCOMES[str(sections.properties().message_id)])

    def tell(self, who: str, event: Event) -> None:
        match event:
            case Delivery():
                say(who, f"received {len(event.payload):,} bytes")
            case DispositionReceived(deliveries=deliveries, state=state):
                names = ", ".join(repr(delivery.delivery_tag.decode()) for delivery in deliveries)
                say(who, f"{names}: {'accepted' if isinstance(state, Accepted) else state}")
            case _:
                say(who, type(event).__name__)

    def report(self) -> bool:
        tally = self.tally
        settled = sum(delivery.settled for delivery in tally.sent)
        lost = len(tally.sent) - len(tally.received)
        print(f"\nsent {len(tally.sent)}, received {len(tally.received)}, settled {settled}, lost {lost}")
        print(f"bytes from the client {tally.client_bytes:,}, from the server {tally.server_bytes:,}")
        return lost == 0 and settled == len(tally.sent)


def say(who: str, what: str) -> None:
    print(f"{who:6}  {what}")
