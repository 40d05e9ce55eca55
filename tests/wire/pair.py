"""Two engines joined in memory: what one sends the other receives, until both fall silent."""

from __future__ import annotations

from collections.abc import Callable

from pairbus.wire import (
    RECEIVER,
    Configuration,
    Connection,
    ConnectionOpened,
    Event,
    Link,
    LinkAttached,
    SaslClient,
    SaslServer,
    Session,
    SessionBegun,
    Source,
    Target,
)


class ConnectionPair:
    """A client and a server engine.

    The server answers opens, begins and attaches as a friendly server would, unless ``answer`` is replaced; every event
    is kept, in order, in ``client_events`` and ``server_events``.
    """

    def __init__(
        self,
        client: Configuration | None = None,
        server: Configuration | None = None,
        *,
        sasl_client: SaslClient | None = None,
        sasl_server: SaslServer | None = None,
    ) -> None:
        self.client = Connection(client or Configuration(container_id="client"), sasl_client)
        self.server = Connection(server or Configuration(container_id="server"), sasl_server)
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.answer: Callable[[Event], None] = self.answer_friendly

    def answer_friendly(self, event: Event) -> None:
        match event:
            case ConnectionOpened():
                self.server.open()
            case SessionBegun(session=session):
                session.begin()
            case LinkAttached(link=link, attach=attach):
                link.attach(source=attach.source, target=attach.target)
                if link.role == RECEIVER:
                    link.flow(1000)

    def exchange(self) -> None:
        """Carry bytes to and fro until there are none."""
        while True:
            to_server = self.client.data_to_send()
            to_client = self.server.data_to_send()
            if not to_server and not to_client:
                return
            for event in self.server.receive_data(to_server):
                self.server_events.append(event)
                self.answer(event)
            self.client_events.extend(self.client.receive_data(to_client))

    def open(self) -> Session:
        """Open the connection and begin a session; return the client's end of it."""
        self.client.open()
        session = self.client.begin()
        self.exchange()
        return session

    def attach(self, session: Session, name: str, role: bool) -> tuple[Link, Link]:
        """Attach a link; return the client's and the server's end of it."""
        link = session.attach(name, role, source=Source(address="from"), target=Target(address="to"))
        self.exchange()
        event = next(
            event
            for event in reversed(self.server_events)
            if isinstance(event, LinkAttached) and event.link.name == name
        )
        return link, event.link
