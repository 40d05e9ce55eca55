"""Runs of a pair that are reconciled together: each has separate entities, and is checked separately."""

from __future__ import annotations

from typing import Final

from pairbus.ledger.events import LedgerEvent, LifecycleEvent, Stage
from tests.jobs.reconcile.model import BACKLOG, PairModel

ROUNDS: Final = 12


def clean_pair() -> PairModel:
    """Run an outage with every legitimate outcome of a message."""
    model = PairModel()
    model.topic("news", "red", "blue")
    model.send("older", "there before the ledger")
    model.primary.lives.clear()
    model.count("older", accepted=-1, found=1)
    model.restart()
    for number in range(ROUNDS):
        model.send("direct-only", f"d{number}")
        model.send("orders", f"o{number}", f"s{number % 3}")
        model.send("news", f"n{number}")
    model.receive_all()
    for number in range(ROUNDS, 2 * ROUNDS):
        model.divert("Orders" if number % 2 else "orders", f"o{number}", f"s{number % 3}")
        model.divert("news", f"n{number}")
        model.divert("nameless")
        model.divert("reused", "same")
    model.give_back(model.backlog.waiting[0])
    model.park(model.backlog.waiting[1])
    _unify_spelling(model)
    model.send("orders", "waits while it is down")
    model.restart()
    for message in model.backlog.waiting[:ROUNDS]:
        model.syphon(message)
    model.restart()
    model.drain()
    model.receive_all()
    _letters(model)
    return model


def _unify_spelling(model: PairModel) -> None:
    """Spell names in lower case: the model does not know that they are case-insensitive."""
    for message in model.backlog.waiting:
        assert message.destination is not None
        message.destination = message.destination.lower()


def _letters(model: PairModel) -> None:
    for number in range(4):
        model.send("letters", f"l{number}")
    place = model.place("letters")
    failed, late, purged, put_off = list(place.waiting)
    for _ in range(3):
        model.receive(place, failed)
        model.abandon(place, failed)
    model.receive(place, failed)
    model.dead_letter(place, failed)
    model.expire(place, late)
    model.remove(place, purged)
    model.receive(place, put_off)
    model.defer(place, put_off)
    model.receive(place, put_off)
    model.complete(place, put_off)
    model.count("letters", redelivered=3)


class FaultyPair:
    """Cause one fault in each entity."""

    def __init__(self) -> None:
        self.model = model = PairModel()
        for entity in ("unreceived", "swapped", "twice", "lost", "buried", "expired", "purged", "left", "restarted"):
            for number in range(ROUNDS):
                model.send(entity, f"{entity}-direct-{number}")
                model.divert(entity, f"{entity}-{number}")
        self._syphon()
        self._receive()
        self._forget("unreceived", "unreceived-direct-5", LedgerEvent.RECEIVED, LedgerEvent.COMPLETED)
        self._set_aside()
        self._forwarding()
        self._made_again()
        self._of_another_pair()

    def _syphon(self) -> None:
        model = self.model
        special = {
            "twice-3": lambda message: model.syphon(message, copies=2),
            "twice-4": lambda message: model.syphon(message, copies=1, drops=1),
            "lost-7": lambda message: model.syphon(message, copies=0),
            "lost-8": lambda message: model.syphon(message, copies=0, drops=1),
            "buried-2": model.bury,
            "expired-2": model.expire_in_backlog,
            "purged-2": self._purge,
            "left-9": model.give_back,
            "left-10": model.park,
        }
        for message in list(model.backlog.waiting):
            special.get(message.message_id, model.syphon)(message)

    def _purge(self, message: object) -> None:
        found = next(one for one in self.model.backlog.waiting if one is message)
        self.model._leave(found, LedgerEvent.REMOVED)
        self.model.count("purged", missing=1)

    def _receive(self) -> None:
        model = self.model
        for place in list(model.places.values()):
            waiting = list(place.waiting)
            if place.path == "swapped":
                waiting[0], waiting[1] = waiting[1], waiting[0]
            for message in waiting:
                model.receive(place, message)
                if place.path == "restarted" and message.sequence == 2:
                    model.receive(place, message)
                    model.count("restarted", delivered_twice=1)
                model.complete(place, message)

    def _forget(self, entity: str, message_id: str, *events: LedgerEvent) -> None:
        """Remove these events of a message."""
        undone = self.model.primary.undo(lambda one: one.message_id == message_id and one.event in events)
        assert undone == len(events)
        place = self.model.place(entity)
        forgotten = next(one for one in place.received if one.message_id == message_id)
        place.received.remove(forgotten)
        self.model.count(entity, received=-1, completed=-1, missing=1)

    def _set_aside(self) -> None:
        self.model.send("broken", "b")
        place = self.model.place("broken")
        self.model._end(LedgerEvent.SET_ASIDE, place, place.waiting[0], missing=1)

    def _forwarding(self) -> None:
        """Add a forwarding queue: messages that it accepts are routed to another one at once."""
        book = self.model.primary
        for number in range(1, 4):
            accepted = book.note(LedgerEvent.ACCEPTED, Stage.DIRECT, "front", number, None, f"f{number}")
            book.note(LedgerEvent.ROUTED, Stage.DIRECT, "back", number, number, f"f{number}")
            book.same_time(accepted)
        self.model.count("front", accepted=3)
        self.model.count("back", routed=3, waiting=3)

    def _made_again(self) -> None:
        """Delete a queue with a message in it, and recreate it with the same name and numbers."""
        book = self.model.primary
        for number, message_id in ((1, "first"), (2, "second")):
            book.note(LedgerEvent.ACCEPTED, Stage.DIRECT, "anew", number, None, message_id)
        book.note(LedgerEvent.RECEIVED, Stage.DIRECT, "anew", 1, None, "first")
        book.note(LedgerEvent.COMPLETED, Stage.DIRECT, "anew", 1, None, "first")
        book.note(LedgerEvent.REMOVED, Stage.DIRECT, "anew", 0)
        book.note(LedgerEvent.ACCEPTED, Stage.DIRECT, "anew", 1, None, "third")
        self.model.count("anew", accepted=3, received=1, completed=1, removed=1, waiting=1)

    def _of_another_pair(self) -> None:
        """Add the backlog of another primary to the secondary."""
        other = BACKLOG.replace("contoso", "litware")
        self.model.secondary.note(LedgerEvent.ACCEPTED, Stage.BACKLOG, other, 1, None, "other", None, "orders")
        self.model.secondary.note(LedgerEvent.COMPLETED, Stage.SYPHON, other, 1, None, "other")


def gap(model: PairModel, events: int) -> LifecycleEvent:
    return model.primary.note(LedgerEvent.MISSED, Stage.DIRECT, "", events)
