"""Sessions: messages that belong together, and the one receiver that may have them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import count

from pairbus.broker.deadlines import Deadlines
from pairbus.broker.message import NEVER
from pairbus.broker.sequences import Sequences


class Session:
    """One session of a queue: its messages, who holds it until when, and whether it has a state."""

    __slots__ = ("id", "locked", "number", "present", "ready", "state_updated_ms", "token", "until_ms")

    def __init__(self, session_id: str, number: int) -> None:
        self.id = session_id
        self.number = number
        self.present = Sequences()
        self.ready = Sequences()
        self.locked: set[int] = set()
        self.token: bytes | None = None
        self.until_ms = 0
        self.state_updated_ms: int | None = None


class Sessions:
    """All sessions of a queue that have a message, a holder or a state."""

    __slots__ = ("_available", "_by_id", "_by_number", "_by_token", "_numbers", "deadlines")

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}
        self._by_number: dict[int, Session] = {}
        self._by_token: dict[bytes, Session] = {}
        self._available: OrderedDict[str, Session] = OrderedDict()
        self._numbers = count(1)
        self.deadlines = Deadlines(self._is_held_until)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def get(self, session_id: str) -> Session | None:
        return self._by_id.get(session_id)

    def open(self, session_id: str) -> Session:
        """The session with that id, new if need be."""
        session = self._by_id.get(session_id)
        if session is None:
            session = Session(session_id, next(self._numbers))
            self._by_id[session_id] = self._by_number[session.number] = session
        return session

    def held(self, token: bytes) -> Session | None:
        return self._by_token.get(token)

    def numbered(self, number: int) -> Session:
        return self._by_number[number]

    def next_available(self) -> Session | None:
        """The session that has waited longest with a message and without a holder."""
        return next(iter(self._available.values()), None)

    def hold(self, session: Session, token: bytes, until_ms: int) -> None:
        session.token = token
        self._by_token[token] = session
        self.extend(session, until_ms)
        self.settle(session)

    def extend(self, session: Session, until_ms: int) -> None:
        """Hold a session until a time, or (``NEVER``) until it is released."""
        self._drop_deadline(session)
        session.until_ms = until_ms
        if until_ms != NEVER:
            self.deadlines.add(until_ms, session.number)

    def _drop_deadline(self, session: Session) -> None:
        if session.until_ms not in {0, NEVER}:
            self.deadlines.drop()

    def let_go(self, session: Session) -> None:
        if session.token is not None:
            del self._by_token[session.token]
            session.token = None
            self._drop_deadline(session)
            session.until_ms = 0
        self.settle(session)

    def settle(self, session: Session) -> None:
        """Bring the books in line after a session has changed."""
        if session.token is None and session.ready:
            self._available.setdefault(session.id, session)
        else:
            self._available.pop(session.id, None)
        if session.token is None and not session.present and session.state_updated_ms is None:
            self._by_id.pop(session.id, None)
            self._by_number.pop(session.number, None)

    def _is_held_until(self, due_ms: int, number: int) -> bool:
        session = self._by_number.get(number)
        return session is not None and session.token is not None and session.until_ms == due_ms
