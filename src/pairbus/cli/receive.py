"""``pairbus receive``: takes messages out of a queue or subscription, or has a look at them under lock."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from pairbus.cli.connection import FAILED, USAGE, Connection, ConnectionOption, one_line, read_connection, run
from pairbus.cli.durations import read_duration
from pairbus.cli.entity_names import ReceivingArgument, entity_path, explaining
from pairbus.cli.failure import fail
from pairbus.cli.interruption import telling_how_far
from pairbus.cli.message_output import Output, message_output
from pairbus.cli.peek import BodyOption, CountOption, DeadLettersOption, JsonLinesOption, LinesOption
from pairbus.cli.standard_output import OutputError
from pairbus.cli.work_bar import Advance, work_bar
from pairbus.client.errors import LockLostError, MessagingError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.receive_mode import ReceiveMode
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver

EMPTY: Final = 3
_AT_A_TIME: Final = 250
_LOCKED: Final = timedelta(hours=1)
_FAREWELL_S: Final = 5.0


class Verdict(Enum):
    """What becomes of what was received, with how that is told."""

    ABANDON = "given back"
    COMPLETE = "completed"
    DEAD_LETTER = "dead-lettered"
    DEFER = "deferred"
    DELETE = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What somebody asks for."""

    most: int | None
    """``None`` for all that come."""

    wait: timedelta
    verdict: Verdict
    reason: str | None
    description: str | None
    session_id: str | None
    next_session: bool
    deferred: tuple[int, ...]
    lines: Path | None


@dataclass(slots=True)
class _Tally:
    """What happened to the messages that were received."""

    received: int = 0
    """How many were written and settled, or, if they are to be abandoned, written."""

    unwritten: deque[ReceivedMessage] = field(default_factory=deque, repr=False)
    written: list[ReceivedMessage] = field(default_factory=list, repr=False)
    """Those that are not settled yet."""

    kept: list[ReceivedMessage] = field(default_factory=list, repr=False)
    """Those that stay locked until the command ends, and are abandoned then."""

    is_released: bool = False
    """Whether the namespace confirmed that it has back what was not settled."""


_AllOption = Annotated[
    bool,
    typer.Option(
        "--all", help="all that come, until none has come for --wait; say what becomes of them, as with --complete"
    ),
]
_WaitOption = Annotated[str, typer.Option("--wait", help="how long to wait for the next message", metavar="TIME")]
_CompleteOption = Annotated[bool, typer.Option("--complete", help="remove them, after they were printed or written")]
_AbandonOption = Annotated[bool, typer.Option("--abandon", help="give them back, which is what is done anyway")]
_DeadLetterOption = Annotated[bool, typer.Option("--dead-letter", help="move them to the dead-letter queue")]
_ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="with --dead-letter: why", metavar="TEXT", show_default=False)
]
_DescriptionOption = Annotated[
    str | None, typer.Option("--description", help="the same in more words", metavar="TEXT", show_default=False)
]
_DeferOption = Annotated[
    bool, typer.Option("--defer", help="put them aside: they are received with --deferred and their number only")
]
_DeleteOption = Annotated[
    bool,
    typer.Option(
        "--delete", help="delete each message as it is received, one at a time; one that cannot be written is lost"
    ),
]
_DeferredOption = Annotated[
    list[int] | None,
    typer.Option(
        "--deferred", help="receive the deferred message of this sequence number; may be repeated", metavar="NUMBER"
    ),
]
_SessionOption = Annotated[
    str | None, typer.Option("--session", help="the session to receive from", metavar="ID", show_default=False)
]
_NextSessionOption = Annotated[bool, typer.Option("--next-session", help="receive from the next session that is free")]


def receive(
    connection: ConnectionOption,
    entity: ReceivingArgument = None,
    count: CountOption = None,
    everything: _AllOption = False,
    wait: _WaitOption = "10s",
    complete: _CompleteOption = False,
    abandon: _AbandonOption = False,
    dead_letter: _DeadLetterOption = False,
    reason: _ReasonOption = None,
    description: _DescriptionOption = None,
    defer: _DeferOption = False,
    delete: _DeleteOption = False,
    deferred: _DeferredOption = None,
    dead_letters: DeadLettersOption = False,
    session: _SessionOption = None,
    next_session: _NextSessionOption = False,
    lines: LinesOption = None,
    body: BodyOption = False,
    as_json: JsonLinesOption = False,
) -> None:
    """Receive messages of a queue or subscription: one if nothing else is said, which is printed and given back.

    Nothing is taken out of the queue unless you say so, with --complete as a rule. What is given back is locked until
    the command ends, and its delivery is counted: enough of those make it a dead letter, so use peek to look around.

    A message is completed, dead-lettered or deferred after it was printed and the reader of a pipe has read it, and
    after its line is on the disk if --lines names a file. Whatever stops the command in between, the message is in one
    of the two places, or in both. When the output is closed, as by head, the rest is given back.

    It ends with 0 when there was a message, and always with --all, with 3 when none came in time, with 1 when something
    went wrong, with 2 when it was asked for something that cannot be, with 130 when it was stopped by Ctrl-C, with 143
    by SIGTERM, and with 141 when its output was closed.

    Example: pairbus receive orders --connection @contoso.txt --complete

    Example: pairbus receive orders --connection @contoso.txt --dead-letters --all --complete --lines dead.jsonl
    """
    verdicts = {
        Verdict.COMPLETE: complete,
        Verdict.ABANDON: abandon,
        Verdict.DEAD_LETTER: dead_letter,
        Verdict.DEFER: defer,
        Verdict.DELETE: delete,
    }
    said = [verdict for verdict, is_said in verdicts.items() if is_said]
    if len(said) > 1:
        fail("--complete, --abandon, --dead-letter, --defer and --delete: a message has one of these ends", USAGE)
    order = _Order(
        most=None if everything else count or 1,
        wait=read_duration("--wait", wait),
        verdict=said[0] if said else Verdict.ABANDON,
        reason=reason,
        description=description,
        session_id=session,
        next_session=next_session,
        deferred=tuple(dict.fromkeys(deferred or ())),
        lines=lines,
    )
    _check(order, everything=everything, counts=count is not None)
    namespace = read_connection(connection)
    path = entity_path(entity, namespace, dead_letters=dead_letters)
    tally = _Tally()

    def so_far() -> str:
        return _so_far(tally, order)

    def explain(error: MessagingError) -> str:
        is_news = tally.received or tally.written
        return f"{explaining(path)(error)}{f'; {so_far()}' if is_news else ''}"

    with (
        message_output(path, lines, as_json=as_json, body_only=body, so_far=so_far) as output,
        telling_how_far(so_far),
        work_bar("received", order.most, is_wanted=lines is not None) as advance,
    ):
        run(_receive(namespace, path, order, tally, output, advance), explain)
    if not tally.received:
        nothing = f"no message came from '{path}' within {wait}"
        if not everything:
            fail(nothing, EMPTY)
        print(f"pairbus: {nothing}", file=sys.stderr)
    _tell(path, tally, order, lines, as_json=as_json, is_default=not said)


def _check(order: _Order, *, everything: bool, counts: bool) -> None:
    if everything and counts:
        fail("--all and --count are two ways to say it: leave one of them out", USAGE)
    if everything and order.verdict is Verdict.ABANDON:
        fail("with --all, say what becomes of them: --complete, for one; peek --all shows them and leaves them", USAGE)
    if order.verdict is not Verdict.DEAD_LETTER and (order.reason is not None or order.description is not None):
        fail("--reason and --description belong to --dead-letter", USAGE)
    if order.session_id is not None and order.next_session:
        fail("--session and --next-session are two ways to say it: leave one of them out", USAGE)
    if order.deferred and (everything or counts):
        fail("--deferred says which messages: leave out --all and --count", USAGE)


# Receiving.


async def _receive(
    namespace: Connection, path: str, order: _Order, tally: _Tally, output: Output, advance: Advance
) -> None:
    async with namespace.factory() as factory:
        receiver = await _open(factory, path, order)
        if receiver is None:
            return
        try:
            while messages := await _next(receiver, order, tally):
                await _write(receiver, order, tally, output, messages)
                advance(tally.received, tally.received)
        finally:
            await _release(receiver, tally)


async def _write(
    receiver: MessageReceiver, order: _Order, tally: _Tally, output: Output, messages: list[ReceivedMessage]
) -> None:
    """Write messages and settle those that are written, also when the output or the command is stopped in between."""
    tally.unwritten.extend(messages)
    try:
        async for _ in output(messages):
            tally.written.append(tally.unwritten.popleft())
    except (OutputError, asyncio.CancelledError):
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await _settle(receiver, order, tally)
        raise
    await _settle(receiver, order, tally)


async def _open(factory: MessagingFactory, path: str, order: _Order) -> MessageReceiver | None:
    """A receiver; ``None`` if no session was free in time."""
    mode = ReceiveMode.RECEIVE_AND_DELETE if order.verdict is Verdict.DELETE else ReceiveMode.PEEK_LOCK
    if order.session_id is None and not order.next_session:
        return await factory.create_message_receiver(path, mode, max_auto_lock_renewal=_LOCKED)
    try:
        return await factory.accept_message_session(
            path, order.session_id, mode, server_wait_time=order.wait, max_auto_lock_renewal=_LOCKED
        )
    except MessagingTimeoutError as error:
        if error.condition is None:  # that there is none is what the namespace says
            raise
        return None


async def _next(receiver: MessageReceiver, order: _Order, tally: _Tally) -> list[ReceivedMessage]:
    """Receive as many as were written so far, so that few are given back when the output is closed early.

    What is received and deleted cannot be given back, so there is never more than one of those.
    """
    wanted = 1 if order.verdict is Verdict.DELETE else min(max(1, tally.received), _AT_A_TIME)
    if order.deferred:
        left = order.deferred[tally.received : tally.received + wanted]
        return await receiver.receive_deferred(left)
    if order.most is not None:
        wanted = min(wanted, order.most - tally.received)
    return await receiver.receive(wanted, order.wait) if wanted else []


async def _settle(receiver: MessageReceiver, order: _Order, tally: _Tally) -> None:
    """Settle what is written."""
    messages = tally.written
    settle: dict[Verdict, Callable[[], Awaitable[None]]] = {
        Verdict.COMPLETE: lambda: receiver.complete(messages),
        Verdict.DEAD_LETTER: lambda: receiver.dead_letter(messages, order.reason, order.description),
        Verdict.DEFER: lambda: receiver.defer(messages),
    }
    if order.verdict is Verdict.ABANDON:
        tally.kept += messages
    elif messages and order.verdict in settle:
        try:
            await settle[order.verdict]()
        except LockLostError as error:
            left = sum(not one.is_settled for one in messages)
            fail(
                f"{left:,} of the messages were not {order.verdict.value}, and will come again: {one_line(error)}",
                FAILED,
            )
    tally.received += len(messages)
    tally.written = []


async def _release(receiver: MessageReceiver, tally: _Tally) -> None:
    """Abandon what is locked and not settled; if that fails, others receive it when its lock expires."""
    if receiver.receive_mode is ReceiveMode.RECEIVE_AND_DELETE:
        return
    locked = [one for one in (*tally.kept, *tally.written, *tally.unwritten) if not one.is_settled]
    if locked:
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await receiver.abandon(locked)
                tally.is_released = True


# What it says.


def _so_far(tally: _Tally, order: _Order) -> str:
    done = order.verdict.value
    uncertain = sum(not one.is_settled for one in tally.written)
    if tally.received:
        told = [f"{tally.received:,} received and {done}"]
    elif uncertain:
        told = [f"none {done} for certain"]
    else:
        told = ["nothing received"]
    if uncertain:
        where = "printed" if order.lines is None else f"written to {order.lines}"
        told.append(f"{uncertain:,} more {where}, and perhaps still in the queue")
    if tally.unwritten:
        told.append(f"{len(tally.unwritten):,} {_end_of_unwritten(tally, order)}")
    return "; ".join(told)


def _end_of_unwritten(tally: _Tally, order: _Order) -> str:
    if order.verdict is Verdict.DELETE:
        return "deleted and not written"
    return "not written and given back" if tally.is_released else "not written, and locked until the lock expires"


def _tell(path: str, tally: _Tally, order: _Order, lines: Path | None, *, as_json: bool, is_default: bool) -> None:
    if lines is not None and as_json:
        print(json.dumps({"entity": path, "received": tally.received, "settled": order.verdict.name.lower()}))
    elif lines is not None:
        print(f"{tally.received:,} of '{path}' written to {lines} and {order.verdict.value}")
    elif is_default and sys.stderr.isatty():
        print("given back; say --complete to remove what is received", file=sys.stderr)
