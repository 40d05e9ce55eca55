"""The states of connections, sessions, links and SASL exchanges, as tables.

Two rules keep this module small. It contains everything that decides whether a frame is allowed. And no table depends
on who is the client: a connection, session or link has two ends, ours and the peer's, each with its own state, and both
obey the same table. A pair that is not in a table is a frame that is not allowed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Frame(IntEnum):
    """The kinds of input: the protocol header, an empty frame, or a performative by its descriptor code."""

    HEADER = 0x00
    EMPTY = 0x01
    OPEN = 0x10
    BEGIN = 0x11
    ATTACH = 0x12
    FLOW = 0x13
    TRANSFER = 0x14
    DISPOSITION = 0x15
    DETACH = 0x16
    END = 0x17
    CLOSE = 0x18


class SaslFrame(IntEnum):
    """The input before the AMQP header: SASL performatives by their descriptor codes."""

    MECHANISMS = 0x40
    INIT = 0x41
    CHALLENGE = 0x42
    RESPONSE = 0x43
    OUTCOME = 0x44


class ConnectionState(IntEnum):
    """The state of one end of a connection."""

    START = 0
    HEADER = 1
    OPENED = 2
    CLOSED = 3


class SessionState(IntEnum):
    """The state of one end of a session."""

    UNMAPPED = 0
    MAPPED = 1
    ENDED = 2


class LinkState(IntEnum):
    """The state of one end of a link."""

    UNATTACHED = 0
    ATTACHED = 1
    DETACHED = 2


class SaslState(IntEnum):
    """The state of an authentication. There is one state, not two: the ends take turns."""

    START = 0
    OFFERED = 1
    STEPPING = 2
    CHALLENGED = 3
    DONE = 4


# Part 2.4.1: the header comes first, open is the first frame, close the last. Part 2.4.5: an empty frame only keeps the
# connection alive, so it is allowed as soon as frames are.
CONNECTION: Final[dict[tuple[int, int], ConnectionState]] = {
    (ConnectionState.START, Frame.HEADER): ConnectionState.HEADER,
    (ConnectionState.HEADER, Frame.OPEN): ConnectionState.OPENED,
    (ConnectionState.HEADER, Frame.EMPTY): ConnectionState.HEADER,
    (ConnectionState.OPENED, Frame.BEGIN): ConnectionState.OPENED,
    (ConnectionState.OPENED, Frame.ATTACH): ConnectionState.OPENED,
    (ConnectionState.OPENED, Frame.FLOW): ConnectionState.OPENED,
    (ConnectionState.OPENED, Frame.TRANSFER): ConnectionState.OPENED,
    (ConnectionState.OPENED, Frame.DISPOSITION): ConnectionState.OPENED,
    (ConnectionState.OPENED, Frame.DETACH): ConnectionState.OPENED,
    (ConnectionState.OPENED, Frame.END): ConnectionState.OPENED,
    (ConnectionState.OPENED, Frame.EMPTY): ConnectionState.OPENED,
    (ConnectionState.OPENED, Frame.CLOSE): ConnectionState.CLOSED,
}

# Part 2.5.1 and 2.5.2: begin maps a session to a channel, end unmaps it.
SESSION: Final[dict[tuple[int, int], SessionState]] = {
    (SessionState.UNMAPPED, Frame.BEGIN): SessionState.MAPPED,
    (SessionState.MAPPED, Frame.ATTACH): SessionState.MAPPED,
    (SessionState.MAPPED, Frame.FLOW): SessionState.MAPPED,
    (SessionState.MAPPED, Frame.TRANSFER): SessionState.MAPPED,
    (SessionState.MAPPED, Frame.DISPOSITION): SessionState.MAPPED,
    (SessionState.MAPPED, Frame.DETACH): SessionState.MAPPED,
    (SessionState.MAPPED, Frame.END): SessionState.ENDED,
}

# Part 2.6.3 to 2.6.6: attach maps a link to a handle, detach unmaps it.
LINK: Final[dict[tuple[int, int], LinkState]] = {
    (LinkState.UNATTACHED, Frame.ATTACH): LinkState.ATTACHED,
    (LinkState.ATTACHED, Frame.FLOW): LinkState.ATTACHED,
    (LinkState.ATTACHED, Frame.TRANSFER): LinkState.ATTACHED,
    (LinkState.ATTACHED, Frame.DETACH): LinkState.DETACHED,
}

# Part 5.3.2: the server offers, the client chooses, challenges are answered, an outcome ends it.
SASL: Final[dict[tuple[int, int], SaslState]] = {
    (SaslState.START, SaslFrame.MECHANISMS): SaslState.OFFERED,
    (SaslState.OFFERED, SaslFrame.INIT): SaslState.STEPPING,
    (SaslState.STEPPING, SaslFrame.CHALLENGE): SaslState.CHALLENGED,
    (SaslState.CHALLENGED, SaslFrame.RESPONSE): SaslState.STEPPING,
    (SaslState.STEPPING, SaslFrame.OUTCOME): SaslState.DONE,
}
