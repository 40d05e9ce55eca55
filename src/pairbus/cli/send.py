"""``pairbus send``: send messages to a queue or a topic."""

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

from pairbus.cli.arguments import SendingArgument, entity_path, error_explainer, read_duration, read_moment
from pairbus.cli.connection import ConnectionOption, JsonOption, NamedNamespace, one_line, read_connection, run
from pairbus.cli.failure import FAILED, USAGE, fail
from pairbus.cli.interruption import report_on_interruption
from pairbus.cli.message_lines import LineBatch, MessageLineError, read_ahead, read_batches
from pairbus.cli.message_output import Advance, message_count, work_bar
from pairbus.client.amqp_json import TYPED_TEXTS, value_from_text
from pairbus.client.errors import EntityNotFoundError, InvalidMessageError, MessagingError, UnauthorizedError
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.dialect.paths import split_entity_path

_AT_A_TIME: Final = 500
_MOST_BYTES: Final = 1 << 20
_STDIN: Final = Path("-")
_SHORTEST: Final = timedelta(milliseconds=1)

_BodyOption = Annotated[
    str | None, typer.Option("--body", help="the body of the message", metavar="TEXT", show_default=False)
]
_FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", help="the file with the body of the message; - for standard input", metavar="FILE", show_default=False
    ),
]
_LinesOption = Annotated[
    Path | None,
    typer.Option(
        "--lines",
        help="a file of messages, one JSON object per line, as written by receive and peek; - for standard input",
        metavar="FILE",
        show_default=False,
    ),
]
_FromLineOption = Annotated[
    int, typer.Option("--from-line", min=1, help="the first line of --lines to send", metavar="N")
]
_NewIdsOption = Annotated[
    bool, typer.Option("--new-ids", help="replace the message ids of --lines, so that no message is a duplicate")
]
_PropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        help=f"an application property, as text or with a type: {', '.join(TYPED_TEXTS)}; may be repeated",
        metavar="NAME=TEXT or NAME:TYPE=VALUE",
        show_default=False,
    ),
]
_SessionOption = Annotated[
    str | None, typer.Option("--session-id", help="the session id", metavar="ID", show_default=False)
]
_MessageIdOption = Annotated[
    str | None, typer.Option("--message-id", help="the message id; random by default", metavar="ID", show_default=False)
]
_CorrelationOption = Annotated[
    str | None,
    typer.Option("--correlation-id", help="the correlation id", metavar="ID", show_default=False),
]
_LabelOption = Annotated[
    str | None, typer.Option("--label", help="the label (subject)", metavar="TEXT", show_default=False)
]
_ContentTypeOption = Annotated[
    str | None,
    typer.Option(
        "--content-type", help="the content type, such as application/json", metavar="TYPE", show_default=False
    ),
]
_TimeToLiveOption = Annotated[
    str | None, typer.Option("--ttl", help="the time to live, such as 30s or 14d", metavar="TIME", show_default=False)
]
_ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="the scheduled enqueue time, such as 2030-01-02T03:04:05Z (local time if it has no zone), or a duration"
        " from now, such as 10m",
        metavar="TIME",
        show_default=False,
    ),
]
_CountOption = Annotated[
    int, typer.Option("--count", min=1, help="the number of messages to send, each with its own id", metavar="N")
]


@dataclass(slots=True)
class _Tally:
    """The progress of the command."""

    sent: int = 0
    part: int = 0
    """The messages sent so far, in the unit of the total."""

    under_way: LineBatch | None = field(default=None, repr=False)
    reached: asyncio.Future[None] | None = field(default=None, repr=False)
    """Done once a connection has been open; before that, nothing can have been sent."""

    @property
    def has_connected(self) -> bool:
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
    """Send messages to a queue or a topic, on pairbus or Azure.

    Without --body, --file and --lines, standard input is the body of one message, to its last byte.

    With --lines, the whole file is validated before the first message is sent. If sending stops half-way, the command
    prints the line to resume from; the messages of the unconfirmed batch may arrive twice.

    Exits with 0 when the namespace has stored all messages durably, with 1 on an error, with 2 on invalid arguments,
    with 130 on Ctrl-C, and with 143 on SIGTERM.

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
        fail("--body, --file and --lines exclude each other: use one of them", USAGE)
    if lines is not None:
        if count > 1 or any(value is not None for value in options.values()):
            fail(
                "with --lines, each line describes its message: remove the options that describe a single message",
                USAGE,
            )
        _send_lines(namespace, path, lines, from_line, new_ids=new_ids, as_json=as_json)
        return
    if from_line > 1 or new_ids:
        fail("--from-line and --new-ids require --lines", USAGE)
    if message_id is not None and count > 1:
        fail("--message-id applies to a single message: remove it or --count", USAGE)
    batches = _copies(_read_body(body, file), options, count)
    _send_all(namespace, path, batches, total=count, as_json=as_json)


# Messages.


def _sendable(path: str) -> str:
    found = split_entity_path(path)
    if found is not None and (found.subscription is not None or found.sub_queue is not None):
        fail(f"cannot send to '{path}'; name a queue or a topic", USAGE)
    return path


def _read_property(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        fail(f"--property must be NAME=TEXT or NAME:TYPE=VALUE, got {text!r:.50}", USAGE)
    plain, colon, kind = name.rpartition(":")
    if not colon:
        return name, value
    if kind not in TYPED_TEXTS:
        known = ", ".join(TYPED_TEXTS)
        fail(
            f"--property {name!r:.50}: the type must be one of {known}, got {kind!r:.50}; if the colon is part of the"
            " name, write NAME:string=TEXT",
            USAGE,
        )
    try:
        return plain, value_from_text(kind, value)
    except (ArithmeticError, ValueError) as error:
        fail(f"--property {plain}:{kind}: {one_line(error)}", USAGE)


def _read_body(body: str | None, file: Path | None) -> bytes:
    if body is not None:
        return os.fsencode(body)  # the shell passes bytes
    if file is None or file == _STDIN:
        if sys.stdin.isatty():
            print("enter the body, then press Ctrl-D:", file=sys.stderr)
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        fail(f"--file: {file} cannot be read: {error.strerror}", USAGE)


def _copies(body: bytes, options: dict[str, Any], count: int) -> Iterator[LineBatch]:
    """Yield batches of ``count`` equal messages; end the command if the message is invalid."""
    try:
        encode_brokered(BrokeredMessage(body, **options))
    except InvalidMessageError as error:
        fail(one_line(error.message), USAGE)
    at_a_time = max(1, min(_AT_A_TIME, _MOST_BYTES // max(len(body), 1)))
    for first in range(1, count + 1, at_a_time):
        last = min(first + at_a_time - 1, count)
        messages = [BrokeredMessage(body, **options) for _ in range(first, last + 1)]
        yield LineBatch(first_line=first, last_line=last, messages=messages, size_bytes=len(messages))


def _send_lines(
    namespace: NamedNamespace, path: str, file: Path, from_line: int, *, new_ids: bool, as_json: bool
) -> None:
    try:
        with _opened(file) as opened:
            total = None
            if file.is_file():
                total = file.stat().st_size
                # Report an invalid line before the first message is sent.
                count = sum(len(batch.messages) for batch in read_batches(opened, from_line))
                if not count and from_line > 1:
                    fail(f"--from-line is {from_line}, but {file} has no message from that line on", USAGE)
                opened.seek(0)
            batches = read_batches(opened, from_line)
            batches = map(_with_new_ids, batches) if new_ids else batches
            _send_all(namespace, path, batches, total=total, as_json=as_json, file=file)
    except MessageLineError as error:
        fail(f"{_name(file)}, {error}; nothing was sent", USAGE)
    except OSError as error:
        fail(f"--lines: {file} cannot be read: {error.strerror}", USAGE)


def _opened(file: Path) -> BinaryIO:
    if file != _STDIN:
        return file.open("rb")
    # Unbuffered: a thread waiting for input would hold the buffer's lock, and the process could not exit.
    return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


def _name(file: Path) -> str:
    return "standard input" if file == _STDIN else str(file)


def _with_new_ids(batch: LineBatch) -> LineBatch:
    for message in batch.messages:
        message.message_id = BrokeredMessage().message_id
    return batch


# Sending.


def _send_all(
    namespace: NamedNamespace,
    path: str,
    batches: Iterator[LineBatch],
    *,
    total: int | None,
    as_json: bool,
    file: Path | None = None,
) -> None:
    tally = _Tally()
    with (
        report_on_interruption(lambda: _progress(tally, file)),
        work_bar("sent", total, is_shown=total is None or total > _AT_A_TIME) as advance,
    ):
        run(_send(namespace, path, batches, tally, advance, file), error_explainer(path))
    if as_json:
        print(json.dumps({"entity": path, "sent": tally.sent}))
    else:
        print(f"{message_count(tally.sent)} sent to '{path}'")


async def _send(
    namespace: NamedNamespace,
    path: str,
    batches: Iterator[LineBatch],
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
            fail(f"{_name(file or _STDIN)}, {error}; {_progress(tally, file)}", USAGE)


async def _each(batches: Iterator[LineBatch], file: Path | None) -> AsyncIterator[LineBatch]:
    if file is None:
        for batch in batches:
            yield batch
    else:
        async for batch in read_ahead(batches):
            yield batch


def _fail_half_way(error: MessagingError, path: str, tally: _Tally, file: Path | None) -> NoReturn:
    text = error_explainer(path)(error)
    if not tally.has_connected or (not tally.sent and isinstance(error, EntityNotFoundError | UnauthorizedError)):
        fail(f"{text}; nothing was sent", FAILED)
    batch = tally.under_way
    where = ""
    if file is not None and batch is not None:
        lines = f"lines {batch.first_line:,} to {batch.last_line:,}"
        where = f"{_name(file)}, {lines if batch.first_line < batch.last_line else f'line {batch.first_line:,}'}: "
    is_one = batch is not None and len(batch.messages) == 1
    is_refused = is_one and not tally.sent and not error.is_transient
    fail(f"{where}{text}{'' if is_refused else f'; {_progress(tally, file)}'}", FAILED)


def _progress(tally: _Tally, file: Path | None) -> str:
    """Describe what was confirmed, what is uncertain, and how to resume."""
    batch = tally.under_way
    if batch is None or not tally.has_connected:
        return f"{tally.sent:,} sent" if tally.sent else "nothing sent"
    text = f"{tally.sent:,} sent, {len(batch.messages):,} unconfirmed"
    return text + (f"; resume with --from-line {batch.first_line}" if file not in {None, _STDIN} else "")
