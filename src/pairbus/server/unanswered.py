"""Recognises a client's retry of a send that got no answer because the storage stalled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

from pairbus.broker import Address, NewMessage
from pairbus.store import CommitId

KEPT_S: Final = 600.0
"""Time for which sends are remembered after the trouble: clients wait 10 seconds and more before they retry."""

_MAX_SENDS: Final = 100_000

SendKey: TypeAlias = tuple[Address, bytes]


def key_of(address: Address, messages: Sequence[NewMessage]) -> SendKey | None:
    """Return the key of a send, which its retry has too; ``None`` for a ping, or a send without messages.

    It covers the whole content, since two different messages may have the same id, and the id: one that the sender has
    not set is a fresh one each time, so such a message is never taken for a retry.
    """
    digest = blake2b(digest_size=16)
    for message in messages:
        if message.ping:
            return None
        for part in (message.message_id.encode("utf-8", "surrogatepass"), message.body):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    return (address, digest.digest()) if messages else None


class UnansweredSend:
    """A send whose client may not know its outcome."""

    def __init__(self, commit: CommitId | None, is_awaited: Callable[[], bool]) -> None:
        """``commit`` is the one that has the messages, if the broker has accepted them.

        ``is_awaited`` returns whether the client still waits for the answer: then the same bytes are another message.
        """
        self.commit = commit
        self.is_awaited = is_awaited
        self.is_stored = False
        """True if the side buffer has it."""

        self.followers: list[Callable[[Exception | None], object]] | None = None
        """Retries that wait until the side buffer has it, while it is being written."""

    def begin_write(self) -> None:
        self.followers = []

    def follow(self, done: Callable[[Exception | None], object]) -> None:
        """Call ``done`` when the side buffer has the send, or with the error."""
        if self.followers is not None:
            self.followers.append(done)

    def end_write(self, error: Exception | None) -> None:
        self.is_stored = error is None
        followers, self.followers = self.followers or [], None
        for follower in followers:
            follower(error)


class UnansweredSends:
    """The sends that got no answer, or *server busy*, while the storage had trouble.

    They are forgotten some minutes after it.
    """

    def __init__(self, is_committed: Callable[[CommitId], bool | None], now_s: Callable[[], float]) -> None:
        self._is_committed = is_committed
        self._now_s = now_s
        self._sends: dict[SendKey, UnansweredSend] = {}
        self._is_episode = False
        self._until_s = 0.0

    def __bool__(self) -> bool:
        if self._sends and not self._is_episode and self._now_s() > self._until_s:
            self._sends.clear()
        return bool(self._sends)

    def add(self, key: SendKey | None, send: UnansweredSend) -> None:
        """Remember a send; the same bytes replace an earlier one. One without a key is not recognised."""
        self._until_s = self._now_s() + KEPT_S
        if key is not None:
            self._sends.pop(key, None)
            self._sends[key] = send
            if len(self._sends) > _MAX_SENDS:
                del self._sends[next(iter(self._sends))]

    def find(self, key: SendKey | None) -> UnansweredSend | None:
        """Return the send that this is a retry of; ``None`` if there is none, or it has failed for good."""
        send = None if key is None else self._sends.get(key)
        if key is None or send is None or send.is_awaited():
            return None
        if not send.is_stored and send.followers is None and self.outcome(send) is False:
            del self._sends[key]
            return None
        return send

    def outcome(self, send: UnansweredSend) -> bool | None:
        """Return whether a send is stored, in the side buffer or by its commit; ``None`` while that is unknown."""
        if send.is_stored:
            return True
        return False if send.commit is None else self._is_committed(send.commit)

    def forget(self, key: SendKey | None, send: UnansweredSend) -> None:
        """Forget a send: its client knows the outcome."""
        if key is not None and self._sends.get(key) is send:
            del self._sends[key]

    def begin_episode(self) -> None:
        """Keep all sends from now on: the storage does not answer."""
        self._is_episode = True

    def end_episode(self) -> None:
        """Begin the time after which the sends are forgotten: the storage answers again."""
        self._is_episode = False
        self._until_s = self._now_s() + KEPT_S
