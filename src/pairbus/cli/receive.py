"""``pairbus receive``: receive messages of a queue or subscription, and settle them."""

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

from pairbus.cli.arguments import ReceivingArgument, entity_path, error_explainer, read_duration
from pairbus.cli.connection import ConnectionOption, NamedNamespace, one_line, read_connection, run
from pairbus.cli.failure import FAILED, USAGE, fail
from pairbus.cli.interruption import report_on_interruption
from pairbus.cli.message_output import Advance, Output, message_count, message_output, work_bar
from pairbus.cli.peek import BodyOption, CountOption, DeadLettersOption, JsonLinesOption, LinesOption
from pairbus.cli.standard_output import OutputError
from pairbus.client.errors import LockLostError, MessagingError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.settings import ReceiveMode

EMPTY: Final = 3
_AT_A_TIME: Final = 250
_LOCKED: Final = timedelta(hours=1)
_FAREWELL_S: Final = 5.0


class ReceiveAction(Enum):
    """The settlement of received messages; the value is the word in the output."""

    ABANDON = "abandoned"
    COMPLETE = "completed"
    DEAD_LETTER = "dead-lettered"
    DEFER = "deferred"
    DELETE = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The options of the command."""

    limit: int | None
    """The maximum number of messages; ``None`` for all."""

    wait: timedelta
    action: ReceiveAction
    reason: str | None
    description: str | None
    session_id: str | None
    next_session: bool
    deferred: tuple[int, ...]
    lines: Path | None


@dataclass(slots=True)
class _Tally:
    """The state of the messages that were received."""

    received: int = 0
    """The number of messages that were written and settled; of those to be abandoned, written."""

    unwritten: deque[ReceivedMessage] = field(default_factory=deque, repr=False)
    written: list[ReceivedMessage] = field(default_factory=list, repr=False)
    """Written messages that are not settled yet."""

    kept: list[ReceivedMessage] = field(default_factory=list, repr=False)
    """Messages that stay locked until the command ends, and are then abandoned."""

    is_released: bool = False
    """True if the namespace confirmed that the unsettled messages are abandoned."""


_AllOption = Annotated[
    bool,
    typer.Option(
        "--all",
        help="receive until no message arrives within --wait; requires a settlement such as --complete",
    ),
]
_WaitOption = Annotated[str, typer.Option("--wait", help="the time to wait for the next message", metavar="TIME")]
_CompleteOption = Annotated[
    bool, typer.Option("--complete", help="complete messages after they were printed or written, which removes them")
]
_AbandonOption = Annotated[bool, typer.Option("--abandon", help="abandon messages, which is the default")]
_DeadLetterOption = Annotated[bool, typer.Option("--dead-letter", help="move messages to the dead-letter queue")]
_ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="the reason, with --dead-letter", metavar="TEXT", show_default=False)
]
_DescriptionOption = Annotated[
    str | None,
    typer.Option("--description", help="the error description, with --dead-letter", metavar="TEXT", show_default=False),
]
_DeferOption = Annotated[
    bool, typer.Option("--defer", help="defer messages: only --deferred with their sequence number receives them")
]
_DeleteOption = Annotated[
    bool,
    typer.Option(
        "--delete", help="receive and delete messages one at a time; a message that cannot be written is lost"
    ),
]
_DeferredOption = Annotated[
    list[int] | None,
    typer.Option(
        "--deferred", help="the sequence number of a deferred message to receive; may be repeated", metavar="NUMBER"
    ),
]
_SessionOption = Annotated[
    str | None, typer.Option("--session", help="the session to receive from", metavar="ID", show_default=False)
]
_NextSessionOption = Annotated[bool, typer.Option("--next-session", help="receive from the next available session")]


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
    """Receive messages of a queue or subscription; by default one, which is printed and abandoned.

    Messages stay in the queue unless you settle them, usually with --complete. An abandoned message is locked until
    the command ends, and its delivery is counted; at the maximum delivery count it is dead-lettered. Use peek to
    inspect messages.

    A message is completed, dead-lettered or deferred after it was printed and the reader of a pipe has read it, or,
    with --lines, after its line is on disk. If the command is stopped in between, the message is in the queue, in the
    output, or in both. If the reader closes the output, as head does, the remaining messages are abandoned.

    Exits with 0 if a message was received, and always with --all; with 3 if none arrived in time, with 1 on an error,
    with 2 on invalid arguments, with 130 on Ctrl-C, with 143 on SIGTERM, and with 141 if the output was closed.

    Example: pairbus receive orders --connection @contoso.txt --complete

    Example: pairbus receive orders --connection @contoso.txt --dead-letters --all --complete --lines dead.jsonl
    """
    actions = {
        ReceiveAction.COMPLETE: complete,
        ReceiveAction.ABANDON: abandon,
        ReceiveAction.DEAD_LETTER: dead_letter,
        ReceiveAction.DEFER: defer,
        ReceiveAction.DELETE: delete,
    }
    chosen = [action for action, is_chosen in actions.items() if is_chosen]
    if len(chosen) > 1:
        fail("--complete, --abandon, --dead-letter, --defer and --delete exclude each other: use one of them", USAGE)
    request = _Request(
        limit=None if everything else count or 1,
        wait=read_duration("--wait", wait),
        action=chosen[0] if chosen else ReceiveAction.ABANDON,
        reason=reason,
        description=description,
        session_id=session,
        next_session=next_session,
        deferred=tuple(dict.fromkeys(deferred or ())),
        lines=lines,
    )
    _check(request, everything=everything, counts=count is not None)
    namespace = read_connection(connection)
    path = entity_path(entity, namespace, dead_letters=dead_letters)
    tally = _Tally()

    def so_far() -> str:
        return _progress(tally, request)

    def explain(error: MessagingError) -> str:
        has_progress = tally.received or tally.written
        return f"{error_explainer(path)(error)}{f'; {so_far()}' if has_progress else ''}"

    with (
        message_output(path, lines, as_json=as_json, body_only=body, so_far=so_far) as output,
        report_on_interruption(so_far),
        work_bar("received", request.limit, is_shown=lines is not None) as advance,
    ):
        run(_receive(namespace, path, request, tally, output, advance), explain)
    if not tally.received:
        nothing = f"no message arrived from '{path}' within {wait}"
        if not everything:
            fail(nothing, EMPTY)
        print(f"pairbus: {nothing}", file=sys.stderr)
    _print_result(path, tally, request, lines, as_json=as_json, is_default=not chosen)


def _check(request: _Request, *, everything: bool, counts: bool) -> None:
    if everything and counts:
        fail("--all and --count exclude each other: remove one of them", USAGE)
    if everything and request.action is ReceiveAction.ABANDON:
        fail("--all requires a settlement such as --complete; use peek --all to show messages and keep them", USAGE)
    if request.action is not ReceiveAction.DEAD_LETTER and (
        request.reason is not None or request.description is not None
    ):
        fail("--reason and --description require --dead-letter", USAGE)
    if request.session_id is not None and request.next_session:
        fail("--session and --next-session exclude each other: remove one of them", USAGE)
    if request.deferred and (everything or counts):
        fail("--deferred selects single messages: remove --all and --count", USAGE)


# Receiving.


async def _receive(
    namespace: NamedNamespace, path: str, request: _Request, tally: _Tally, output: Output, advance: Advance
) -> None:
    async with namespace.factory() as factory:
        receiver = await _open(factory, path, request)
        if receiver is None:
            return
        try:
            while messages := await _next(receiver, request, tally):
                await _write(receiver, request, tally, output, messages)
                advance(tally.received, tally.received)
        finally:
            await _release(receiver, tally)


async def _write(
    receiver: MessageReceiver, request: _Request, tally: _Tally, output: Output, messages: list[ReceivedMessage]
) -> None:
    """Write messages and settle those that were written, even if the output or the command is stopped in between."""
    tally.unwritten.extend(messages)
    try:
        async for _ in output(messages):
            tally.written.append(tally.unwritten.popleft())
    except (OutputError, asyncio.CancelledError):
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await _settle(receiver, request, tally)
        raise
    await _settle(receiver, request, tally)


async def _open(factory: MessagingFactory, path: str, request: _Request) -> MessageReceiver | None:
    """Return a receiver; ``None`` if no session was available in time."""
    mode = ReceiveMode.RECEIVE_AND_DELETE if request.action is ReceiveAction.DELETE else ReceiveMode.PEEK_LOCK
    if request.session_id is None and not request.next_session:
        return await factory.create_message_receiver(path, mode, max_auto_lock_renewal=_LOCKED)
    try:
        return await factory.accept_message_session(
            path, request.session_id, mode, server_wait_time=request.wait, max_auto_lock_renewal=_LOCKED
        )
    except MessagingTimeoutError as error:
        if error.condition is None:  # a timeout of ours; the namespace reports a lack of sessions with a condition
            raise
        return None


async def _next(receiver: MessageReceiver, request: _Request, tally: _Tally) -> list[ReceivedMessage]:
    """Receive as many messages as were written so far, so that few are abandoned if the output is closed early.

    With receive-and-delete, messages cannot be abandoned, so receive one at a time.
    """
    wanted = 1 if request.action is ReceiveAction.DELETE else min(max(1, tally.received), _AT_A_TIME)
    if request.deferred:
        left = request.deferred[tally.received : tally.received + wanted]
        return await receiver.receive_deferred(left)
    if request.limit is not None:
        wanted = min(wanted, request.limit - tally.received)
    return await receiver.receive(wanted, request.wait) if wanted else []


async def _settle(receiver: MessageReceiver, request: _Request, tally: _Tally) -> None:
    """Settle the messages that were written."""
    messages = tally.written
    settle: dict[ReceiveAction, Callable[[], Awaitable[None]]] = {
        ReceiveAction.COMPLETE: lambda: receiver.complete(messages),
        ReceiveAction.DEAD_LETTER: lambda: receiver.dead_letter(messages, request.reason, request.description),
        ReceiveAction.DEFER: lambda: receiver.defer(messages),
    }
    if request.action is ReceiveAction.ABANDON:
        tally.kept += messages
    elif messages and request.action in settle:
        try:
            await settle[request.action]()
        except LockLostError as error:
            left = sum(not one.is_settled for one in messages)
            fail(
                f"{message_count(left)} not {request.action.value}, to be delivered again: {one_line(error)}",
                FAILED,
            )
    tally.received += len(messages)
    tally.written = []


async def _release(receiver: MessageReceiver, tally: _Tally) -> None:
    """Abandon locked messages that are not settled; if that fails, they are available again when the locks expire."""
    if receiver.receive_mode is ReceiveMode.RECEIVE_AND_DELETE:
        return
    locked = [one for one in (*tally.kept, *tally.written, *tally.unwritten) if not one.is_settled]
    if locked:
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await receiver.abandon(locked)
                tally.is_released = True


# Output.


def _progress(tally: _Tally, request: _Request) -> str:
    done = request.action.value
    uncertain = sum(not one.is_settled for one in tally.written)
    if tally.received:
        parts = [f"{tally.received:,} received and {done}"]
    elif uncertain:
        parts = [f"none confirmed as {done}"]
    else:
        parts = ["nothing received"]
    if uncertain:
        where = "printed" if request.lines is None else f"written to {request.lines}"
        parts.append(f"{uncertain:,} more {where}, possibly still in the queue")
    if tally.unwritten:
        parts.append(f"{len(tally.unwritten):,} {_end_of_unwritten(tally, request)}")
    return "; ".join(parts)


def _end_of_unwritten(tally: _Tally, request: _Request) -> str:
    if request.action is ReceiveAction.DELETE:
        return "deleted and not written"
    return "not written and abandoned" if tally.is_released else "not written and locked until the lock expires"


def _print_result(
    path: str, tally: _Tally, request: _Request, lines: Path | None, *, as_json: bool, is_default: bool
) -> None:
    if lines is not None and as_json:
        print(json.dumps({"entity": path, "received": tally.received, "settled": request.action.name.lower()}))
    elif lines is not None:
        print(f"{message_count(tally.received)} of '{path}' written to {lines} and {request.action.value}")
    elif is_default and sys.stderr.isatty():
        print("abandoned; add --complete to remove received messages", file=sys.stderr)
