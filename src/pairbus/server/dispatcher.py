"""Fair distribution of messages over waiting receivers."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, ParamSpec, Protocol, TypeVar

from pairbus.broker import (
    Address,
    EntityGone,
    EntityNotFoundError,
    Notice,
    QueuePart,
    SessionGrant,
    SessionLockLostError,
    SessionLost,
)
from pairbus.fault_kinds import CrashComponent
from pairbus.server.errors import REFUSABLE
from pairbus.server.host import NamespaceHost
from pairbus.server.log_context import ContextLog, LogValue
from pairbus.server.supervision.supervisor import Problem
from pairbus.server.turns import DeliveryTurns
from pairbus.store import StoreError

P = ParamSpec("P")
T = TypeVar("T")

SHARE: Final = 32
"""Messages that one receiver gets before the next one has its turn."""

_AT_ONCE: Final = 512
"""Messages of one entity that are delivered before other work has its turn."""


class WaitingReceiver(Protocol):
    """A receiver of messages of an entity."""

    address: Address
    session: SessionGrant | None
    is_lost: bool
    """True if it will take no more messages."""

    def take(self, max_count: int) -> int:
        """Take and send up to ``max_count`` messages; return their number."""

    def wants(self) -> bool:
        """Return whether there is credit, and space in the write buffer."""

    def lose(self, error: Exception) -> None:
        """End the receiver: its entity, or its session, is gone."""

    def log_context(self) -> ContextLog:
        """Return a logger whose lines name the receiver."""


class SessionWaiter(Protocol):
    """A receiver that waits for the next available session of an entity."""

    address: Address
    session_expires: bool
    """True if the lock on the session expires; false if it lasts until the session is released."""

    def grant(self, grant: SessionGrant) -> None:
        """Pass the session to the receiver."""

    def refuse(self, error: Exception) -> None:
        """Refuse the wait with an error."""

    def log_context(self) -> ContextLog:
        """Return a logger whose lines name the receiver."""


class Dispatcher:
    """Spreads available messages over the waiting receivers, a few messages each in turn."""

    def __init__(self, host: NamespaceHost, stopwatch: Callable[[], float] = time.perf_counter) -> None:
        self._host = host
        self._turns = DeliveryTurns(host.loop, stopwatch)
        self._serve_guarded = self._guarded(self.serve)
        self._serve_session_guarded = self._guarded(self._serve_session)
        self._receivers: dict[Address, deque[WaitingReceiver]] = {}
        self._waiters: dict[Address, deque[SessionWaiter]] = {}
        self._holders: dict[bytes, WaitingReceiver] = {}
        self._links: Counter[Address] = Counter()
        self._attached: dict[WaitingReceiver, None] = {}
        """All receivers; the tables above are derived from them, and from the waiters below."""
        self._attached_waiters: dict[SessionWaiter, None] = {}
        self._failure: Exception | None = None
        self._is_stopped = False
        self._served: set[Address | bytes] = set()
        """Entities, and tokens of held sessions, that were served since the last check."""
        self._unserved: set[Address | bytes] = set()
        """Entities and tokens that should have been served by then."""
        host.on_woken.add(lambda address: self._turns.take(address, partial(self._serve_guarded, address)))
        host.on_notice.add(self._guarded(self._notice))
        host.on_rebuilt.add(self._guarded(self._rebuilt))
        host.on_woken_session.add(lambda token: self._turns.take(token, partial(self._serve_session_guarded, token)))
        host.on_timers_restarted.add(self._guarded(self._serve_all))
        host.on_resumed.add(self._guarded(self._serve_all))
        host.add_in_use(lambda: [*self._links])

    # Links are added and removed.

    def count(self, address: Address) -> None:
        """Count a link to this entity: as long as there is one, the entity is not idle."""
        self._links[address] += 1

    def discount(self, address: Address) -> None:
        self._links[address] -= 1
        if self._links[address] <= 0:
            del self._links[address]

    def add(self, receiver: WaitingReceiver) -> None:
        self._attached[receiver] = None
        self._enter(receiver)

    def _enter(self, receiver: WaitingReceiver) -> None:
        _append(self._receivers, receiver.address, receiver)
        if receiver.session is not None:
            self._holders[receiver.session.session_token] = receiver

    def remove(self, receiver: WaitingReceiver) -> None:
        self._attached.pop(receiver, None)
        others = self._receivers.get(receiver.address)
        if others is not None and receiver in others:
            others.remove(receiver)
            if not others:
                del self._receivers[receiver.address]
        if receiver.session is not None:
            self._holders.pop(receiver.session.session_token, None)

    def add_waiter(self, waiter: SessionWaiter) -> None:
        self._attached_waiters[waiter] = None
        _append(self._waiters, waiter.address, waiter)

    def remove_waiter(self, waiter: SessionWaiter) -> None:
        self._attached_waiters.pop(waiter, None)
        others = self._waiters.get(waiter.address)
        if others is not None and waiter in others:
            others.remove(waiter)
            if not others:
                del self._waiters[waiter.address]

    def note_taken(self, address: Address, count: int) -> None:
        """Record that a receiver has taken messages, on its own or because it was served."""
        self._served.add(address)
        self._host.operations.add("deliver", address, count)

    def note_served(self, seconds: float) -> None:
        """Record for how long a client was served: deliveries have a part of that time."""
        self._turns.add_served(seconds)

    def note_requests(self, count: int) -> None:
        """Record requests that wait for the next commit."""
        self._turns.add_requests(count)
        self._host.when_durable(lambda _error: self._turns.add_requests(-count))

    def note_removed(self, count: int) -> None:
        """Record that a receiver has removed messages, which it sends once their removal is durable."""
        self._turns.add_removed(count)
        self._host.when_durable(lambda _error: self._turns.add_removed(-count))

    # Messages arrive.

    def serve(self, address: Address) -> None:
        """Deliver what can be received from an entity."""
        if self._is_stopped or self._host.is_paused:
            return
        if self._host.faults:
            self._host.faults.crash(CrashComponent.DISPATCHER)
        self._served.add(address)
        if address in self._waiters:
            self._grant(address)
        receivers = self._receivers.get(address)
        if receivers is None or receivers[0].session is not None:  # those are served per session
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
            if given >= _AT_ONCE or (given and self._turns.is_over):
                self._serve_later(address)
                return
            if receiver.address not in self._receivers:  # the last receiver was lost meanwhile
                return

    def _serve_session(self, token: bytes) -> None:
        """Deliver what can be received in a held session."""
        self._served.add(token)
        receiver = None if self._is_stopped else self._holders.get(token)
        if receiver is not None and receiver.wants() and self._offer(receiver):
            self._serve_session_later(token)

    def deliver(self, key: Hashable, work: Callable[[], object]) -> None:
        """Do a piece of work that delivers messages now, if deliveries have their turn; otherwise later."""
        self._turns.take(key, work)

    def deliver_later(self, key: Hashable, work: Callable[[], object]) -> None:
        """Do a piece of work that delivers messages when deliveries have their next turn."""
        self._turns.wait(key, work)

    def _serve_later(self, address: Address) -> None:
        self._turns.wait(address, partial(self._serve_guarded, address))

    def _serve_session_later(self, token: bytes) -> None:
        self._turns.wait(token, partial(self._serve_session_guarded, token))

    def _offer(self, receiver: WaitingReceiver) -> int:
        try:
            return receiver.take(SHARE)
        except Exception as error:  # noqa: BLE001 (a defect of ours must not keep messages from the other receivers)
            receiver.log_context().exception("receiver failed")
            receiver.lose(error)
            return 0

    def _grant(self, address: Address) -> None:
        waiters = self._waiters.get(address)
        while waiters:
            waiter = waiters[0]
            try:
                grant = self._host.use_namespace().accept_session(
                    address, None, self._host.now_ms(), expires=waiter.session_expires
                )
            except REFUSABLE as error:
                waiters.popleft()
                self._attached_waiters.pop(waiter, None)
                waiter.refuse(error)
                continue
            if grant is None:
                return
            waiters.popleft()
            self._attached_waiters.pop(waiter, None)
            try:
                waiter.grant(grant)
            except Exception:  # noqa: BLE001 (as above: the session goes to the next waiter)
                waiter.log_context().exception("session receiver failed session=%s", LogValue(grant.session_id))
                self._host.use_namespace().release_session(address, grant.session_token, self._host.now_ms())
        self._waiters.pop(address, None)

    # Background events.

    def _notice(self, notice: Notice) -> None:
        match notice:
            case SessionLost():
                holder = self._holders.get(notice.session_token)
                if holder is not None:
                    holder.lose(_session_lost(notice.session_id))
            case EntityGone():
                self.end(notice.address, _gone(notice.address))

    def end(self, scope: Address | None, error: Exception) -> None:
        """End the receivers of an entity, or of all entities, and the waits for its sessions."""
        for receiver in [*_within(self._receivers, scope)]:
            receiver.lose(error)
        for waiter in [*_within(self._waiters, scope)]:
            self.remove_waiter(waiter)
            waiter.refuse(error)

    def _rebuilt(self) -> None:
        """End all held sessions and waits, because the broker was reloaded: receivers have to ask again."""
        for token, holder in [*self._holders.items()]:
            holder.lose(_session_lost(holder.session.session_id if holder.session else token.hex()))
        self._serve_all()

    def _serve_all(self) -> None:
        """Serve all receivers: they may have been paused, or have missed a wake-up."""
        for address in {*self._receivers, *self._waiters}:
            self._serve_later(address)
        for token in self._holders:
            self._serve_session_later(token)

    # Supervision.

    def _guarded(self, call: Callable[P, object]) -> Callable[P, None]:
        """Return a function that keeps a defect for the next check; the store's errors are the host's."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                call(*args, **kwargs)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 (the supervisor restarts the dispatcher)
                self._failure = error

        return guarded

    def problem(self) -> Problem | None:
        """Return a defect, a difference between the tables, or messages that a waiting receiver was not given.

        Called twice a second: an entity or session that was to be served then, and was not by now, has missed its
        wake-up.
        """
        if self._failure is not None:
            return Problem(reason=f"it failed with {type(self._failure).__name__}", error=self._failure)
        reason = self._table_problem()
        if reason is not None:
            return Problem(reason=reason)
        late = self._unserved - self._served
        self._served.clear()
        self._unserved = self._due()
        missed = [each for each in late & self._unserved if not self._waits_for_turn(each)]
        return Problem(reason=f"{len(missed)} entities or sessions have missed a wake-up") if missed else None

    def _waits_for_turn(self, place: Address | bytes) -> bool:
        """Return whether an entity, or a held session, is served when deliveries have their next turn."""
        receivers = self._receivers.get(place, ()) if isinstance(place, Address) else (self._holders.get(place),)
        return any(self._turns.has_waiting(key) for key in (place, *receivers))

    def _table_problem(self) -> str | None:
        """Return which table differs from the receivers and waiters that are attached."""
        if not _lists_exactly(self._receivers, self._attached):
            return f"its table of receivers differs from the {len(self._attached)} that are attached"
        if not _lists_exactly(self._waiters, self._attached_waiters):
            return f"its table of session waiters differs from the {len(self._attached_waiters)} that are attached"
        if self._holders != _holders_among(self._attached):
            return "its table of held sessions differs from those of the attached receivers"
        if any(self._links[address] < count for address, count in self._least_links().items()):
            return "it has counted fewer links to an entity than are attached"
        return None

    def _least_links(self) -> Counter[Address]:
        """Return how many links there are to each entity, besides those of senders."""
        links = Counter({address: len(each) for address, each in self._receivers.items()})
        for address, waiters in self._waiters.items():
            links[address] += len(waiters)
        return links

    def _due(self) -> set[Address | bytes]:
        """Return where messages wait, or sessions, and a receiver waits for them."""
        if self._host.is_paused:  # all receivers are served when it continues
            return set()
        try:
            namespace = self._host.committer.use_namespace()
            return {
                *(
                    address
                    for address, each in self._receivers.items()
                    if _wants(each) and namespace.can_deliver(address)
                ),
                *(address for address in self._waiters if namespace.can_grant(address)),
                *(
                    token
                    for token, holder in self._holders.items()
                    if holder.wants() and namespace.can_deliver_in(holder.address, token)
                ),
            }
        except StoreError:
            return set()

    def restart(self) -> None:
        """Build the tables again from the attached receivers and waiters, and serve all entities."""
        self._failure = None
        self._served.clear()
        self._unserved.clear()
        self._receivers, self._holders, self._waiters = {}, {}, {}
        for receiver in self._attached:
            self._enter(receiver)
        for waiter in self._attached_waiters:
            _append(self._waiters, waiter.address, waiter)
        self._links |= self._least_links()
        self._serve_all()

    def stop(self) -> None:
        """Deliver nothing any more."""
        self._is_stopped = True


def _append(table: dict[Address, deque[T]], address: Address, each: T) -> None:
    table.setdefault(address, deque()).append(each)


def _lists_exactly(table: Mapping[Address, Sequence[T]], attached: Mapping[T, None]) -> bool:
    """Return whether a table lists what is attached, each of it once."""
    return sum(map(len, table.values())) == len(attached) and attached.keys() == set(
        chain.from_iterable(table.values())
    )


def _holders_among(receivers: Iterable[WaitingReceiver]) -> dict[bytes, WaitingReceiver]:
    return {each.session.session_token: each for each in receivers if each.session is not None}


def _wants(receivers: Sequence[WaitingReceiver]) -> bool:
    """Return whether one of the receivers of an entity without sessions takes messages."""
    return receivers[0].session is None and any(receiver.wants() for receiver in receivers)


def _within(found: Mapping[Address, Iterable[T]], scope: Address | None) -> Iterator[T]:
    for address, each in found.items():
        if scope is None or address.is_within(scope):
            yield from each


def _session_lost(session_id: str) -> Exception:
    return SessionLockLostError(f"the lock on session '{session_id}' has ended: accept the session again")


def _gone(address: Address) -> Exception:
    main = Address.of(address.entity, address.subscription, QueuePart.MAIN)
    return EntityNotFoundError(f"'{main}' was deleted", str(main))
