"""The invariants after a run, whatever faults occurred."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.client.received_message import ReceivedMessage
from pairbus.pairing import EntityChanged, EntityState, PingSent
from tests.simulation.journal import Outcome, Received, Sent
from tests.simulation.planned_fault import Kind
from tests.simulation.process import Process
from tests.simulation.simulation import Run

_MOMENT_S: Final = 0.05
_PING_ATTEMPTS: Final = 2
"""A link is opened for a ping, and then the answer is waited for; each may take an attempt's time."""

_COMPARED: Final = (
    "session_id",
    "time_to_live",
    "scheduled_enqueue_time",
    "label",
    "correlation_id",
    "content_type",
    "application_properties",
)


def check(run: Run) -> list[str]:
    """Everything that is wrong."""
    if run.broken:
        return [f"the run has broken off: {run.broken}"]
    return [f"{number}. {problem}" for number, one in enumerate(CHECKS, 1) for problem in one(run)]


def arrives(run: Run) -> Iterator[str]:
    """Check that each sent message was received, or is in a dead-letter queue with a reason."""
    arrived, dead = run.journal.arrived(), _dead(run)
    for sent in run.journal.sent.values():
        if sent.outcome is not Outcome.RETURNED or _ended_with_its_entity(run, sent):
            continue
        for place in run.plan.entity(sent.path).places:
            if sent.id not in arrived.get(place, ()) and sent.id not in dead:
                yield f"{sent.id} was sent, and never received from '{place}'"
    for path, messages in run.dead_letters.items():
        for message in messages:
            sent_before = run.journal.sent.get(str(message.message_id))
            if not message.dead_letter_reason:
                yield f"{message.message_id!s} lies in the dead-letter queue of '{path}' without a reason"
            elif sent_before is None or sent_before.path not in run.plan.deleted:
                reason = f"{message.dead_letter_reason}: {message.dead_letter_error_description}"
                yield f"{message.message_id!s} was dead-lettered in '{path}' though its entity is there: {reason}"


def _dead(run: Run) -> set[str]:
    return {str(message.message_id) for found in run.dead_letters.values() for message in found}


def _ended_with_its_entity(run: Run, sent: Sent) -> bool:
    """Return whether the primary had accepted it when its entity was deleted."""
    if sent.path not in run.plan.deleted:
        return False
    return any(
        one.path == sent.path and not one.is_ping and str(ReceivedMessage(one.payload).message_id) == sent.id
        for one in run.journal.asked
    )


def is_unique(run: Run) -> Iterator[str]:
    """Check that there is no duplicate where duplicates are detected."""
    for entity in run.plan.entities:
        for place in entity.places if entity.is_unique else ():
            for name, found in run.journal.arrived().get(place, {}).items():
                numbers = sorted({one.sequence for one in found})
                if len(numbers) > 1:
                    yield f"{name} was in '{place}' under {numbers}"


def is_reported(run: Run) -> Iterator[str]:
    """Check that each send returns or raises a messaging error in time, and that there is no other error."""
    for sent in run.journal.sent.values():
        if sent.outcome is Outcome.UNDER_WAY:
            yield f"{sent.id} is still on its way"
        elif sent.outcome is Outcome.RAISED and not isinstance(sent.error, MessagingError):
            yield f"sending {sent.id} raised {sent.error!r}"
        elif sent.outcome in {Outcome.RETURNED, Outcome.RAISED} and sent.took_s > sent.limit_s:
            yield f"sending {sent.id} took {sent.took_s:.3f} s, and may take {sent.limit_s:.3f} s"
    yield from (f"an error was logged: {text}" for text in run.logged)


def is_in_order(run: Run) -> Iterator[str]:
    """A session arrives in order, where that is wanted."""
    if not run.plan.keeps_order:
        return
    arrived = run.journal.arrived()
    for entity in run.plan.entities:
        for place in entity.places:
            for (sender, session), line in _lines(run, entity.path).items():
                first = {one.id: _first(arrived.get(place, {}).get(one.id, [])) for one in line}
                there = [one for one in line if first[one.id] is not None]
                for before, after in pairwise(there):
                    if before.ended_s <= after.began_s and _number(first[before.id]) > _number(first[after.id]):
                        yield f"of session '{session}' of {sender}, {after.id} came to '{place}' before {before.id}"


def _lines(run: Run, path: str) -> dict[tuple[str, str], list[Sent]]:
    """Return the confirmed messages of each sender to each session, in order."""
    lines: dict[tuple[str, str], list[Sent]] = {}
    for sent in run.journal.sent.values():
        session = sent.message.session_id
        if sent.path == path and session is not None and sent.outcome is Outcome.RETURNED and not sent.is_one_of_many:
            lines.setdefault((sent.sender, session), []).append(sent)
    return lines


def _first(found: list[Received]) -> int | None:
    return min((one.sequence for one in found), default=None)


def _number(value: int | None) -> int:
    return -1 if value is None else value


def pings(run: Run) -> Iterator[str]:
    """An entity is pinged at its interval while it is failed over, and at no other time."""
    for process in run.processes:
        for path, periods in _periods(process).items():
            yield from _check_reported(process, path, periods)
    yield from _check_seen(run)


Period = tuple[float, float | None]
"""From when to when an entity was failed over; ``None`` if that has not ended."""


def _periods(process: Process) -> dict[str, list[Period]]:
    """Return the reported failover periods of each entity; none for entities that were only pinged."""
    found: dict[str, list[Period]] = {}
    for at_s, event in process.events:
        if isinstance(event, PingSent):
            found.setdefault(event.path, [])
        if not isinstance(event, EntityChanged):
            continue
        periods = found.setdefault(event.path, [])
        if event.before is EntityState.FAILED_OVER:
            periods[-1] = (periods[-1][0], at_s)
        if event.state is EntityState.FAILED_OVER:
            periods.append((at_s, None))
    return found


def _check_reported(process: Process, path: str, periods: list[Period]) -> Iterator[str]:
    plan = process.plan
    reported = [at_s for at_s, event in process.events if isinstance(event, PingSent) and event.path == path]
    who = f"'{path}' of {process.name}"
    for at_s in reported:
        if not any(_is_within(at_s, period) for period in periods):
            yield f"{who} was pinged at {at_s:.3f} s, when it was not failed over"
    patience_s = plan.ping_s + _PING_ATTEMPTS * plan.attempt_s + _MOMENT_S
    for begin_s, end_s in periods:
        if end_s is None and process.died_s is None:
            continue  # it was deleted: the pings go on for ever
        last_s = end_s if end_s is not None else process.died_s or begin_s
        within = [at_s for at_s in reported if _is_within(at_s, (begin_s, last_s))]
        most = int((last_s - begin_s + _MOMENT_S) / plan.ping_s)
        if len(within) > most:
            yield f"{who} was pinged {len(within)} times from {begin_s:.3f} s to {last_s:.3f} s, not {most} times"
        for before_s, after_s in pairwise((begin_s, *within, last_s)):
            if after_s - before_s > patience_s:
                yield f"{who} was not pinged from {before_s:.3f} s to {after_s:.3f} s, with {plan.ping_s:g} s between"


def _is_within(at_s: float, period: Period) -> bool:
    begin_s, end_s = period
    return begin_s <= at_s and (end_s is None or at_s <= end_s + _MOMENT_S)


def _check_seen(run: Run) -> Iterator[str]:
    """Check that the pings at the primary match the reports of the pairs."""
    periods = [
        (process, path, period)
        for process in run.processes
        for path, found in _periods(process).items()
        for period in found
    ]
    for one in run.journal.asked:
        if one.is_ping and not any(
            path == one.path and _may_be_seen(run, process, one.at_s, period) for process, path, period in periods
        ):
            yield f"the primary saw a ping of '{one.path}' at {one.at_s:.3f} s, when no pair had failed over"


def _may_be_seen(run: Run, process: Process, at_s: float, period: Period) -> bool:
    begin_s, end_s = period
    if at_s < begin_s + process.plan.ping_s:
        return False
    late_s = _PING_ATTEMPTS * process.plan.attempt_s + _MOMENT_S
    is_late = any(healed_s <= at_s <= healed_s + 1.0 for healed_s in run.journal.healed_s)  # it was held back
    return end_s is None or at_s <= end_s + late_s or is_late


def is_well(run: Run) -> Iterator[str]:
    """In the end all senders of a factory are healthy, and nothing is left."""
    yield from (f"in the end {text}" for text in run.restless)
    for sent in run.last:
        if sent.outcome is not Outcome.RETURNED:
            yield f"all was well, and yet sending {sent.id} raised {sent.error!r}"
    for name, diverted in run.after.items():
        if diverted != run.before[name]:
            yield f"all was well, and yet {name} has diverted {diverted - run.before[name]} messages"


def is_the_same(run: Run) -> Iterator[str]:
    """Check that received messages equal those sent."""
    for one in run.journal.received:
        sent = run.journal.sent.get(one.id)
        if sent is None:
            yield f"{one.id} was received from '{one.place}', and never sent: {one.message.application_properties}"
            continue
        if bytes(one.message.body) != sent.message.body:
            yield f"{one.id} was received from '{one.place}' with another body"
        for name in _COMPARED:
            was, is_now = getattr(sent.message, name), getattr(one.message, name)
            if was != is_now:
                yield f"{one.id} was received from '{one.place}' with {name} = {is_now!r} in place of {was!r}"
        scheduled = sent.message.scheduled_enqueue_time
        if scheduled is not None and one.message.enqueued_time < scheduled:
            yield f"{one.id} was enqueued in '{one.place}' at {one.message.enqueued_time}, before its time {scheduled}"


def switches(run: Run) -> Iterator[str]:
    """An entity fails over when its interval is over, and comes back when a ping is answered, or by hand."""
    for process in run.processes:
        failing_s: dict[str, float] = {}
        answered_s: dict[str, float] = {}
        by_hand = {
            one.path for one in run.plan.planned_faults if one.kind is Kind.ENGAGE and one.process == process.plan.name
        }
        for at_s, event in process.events:
            if isinstance(event, PingSent) and event.cause is None:
                answered_s[event.path] = at_s
            if not isinstance(event, EntityChanged):
                continue
            who = f"'{event.path}' of {process.name}"
            if event.state is EntityState.FAILING:
                failing_s[event.path] = at_s
            elif event.state is EntityState.FAILED_OVER:
                waited_s = at_s - failing_s[event.path] if event.before is EntityState.FAILING else 0.0
                if abs(waited_s - process.plan.failover_s) > _MOMENT_S:
                    yield f"{who} failed over after {waited_s:.3f} s, and its interval is {process.plan.failover_s:g} s"
            is_back = event.before is EntityState.FAILED_OVER and event.state is EntityState.HEALTHY
            if is_back and answered_s.get(event.path) != at_s and not by_hand & {"", event.path}:
                yield f"{who} came back at {at_s:.3f} s, and no ping was answered"


Check = Callable[[Run], Iterator[str]]
CHECKS: Final[tuple[Check, ...]] = (arrives, is_unique, is_reported, is_in_order, pings, is_well, is_the_same, switches)
