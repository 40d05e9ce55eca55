"""Who is logged in: a random number in a cookie, and what it stands for, kept here in memory alone."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pairbus.broker import Right
from pairbus.server.access import Grant
from pairbus.server.errors import UnauthorizedError

IDLE_MS: Final = 30 * 60_000
LONGEST_MS: Final = 8 * 3_600_000
_MOST: Final = 200
"""How many sessions there may be; the one that was used least lately makes room."""

_BYTES: Final = 32
_MARK_BYTES: Final = 6

Admit = Callable[[], Grant]
"""Shows the key or token again; raises ``UnauthorizedError`` when it is good no more."""


@dataclass(slots=True, kw_only=True)
class Session:
    """A login. The key is shown anew with every request: when it is changed or removed, the session is over."""

    who: str
    admit: Admit = field(repr=False)
    id: str = field(repr=False)
    seal: str = field(default_factory=lambda: secrets.token_urlsafe(_BYTES), repr=False)
    """What only a page of ours knows: a form without it was made by somebody else."""

    began_ms: int
    seen_ms: int
    notice: str = ""
    """What the next page tells."""

    def is_over(self, now_ms: int) -> bool:
        return now_ms - self.seen_ms >= IDLE_MS or now_ms - self.began_ms >= LONGEST_MS

    def is_sealed(self, seal: str) -> bool:
        return hmac.compare_digest(self.seal.encode(), seal.encode("utf-8", "surrogatepass"))

    def take_notice(self) -> str:
        notice, self.notice = self.notice, ""
        return notice


def check_rights(grant: Grant, now_ms: int) -> None:
    """Raise ``UnauthorizedError`` unless the holder may see the namespace."""
    if not any(grant.allows("", right, now_ms) for right in (Right.MANAGE, Right.LISTEN)):
        raise UnauthorizedError("this key can only send; the console needs one with Manage, or Listen to look only")


class Sessions:
    """All logins of one server."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._mark = secrets.token_urlsafe(_MARK_BYTES)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, who: str, admit: Admit, now_ms: int) -> Session:
        self._drop_old(now_ms)
        session_id = f"{self._mark}.{secrets.token_urlsafe(_BYTES)}"
        session = Session(id=session_id, who=who, admit=admit, began_ms=now_ms, seen_ms=now_ms)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str, now_ms: int, *, by_itself: bool = False) -> Session | None:
        """The session, if it goes on. What a page asks ``by_itself`` does not make it last longer."""
        session = self._sessions.get(session_id)
        if session is None or session.is_over(now_ms):
            self.close(session_id)
            return None
        if not by_itself:
            session.seen_ms = now_ms
            self._sessions[session_id] = self._sessions.pop(session_id)  # those that rest come first
        return session

    def is_of_ours(self, session_id: str) -> bool:
        """Whether it was a session here once, and not of a server before this one."""
        return session_id.startswith(f"{self._mark}.")

    def close(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def _drop_old(self, now_ms: int) -> None:
        for session in [*self._sessions.values()]:
            if session.is_over(now_ms) or len(self._sessions) >= _MOST:
                del self._sessions[session.id]
