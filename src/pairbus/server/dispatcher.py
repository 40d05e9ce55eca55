"""Who waits for messages, and who gets them next."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from pairbus.broker import (
    Address,
    EntityGone,
    EntityNotFoundError,
    Notice,
    Part,
    SessionGrant,
    SessionLockLostError,
    SessionLost,
)
from pairbus.server.errors import REFUSABLE
from pairbus.server.host import NamespaceHost

_log = logging.getLogger(__name__)

SHARE: Final = 32
"""How many messages one receiver gets before the next one has its turn."""

_AT_ONCE: Final = 512
"""How many messages of one entity are given out before other work has its turn."""


class Receiver(ABC):
    """Someone who takes messages of an entity."""

    address: Address
    session: SessionGrant | None
    is_lost: bool
    """Whether it will take nothing any more."""

    @abstractmethod
    def take(self, most: int) -> int:
        """Take and send on up to so many messages; how many."""

    @abstractmethod
    def wants(self) -> bool:
        """Whether there is credit, and room to write."""

    @abstractmethod
    def lose(self, error: Exception) -> None:
        """What it received from, or its session, is gone."""


class SessionWaiter(ABC):
    """Someone who wants the next session of an entity that comes free."""

    address: Address
    session_expires: bool
    """Whether the lock on the session ends with time, or only when the session is released."""

    @abstractmethod
    def grant(self, grant: SessionGrant) -> None:
        """Here it is."""

    @abstractmethod
    def refuse(self, error: Exception) -> None:
        """There will be none."""


class Dispatcher:
    """Spreads what can be received over those who want it, a few messages each in turn."""

    def __init__(self, host: NamespaceHost) -> None:
        self._host = host
        self._receivers: dict[Address, deque[Receiver]] = {}
        self._waiters: dict[Address, deque[SessionWaiter]] = {}
        self._holders: dict[bytes, Receiver] = {}
        self._links: Counter[Address] = Counter()
        host.on_woken = self.serve
        host.on_notice = self._notice
        host.on_rebuilt = self._rebuilt
        host.on_woken_session = self._serve_session
        host.in_use = lambda: [*self._links]

    # Links come and go.

    def count(self, address: Address) -> None:
        """A link leads to this entity: as long as it is there, the entity is not idle."""
        self._links[address] += 1

    def discount(self, address: Address) -> None:
        self._links[address] -= 1
        if not self._links[address]:
            del self._links[address]

    def add(self, receiver: Receiver) -> None:
        self._receivers.setdefault(receiver.address, deque()).append(receiver)
        if receiver.session is not None:
            self._holders[receiver.session.session_token] = receiver

    def remove(self, receiver: Receiver) -> None:
        others = self._receivers[receiver.address]
        others.remove(receiver)
        if not others:
            del self._receivers[receiver.address]
        if receiver.session is not None:
            del self._holders[receiver.session.session_token]

    def add_waiter(self, waiter: SessionWaiter) -> None:
        self._waiters.setdefault(waiter.address, deque()).append(waiter)

    def remove_waiter(self, waiter: SessionWaiter) -> None:
        others = self._waiters.get(waiter.address)
        if others is not None and waiter in others:
            others.remove(waiter)
            if not others:
                del self._waiters[waiter.address]

    # Messages come.

    def serve(self, address: Address) -> None:
        """Give out what can be received from an entity."""
        if address in self._waiters:
            self._grant(address)
        receivers = self._receivers.get(address)
        if receivers is None or receivers[0].session is not None:  # those are told one by one
            return
        given = 0
        idle = 0
        while idle < len(receivers):
            receiver = receivers[0]
            receivers.rotate(-1)
            wanted = receiver.wants()
            taken = self._offer(receiver) if wanted else 0
            if wanted and not taken and not receiver.is_lost:
                return  # there is nothing left for the others either
            idle = 0 if taken or receiver.is_lost else idle + 1
            given += taken
            if given >= _AT_ONCE:
                self._host.loop.call_soon(self.serve, address)
                return
            if receiver.address not in self._receivers:  # the last one was lost on the way
                return

    def _serve_session(self, token: bytes) -> None:
        """Give out what can be received in a session that someone holds."""
        receiver = self._holders.get(token)
        if receiver is not None and receiver.wants() and self._offer(receiver):
            self._host.loop.call_soon(self._serve_session, token)

    def _offer(self, receiver: Receiver) -> int:
        try:
            return receiver.take(SHARE)
        except Exception as error:  # noqa: BLE001 (a defect of ours must not keep the messages from the others)
            _log.exception("a receiver failed")
            receiver.lose(error)
            return 0

    def _grant(self, address: Address) -> None:
        waiters = self._waiters.get(address)
        while waiters:
            waiter = waiters[0]
            try:
                grant = self._host.namespace.accept_session(
                    address, None, self._host.now_ms(), expires=waiter.session_expires
                )
            except REFUSABLE as error:
                waiters.popleft()
                waiter.refuse(error)
                continue
            if grant is None:
                return
            waiters.popleft()
            try:
                waiter.grant(grant)
            except Exception:  # noqa: BLE001 (as above: the session goes to the next one)
                _log.exception("a receiver failed")
                self._host.namespace.release_session(address, grant.session_token, self._host.now_ms())
        self._waiters.pop(address, None)

    # Things happen by themselves.

    def _notice(self, notice: Notice) -> None:
        match notice:
            case SessionLost():
                holder = self._holders.get(notice.session_token)
                if holder is not None:
                    holder.lose(_session_lost(notice.session_id))
            case EntityGone():
                for receiver in [*self._at(notice.address)]:
                    receiver.lose(_gone(notice.address))
                for waiter in [*self._waiting_at(notice.address)]:
                    self.remove_waiter(waiter)
                    waiter.refuse(_gone(notice.address))

    def _at(self, gone: Address) -> Iterable[Receiver]:
        for address, receivers in self._receivers.items():
            if _is_part_of(address, gone):
                yield from receivers

    def _waiting_at(self, gone: Address) -> Iterable[SessionWaiter]:
        for address, waiters in self._waiters.items():
            if _is_part_of(address, gone):
                yield from waiters

    def _rebuilt(self) -> None:
        """The broker was read anew: whoever held a session holds it no more, and whoever waits has to ask again."""
        for token, holder in [*self._holders.items()]:
            holder.lose(_session_lost(holder.session.session_id if holder.session else token.hex()))
        for address in {*self._receivers, *self._waiters}:
            self._host.loop.call_soon(self.serve, address)


def _is_part_of(address: Address, gone: Address) -> bool:
    return address.entity == gone.entity and gone.subscription in {None, address.subscription}


def _session_lost(session_id: str) -> Exception:
    return SessionLockLostError(f"the lock on session '{session_id}' has ended: accept the session again")


def _gone(address: Address) -> Exception:
    main = Address.of(address.entity, address.subscription, Part.MAIN)
    return EntityNotFoundError(f"'{main}' was deleted", str(main))
