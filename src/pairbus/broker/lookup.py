"""What a request is about, with the errors that go with it."""

from __future__ import annotations

from pairbus.broker.address import Address, Part
from pairbus.broker.catalogue import Catalogue
from pairbus.broker.entity import Destination, Entity, Holder, QueueEntity
from pairbus.broker.errors import (
    EntityDisabledError,
    InvalidOperationError,
    LockLostError,
    SessionLockLostError,
)
from pairbus.broker.kinds import check_address, check_token
from pairbus.broker.lock import Lock
from pairbus.broker.queue import Queue
from pairbus.broker.session import Session


class Lookup:
    """Finds what an address or a token stands for, if it may be used in that way."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def whole(self, address: Address) -> Entity:
        """The entity itself, and not a part of it."""
        check_address(address)
        if address.part is not Part.MAIN:
            raise InvalidOperationError(
                f"'{address}' is a part of an entity; name the entity, or use delete_messages to empty the part",
                str(address),
            )
        return self._catalogue.entity(address)

    def sendable(self, address: Address) -> Destination:
        check_address(address)
        if address.subscription is not None or address.part is not Part.MAIN:
            raise InvalidOperationError(f"'{address}' cannot be sent to: send to its queue or topic", str(address))
        return self._catalogue.destination(address.entity)

    def receivable(self, address: Address) -> tuple[Holder, Queue]:
        check_address(address)
        queue = self._catalogue.queue(address)
        holder = self._catalogue.holder_of(queue)
        description = holder.description
        if not description.status.can_receive:
            raise EntityDisabledError(f"'{address}' is {description.status}: it gives no messages", holder.full_path)
        if address.part is Part.MAIN and description.forward_to is not None:
            raise InvalidOperationError(_why_not_here(address, holder, description.forward_to), holder.full_path)
        return holder, queue

    def session(self, queue: Queue, token: bytes | None, now_ms: int) -> Session | None:
        """The session that a receiver has; ``None`` where there are no sessions."""
        if queue.sessions is None:
            if token is not None:
                raise InvalidOperationError(f"'{queue.address}' has no sessions", str(queue.address))
            return None
        if token is None:
            raise InvalidOperationError(f"'{queue.address}' requires sessions: accept one first", str(queue.address))
        check_token(token)
        session = queue.sessions.held(token)
        if session is None or session.until_ms <= now_ms:
            raise SessionLockLostError(
                f"the lock on the session of '{queue.address}' has ended: accept the session again", str(queue.address)
            )
        return session

    def held(self, address: Address, token: bytes, now_ms: int) -> tuple[Queue, Session]:
        queue = self._catalogue.queue(address)
        session = self.session(queue, token, now_ms)
        if session is None:
            raise InvalidOperationError(f"'{address}' has no sessions", str(address))
        return queue, session

    def locked(self, address: Address, token: bytes, now_ms: int) -> tuple[Queue, Lock]:
        check_token(token)
        queue = self._catalogue.queue(address)
        lock = queue.lock_by_token(token)
        # A lock that has run out may still be there, if much else has become due at the same time.
        if lock is not None and (lock.until_ms if lock.session is None else lock.session.until_ms) > now_ms:
            return queue, lock
        if queue.sessions is not None:
            raise SessionLockLostError(
                f"the message of '{address}' is no longer locked: it was settled, or the lock on its session has ended",
                str(address),
            )
        raise LockLostError(
            f"the message of '{address}' is no longer locked: it was settled, or its lock has expired and it will be"
            " delivered again",
            str(address),
        )


def _why_not_here(address: Address, holder: Holder, target: str) -> str:
    if isinstance(holder, QueueEntity) and target == holder.path:
        return f"'{target}' forwards to itself: its messages are in its dead-letter queue; clear forward_to to receive"
    return f"'{address}' forwards to '{target}': receive there"
