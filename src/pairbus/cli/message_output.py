"""Where received messages go: onto the screen or into a pipe, or to a file that keeps them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import typer

from pairbus.cli.amqp_json import moment_text
from pairbus.cli.connection import FAILED, USAGE
from pairbus.cli.failure import fail
from pairbus.cli.message_lines import DEAD_LETTER_PROPERTIES, line_of
from pairbus.client.message import BodyKind
from pairbus.client.received_message import ReceivedMessage
from pairbus.durable import sync_directory
from pairbus.spark.value_text import text_of
from pairbus.wire import Sections

_SHOWN: Final = (
    *("session_id", "label", "content_type", "correlation_id", "to", "reply_to"),
    *("dead_letter_reason", "dead_letter_error_description"),
)

Output: TypeAlias = Callable[[Sequence[ReceivedMessage]], None]
"""Takes messages; when it returns, they are where they should be."""


@contextmanager
def message_output(entity: str, lines: Path | None, *, as_json: bool, body_only: bool) -> Iterator[Output]:
    """What the options ask for; ends the command if that cannot be."""
    if lines is not None and body_only:
        fail("--lines writes whole messages: leave out --body", USAGE)
    if lines is None:
        with _to_whoever_reads():
            yield _printer(entity, as_json=as_json, body_only=body_only)
        return
    with _open(lines) as file:
        yield lambda messages: _keep(file, lines, "".join(f"{line_of(one, entity)}\n" for one in messages).encode())


# A file.


def _open(path: Path) -> BinaryIO:
    """Open a file to add to: what was taken from a queue before is not written over."""
    try:
        file = path.open("ab+", buffering=0)  # what could not be written must not be tried again when it is closed
        _keep_name(path)
        is_whole = _is_whole(file)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}", FAILED)
    if not is_whole:
        file.close()
        fail(f"the last line of {path} has no end, so nothing is added: whoever wrote it was stopped", FAILED)
    return file


def _is_whole(file: BinaryIO) -> bool:
    if not file.seekable() or not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _keep(file: BinaryIO, path: Path, octets: bytes) -> None:
    """Write, and wait until it is on the disk: the messages are settled after that."""
    try:
        left = memoryview(octets)
        while left:
            left = left[file.write(left) :]
        if path.is_file():
            os.fsync(file.fileno())
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}", FAILED)


def _keep_name(path: Path) -> None:
    """A new name is in its directory, and that is to be kept too."""
    if os.name == "posix" and path.is_file():
        sync_directory(path.absolute().parent)


# The screen.


@contextmanager
def _to_whoever_reads() -> Iterator[None]:
    """Who does not want to read on has had enough, and knows: that is no news."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # else Python complains in the end that it cannot write the rest
        raise typer.Exit(FAILED) from None


def _printer(entity: str, *, as_json: bool, body_only: bool) -> Output:
    def octets_of(message: ReceivedMessage) -> bytes:
        if body_only:
            return _octets(message) + b"\n"
        return (line_of(message, entity) if as_json else shown_message(message)).encode(errors="replace") + b"\n"

    def printed(messages: Sequence[ReceivedMessage]) -> None:
        sys.stdout.buffer.write(b"".join(map(octets_of, messages)))
        sys.stdout.buffer.flush()

    return printed


def _octets(message: ReceivedMessage) -> bytes:
    return message.body if message.body_kind is BodyKind.DATA else str(message.body).encode(errors="replace")


def shown_message(message: ReceivedMessage) -> str:
    """What a person wants to know of it."""
    told = [f"#{message.sequence_number}", moment_text(message.enqueued_time), f"id {message.message_id!s}"]
    told += [f"{name.replace('_', ' ')} {value}" for name in _SHOWN if (value := getattr(message, name)) is not None]
    properties = Sections(message.payload).application_properties()
    told += [f"{name}={text_of(value)}" for name, value in properties.items() if name not in DEAD_LETTER_PROPERTIES]
    if message.delivery_count:
        told.append(f"delivered {message.delivery_count} times before")
    if message.state.value:
        told.append(message.state.name.lower())
    return f"{_harmless('  '.join(told))}\n{_shown_body(message)}\n"


def _shown_body(message: ReceivedMessage) -> str:
    octets = _octets(message)
    try:
        return _harmless(octets.decode(), keep="\n\t")
    except UnicodeDecodeError:
        return f"({len(octets):,} bytes that are no text; --body prints them, --json and --lines have them in base64)"


def _harmless(text: str, keep: str = "") -> str:
    """Without what a terminal would take for a command."""
    return "".join(one if one.isprintable() or one in keep else ascii(one)[1:-1] for one in text)
