"""``pairbus send``: puts messages into a queue or a topic."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NoReturn

import typer

from pairbus.cli.connection import (
    FAILED,
    USAGE,
    Connection,
    ConnectionOption,
    JsonOption,
    one_line,
    read_connection,
    run,
)
from pairbus.cli.durations import read_duration, read_moment
from pairbus.cli.entity_names import SendingArgument, entity_path, explaining
from pairbus.cli.failure import fail
from pairbus.cli.interruption import telling_how_far
from pairbus.cli.message_feed import fed
from pairbus.cli.message_lines import Batch, MessageLineError, read_batches
from pairbus.cli.work_bar import Advance, work_bar
from pairbus.client.amqp_json import TYPED_TEXTS, value_from_text
from pairbus.client.errors import EntityNotFoundError, InvalidMessageError, MessagingError, UnauthorizedError
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.dialect.entity_path import split_entity_path

_AT_A_TIME: Final = 500
_MOST_BYTES: Final = 1 << 20
_STDIN: Final = Path("-")
_SHORTEST: Final = timedelta(milliseconds=1)

_BodyOption = Annotated[str | None, typer.Option("--body", help="the body", metavar="TEXT", show_default=False)]
_FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="a file that is the body; - for standard input", metavar="FILE", show_default=False),
]
_LinesOption = Annotated[
    Path | None,
    typer.Option(
        "--lines",
        help="a file of messages, one JSON object a line, as receive and peek write them; - for standard input",
        metavar="FILE",
        show_default=False,
    ),
]
_FromLineOption = Annotated[
    int, typer.Option("--from-line", min=1, help="the line of --lines to begin with", metavar="N")
]
_NewIdsOption = Annotated[
    bool, typer.Option("--new-ids", help="with --lines: give each message another id, so that none is a duplicate")
]
_PropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        help=f"an application property, a text or of a type: {', '.join(TYPED_TEXTS)}; may be repeated",
        metavar="NAME=TEXT or NAME:TYPE=VALUE",
        show_default=False,
    ),
]
_SessionOption = Annotated[
    str | None, typer.Option("--session-id", help="the session that it belongs to", metavar="ID", show_default=False)
]
_MessageIdOption = Annotated[
    str | None, typer.Option("--message-id", help="its id; else one is made up", metavar="ID", show_default=False)
]
_CorrelationOption = Annotated[
    str | None,
    typer.Option("--correlation-id", help="the id of what it belongs to", metavar="ID", show_default=False),
]
_LabelOption = Annotated[str | None, typer.Option("--label", help="its subject", metavar="TEXT", show_default=False)]
_ContentTypeOption = Annotated[
    str | None, typer.Option("--content-type", help="such as application/json", metavar="TYPE", show_default=False)
]
_TimeToLiveOption = Annotated[
    str | None, typer.Option("--ttl", help="how long it lives, such as 30s or 14d", metavar="TIME", show_default=False)
]
_ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="when it is to be enqueued: 2030-01-02T03:04:05Z (without a zone, by this machine's clock), or how long"
        " until then, such as 10m",
        metavar="TIME",
        show_default=False,
    ),
]
_CountOption = Annotated[
    int, typer.Option("--count", min=1, help="how many messages to send, each with its own id", metavar="N")
]


@dataclass(slots=True)
class _Tally:
    """How far it has come."""

    sent: int = 0
    part: int = 0
    """The same in what the whole is measured in."""

    under_way: Batch | None = field(default=None, repr=False)
    reached: asyncio.Future[None] | None = field(default=None, repr=False)
    """Done when there has been a connection; before that nothing can have been sent."""

    @property
    def is_begun(self) -> bool:
        return self.reached is not None and self.reached.done()


def send(
    connection: ConnectionOption,
    entity: SendingArgument = None,
    body: _BodyOption = None,
    file: _FileOption = None,
    lines: _LinesOption = None,
    from_line: _FromLineOption = 1,
    new_ids: _NewIdsOption = False,
    properties: _PropertyOption = None,
    session_id: _SessionOption = None,
    message_id: _MessageIdOption = None,
    correlation_id: _CorrelationOption = None,
    label: _LabelOption = None,
    content_type: _ContentTypeOption = None,
    ttl: _TimeToLiveOption = None,
    schedule: _ScheduleOption = None,
    count: _CountOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Send messages to a queue or a topic, here or in Azure.

    Without --body, --file and --lines, what comes by standard input is the body of one message, to its last byte.

    A file of lines is looked at whole before its first message is sent. If sending it is stopped half-way, the command
    says with which line to go on; what was under way then may arrive twice.

    It ends with 0 when all messages are on the namespace's disk, with 1 when something went wrong, with 2 when it was
    asked for something that cannot be, with 130 when it was stopped by Ctrl-C, and with 143 by SIGTERM.

    Example: pairbus send orders --connection @contoso.txt --body 'one espresso' --property table:int=4

    Example: pairbus send orders --connection @contoso.txt --lines orders.jsonl
    """
    namespace = read_connection(connection)
    path = _sendable(entity_path(entity, namespace))
    options = {
        "session_id": session_id,
        "message_id": message_id,
        "correlation_id": correlation_id,
        "label": label,
        "content_type": content_type,
        "time_to_live": None if ttl is None else read_duration("--ttl", ttl, least=_SHORTEST),
        "scheduled_enqueue_time": None if schedule is None else read_moment("--schedule", schedule, datetime.now(UTC)),
        "application_properties": dict(map(_read_property, properties)) if properties else None,
    }
    if sum(one is not None for one in (body, file, lines)) > 1:
        fail("--body, --file and --lines are three ways to say it: leave two of them out", USAGE)
    if lines is not None:
        if count > 1 or any(value is not None for value in options.values()):
            fail("with --lines, each line says all of its message: leave out what describes a single one", USAGE)
        _send_lines(namespace, path, lines, from_line, new_ids=new_ids, as_json=as_json)
        return
    if from_line > 1 or new_ids:
        fail("--from-line and --new-ids belong to --lines", USAGE)
    if message_id is not None and count > 1:
        fail("--message-id names one message: leave it out, or --count", USAGE)
    batches = _copies(_read_body(body, file), options, count)
    _send_all(namespace, path, batches, total=count, as_json=as_json)


# What is sent.


def _sendable(path: str) -> str:
    found = split_entity_path(path)
    if found is not None and (found.subscription is not None or found.sub_queue is not None):
        fail(f"'{path}' cannot be sent to; a queue or a topic can", USAGE)
    return path


def _read_property(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        fail(f"--property is {text!r:.50}; it is NAME=TEXT or NAME:TYPE=VALUE", USAGE)
    plain, colon, kind = name.rpartition(":")
    if not colon:
        return name, value
    if kind not in TYPED_TEXTS:
        known = ", ".join(TYPED_TEXTS)
        fail(
            f"--property {name!r:.50}: {kind!r:.50} is no type; it is one of {known}. If the colon belongs to the name,"
            " say NAME:string=TEXT",
            USAGE,
        )
    try:
        return plain, value_from_text(kind, value)
    except (ArithmeticError, ValueError) as error:
        fail(f"--property {plain}:{kind}: {one_line(error)}", USAGE)


def _read_body(body: str | None, file: Path | None) -> bytes:
    if body is not None:
        return os.fsencode(body)  # what a shell hands over is bytes
    if file is None or file == _STDIN:
        if sys.stdin.isatty():
            print("the body, and Ctrl-D at its end:", file=sys.stderr)
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        fail(f"--file: {file} cannot be read: {error.strerror}", USAGE)


def _copies(body: bytes, options: dict[str, Any], count: int) -> Iterator[Batch]:
    """A message as often as it is wanted; ends the command if it cannot be sent at all."""
    try:
        encode_brokered(BrokeredMessage(body, **options))
    except InvalidMessageError as error:
        fail(one_line(error.message), USAGE)
    at_a_time = max(1, min(_AT_A_TIME, _MOST_BYTES // max(len(body), 1)))
    for first in range(1, count + 1, at_a_time):
        last = min(first + at_a_time - 1, count)
        messages = [BrokeredMessage(body, **options) for _ in range(first, last + 1)]
        yield Batch(first_line=first, last_line=last, messages=messages, size_bytes=len(messages))


def _send_lines(namespace: Connection, path: str, file: Path, from_line: int, *, new_ids: bool, as_json: bool) -> None:
    try:
        with _opened(file) as opened:
            total = None
            if file.is_file():
                total = file.stat().st_size
                # A line that is no message is found before the first one is sent.
                count = sum(len(batch.messages) for batch in read_batches(opened, from_line))
                if not count and from_line > 1:
                    fail(f"--from-line is {from_line}, and {file} has no message from there on", USAGE)
                opened.seek(0)
            batches = read_batches(opened, from_line)
            batches = map(_with_new_ids, batches) if new_ids else batches
            _send_all(namespace, path, batches, total=total, as_json=as_json, file=file)
    except MessageLineError as error:
        fail(f"{_name(file)}, {error}; nothing has been sent", USAGE)
    except OSError as error:
        fail(f"--lines: {file} cannot be read: {error.strerror}", USAGE)


def _opened(file: Path) -> BinaryIO:
    if file != _STDIN:
        return file.open("rb")
    # Without a buffer: its lock would be held by a thread that waits for more, and keep the process from ending.
    return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


def _name(file: Path) -> str:
    return "standard input" if file == _STDIN else str(file)


def _with_new_ids(batch: Batch) -> Batch:
    for message in batch.messages:
        message.message_id = BrokeredMessage().message_id
    return batch


# Sending.


def _send_all(
    namespace: Connection,
    path: str,
    batches: Iterator[Batch],
    *,
    total: int | None,
    as_json: bool,
    file: Path | None = None,
) -> None:
    tally = _Tally()
    with (
        telling_how_far(lambda: _so_far(tally, file)),
        work_bar("sent", total, is_wanted=total is None or total > _AT_A_TIME) as advance,
    ):
        run(_send(namespace, path, batches, tally, advance, file), explaining(path))
    if as_json:
        print(json.dumps({"entity": path, "sent": tally.sent}))
    else:
        print(f"{tally.sent:,} {'message' if tally.sent == 1 else 'messages'} sent to '{path}'")


async def _send(
    namespace: Connection,
    path: str,
    batches: Iterator[Batch],
    tally: _Tally,
    advance: Advance,
    file: Path | None,
) -> None:
    async with AsyncExitStack() as stack:
        factory = await stack.enter_async_context(namespace.factory())
        tally.reached = factory.reached()
        sender = await factory.create_message_sender(path)
        try:
            async for batch in _each(batches, file):
                tally.under_way = batch
                await sender.send(batch.messages)
                tally.sent += len(batch.messages)
                tally.part += batch.size_bytes
                tally.under_way = None
                advance(tally.sent, tally.part)
        except MessagingError as error:
            _fail_half_way(error, path, tally, file)
        except MessageLineError as error:
            fail(f"{_name(file or _STDIN)}, {error}; {_so_far(tally, file)}", USAGE)


async def _each(batches: Iterator[Batch], file: Path | None) -> AsyncIterator[Batch]:
    if file is None:
        for batch in batches:
            yield batch
    else:
        async for batch in fed(batches):
            yield batch


def _fail_half_way(error: MessagingError, path: str, tally: _Tally, file: Path | None) -> NoReturn:
    told = explaining(path)(error)
    if not tally.is_begun or (not tally.sent and isinstance(error, EntityNotFoundError | UnauthorizedError)):
        fail(f"{told}; nothing was sent", FAILED)
    batch = tally.under_way
    where = ""
    if file is not None and batch is not None:
        lines = f"lines {batch.first_line:,} to {batch.last_line:,}"
        where = f"{_name(file)}, {lines if batch.first_line < batch.last_line else f'line {batch.first_line:,}'}: "
    is_one = batch is not None and len(batch.messages) == 1
    is_refused = is_one and not tally.sent and not error.is_transient
    fail(f"{where}{told}{'' if is_refused else f'; {_so_far(tally, file)}'}", FAILED)


def _so_far(tally: _Tally, file: Path | None) -> str:
    """What is certain, and how to go on."""
    told = f"{tally.sent:,} sent" if tally.sent else "nothing sent"
    batch = tally.under_way
    if batch is None or not tally.is_begun:
        return told
    count = len(batch.messages)
    told += f", and perhaps {f'some of the {count:,} that were' if count > 1 else 'the one that was'} under way"
    return told + (f"; go on with --from-line {batch.first_line}" if file not in {None, _STDIN} else "")
