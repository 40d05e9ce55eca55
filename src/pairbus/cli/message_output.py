"""Output of received messages: to standard output, or to a file."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pairbus.cli.failure import FAILED, USAGE, fail
from pairbus.cli.message_lines import DEAD_LETTER_PROPERTIES, line_of
from pairbus.cli.standard_output import (
    OUTPUT_CLOSED,
    STANDARD_OUTPUT,
    OutputError,
    mute,
    standard_descriptor,
    wait_until_read,
    write_all,
)
from pairbus.client.amqp_json import moment_text
from pairbus.client.message import BodyKind
from pairbus.client.received_message import ReceivedMessage
from pairbus.durable import sync_directory
from pairbus.spark.value_text import text_of
from pairbus.wire import Sections


def message_count(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


Advance = Callable[[int, int], None]
"""Called with the number of messages done, and the part of the total that they are."""


@contextmanager
def work_bar(verb: str, total: int | None, *, is_shown: bool = True) -> Iterator[Advance]:
    """Show a progress bar on standard error if that is a terminal."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda _done, _part: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False, markup=False), transient=True) as bars:
        task = bars.add_task(f"0 {verb}", total=total)

        def advance(done: int, part: int) -> None:
            bars.update(task, description=f"{done:,} {verb}", completed=part)

        yield advance


_SHOWN: Final = (
    *("session_id", "label", "content_type", "correlation_id", "to", "reply_to"),
    *("dead_letter_reason", "dead_letter_error_description"),
)

Output: TypeAlias = Callable[[Sequence[ReceivedMessage]], AsyncIterator[ReceivedMessage]]
"""Write messages in order, and yield each once it is written. Raise ``OutputError`` if the output takes no more."""

_Write: TypeAlias = Callable[[bytes], Awaitable[None]]
_Encode: TypeAlias = Callable[[ReceivedMessage], bytes]


@contextmanager
def message_output(
    entity: str,
    lines: Path | None,
    *,
    as_json: bool,
    body_only: bool,
    so_far: Callable[[], str] | None = None,
) -> Iterator[Output]:
    """Open the output that the options ask for, and end the command when it takes no more.

    A command that removes messages passes ``so_far``, which describes what it did with them. Its messages count as
    written once the reader of a pipe has read them, so that the rest can be abandoned. Other commands end silently when
    their output is closed.
    """
    if lines is not None and body_only:
        fail("--lines writes whole messages: remove --body", USAGE)
    encode = partial(_encoded, entity=entity, as_json=as_json, body_only=body_only)
    try:
        if lines is None:
            yield _to_standard_output(encode, until_read=so_far is not None)
        elif _is_device(lines):
            with _open_pipe(lines) as file:
                write = partial(_write, file.fileno(), until_read=so_far is not None)
                yield _one_by_one(str(lines), partial(_line, entity), write)
        else:
            with _open(lines) as file:
                yield _to_file(file, lines, partial(_line, entity))
    except OutputError as error:
        if error.code == OUTPUT_CLOSED and so_far is None:
            raise typer.Exit(error.code) from None
        fail(f"{error}{'' if so_far is None else f'; {so_far()}'}", error.code)


# A file.


def _to_file(file: BinaryIO, path: Path, encode: _Encode) -> Output:
    """Write messages together, and sync them to the disk together."""

    async def write(messages: Sequence[ReceivedMessage]) -> AsyncIterator[ReceivedMessage]:
        try:
            await asyncio.to_thread(_keep, file, b"".join(map(encode, messages)))
        except OSError as error:
            raise OutputError(str(path), error) from None
        for message in messages:
            yield message

    return write


def _open(path: Path) -> BinaryIO:
    """Open a file for appending, so that messages received earlier are not overwritten."""
    try:
        file = path.open("ab+", buffering=0)  # unbuffered: closing must not retry a failed write
        _keep_name(path)
        is_whole = _is_whole(file)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}", FAILED)
    if not is_whole:
        file.close()
        fail(f"the last line of {path} is incomplete: complete or remove it, or name another file", FAILED)
    return file


def _is_whole(file: BinaryIO) -> bool:
    if not file.seekable() or not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _keep(file: BinaryIO, octets: bytes) -> None:
    """Write and sync to disk; the messages are settled after that."""
    left = memoryview(octets)
    while left:
        left = left[file.write(left) :]
    os.fsync(file.fileno())


def _keep_name(path: Path) -> None:
    """Make the name of a new file durable in its directory."""
    if os.name == "posix":
        sync_directory(path.absolute().parent)


# Pipes, terminals and other devices, standard output among them.


def _is_device(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:  # it does not exist, or opening it raises the error
        return False


def _open_pipe(path: Path) -> BinaryIO:
    """Open for writing only: with a read end of our own, we would not notice that the readers have closed the pipe."""
    try:
        return path.open("wb", buffering=0)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}", FAILED)


def _to_standard_output(encode: _Encode, *, until_read: bool) -> Output:
    descriptor = standard_descriptor()
    write = _print if descriptor is None else partial(_write, descriptor, until_read=until_read)
    return _one_by_one(STANDARD_OUTPUT, encode, write)


def _one_by_one(name: str, encode: _Encode, write: _Write) -> Output:
    async def write_each(messages: Sequence[ReceivedMessage]) -> AsyncIterator[ReceivedMessage]:
        for message in messages:
            try:
                await write(encode(message))
            except OSError as error:
                if name == STANDARD_OUTPUT:
                    mute()
                raise OutputError(name, error) from None
            yield message

    return write_each


async def _write(descriptor: int, octets: bytes, *, until_read: bool) -> None:
    await write_all(descriptor, octets)
    if until_read:
        await wait_until_read(descriptor)


async def _print(octets: bytes) -> None:
    def print_now() -> None:
        sys.stdout.buffer.write(octets)
        sys.stdout.buffer.flush()

    await asyncio.to_thread(print_now)


# Messages as text.


def _line(entity: str, message: ReceivedMessage) -> bytes:
    return f"{line_of(message, entity)}\n".encode()


def _encoded(message: ReceivedMessage, *, entity: str, as_json: bool, body_only: bool) -> bytes:
    if body_only:
        return _octets(message) + b"\n"
    return (line_of(message, entity) if as_json else shown_message(message)).encode(errors="replace") + b"\n"


def _octets(message: ReceivedMessage) -> bytes:
    return message.body if message.body_kind is BodyKind.DATA else str(message.body).encode(errors="replace")


def shown_message(message: ReceivedMessage) -> str:
    """Return the main fields and the body of a message, to be read by a user."""
    parts = [f"#{message.sequence_number}", moment_text(message.enqueued_time), f"id {message.message_id!s}"]
    parts += [f"{name.replace('_', ' ')} {value}" for name in _SHOWN if (value := getattr(message, name)) is not None]
    properties = Sections(message.payload).application_properties()
    parts += [f"{name}={text_of(value)}" for name, value in properties.items() if name not in DEAD_LETTER_PROPERTIES]
    if message.delivery_count:
        parts.append(f"delivered {message.delivery_count} times before")
    if message.state.value:
        parts.append(message.state.name.lower())
    return f"{_harmless('  '.join(parts))}\n{_shown_body(message)}\n"


def _shown_body(message: ReceivedMessage) -> str:
    octets = _octets(message)
    try:
        return _harmless(octets.decode(), keep="\n\t")
    except UnicodeDecodeError:
        return f"({len(octets):,} bytes, not text; --body prints them, --json and --lines encode them in base64)"


def _harmless(text: str, keep: str = "") -> str:
    """Escape characters that a terminal would interpret as control sequences."""
    return "".join(one if one.isprintable() or one in keep else ascii(one)[1:-1] for one in text)
