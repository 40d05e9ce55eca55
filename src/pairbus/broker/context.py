"""What every part of one broker shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from pairbus.broker.address import Address
from pairbus.broker.agenda import Agenda
from pairbus.broker.bodies import Bodies
from pairbus.broker.chronicle import Chronicle
from pairbus.broker.limits import Limits
from pairbus.broker.message import PropertyView
from pairbus.broker.notices import Notice
from pairbus.broker.records import Records


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where facts are written, what is due, and what comes from outside: fresh ids and the inside of messages."""

    limits: Limits
    records: Records
    bodies: Bodies
    agenda: Agenda
    view: Callable[[bytes], PropertyView]
    fresh_id: Callable[[], UUID]
    fresh_token: Callable[[], bytes]
    stub_body: bytes = b""
    """The encoded message that stands in for one that cannot be read."""

    chronicle: Chronicle | None = None
    """Who is told what happens to messages; mostly nobody."""

    woken: dict[Address, None] = field(default_factory=dict)
    """Where messages, or sessions, have become available; in order."""

    woken_sessions: dict[bytes, None] = field(default_factory=dict)
    """The tokens of held sessions in which something can be received."""

    notices: list[Notice] = field(default_factory=list)
