"""Writing to standard output and pipes, and the exit status if that fails."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import typer

from pairbus.backoff import Backoff
from pairbus.cli.failure import FAILED, fail

if sys.platform != "win32":
    import fcntl
    import select
    import termios

OUTPUT_CLOSED: Final = 141
"""The exit status when the reader of a pipe closes it: 128 + SIGPIPE, as shells report it."""

STANDARD_OUTPUT: Final = "standard output"
_CHUNK_BYTES: Final = 512 if sys.platform == "win32" else select.PIPE_BUF
"""A pipe that polls as writable takes this many bytes without blocking."""

_BACKOFF: Final = Backoff(0.000_5, 0.05)


class OutputError(Exception):
    """An output was closed or cannot be written. ``code`` is the exit status of the command."""

    def __init__(self, name: str, error: OSError) -> None:
        is_closed = isinstance(error, BrokenPipeError)
        super().__init__(f"{name} was closed" if is_closed else f"{name} cannot be written: {error.strerror}")
        self.code = OUTPUT_CLOSED if is_closed else FAILED


# Commands that print.


@contextmanager
def checked_output() -> Iterator[None]:
    """Flush standard output at the end of a command; end the command with a distinct exit status if that fails."""
    if sys.stdout is None:  # it was closed before the command started
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (used until the process exits)
        raise typer.Exit(OUTPUT_CLOSED)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # Rich turns it into SystemExit
            raise typer.Exit(OUTPUT_CLOSED) from None
        raise
    except BrokenPipeError:
        mute()
        raise typer.Exit(OUTPUT_CLOSED) from None
    except OSError as error:
        if not _is_unwritable():  # the error is about something else
            raise
        mute()
        fail(str(OutputError(STANDARD_OUTPUT, error)), FAILED)


def mute() -> None:
    """Discard buffered output: otherwise Python would report at exit that it cannot be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _is_unwritable() -> bool:
    """Return whether standard output still has data that it cannot write."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


# Writing to descriptors without blocking the event loop.


def standard_descriptor() -> int | None:
    """Return the descriptor of standard output; ``None`` if it has none, or the platform cannot poll it."""
    if sys.platform == "win32":
        return None
    try:
        return sys.stdout.fileno()
    except OSError:
        return None


async def write_all(descriptor: int, octets: bytes) -> None:
    """Write everything, as fast as the reader accepts it. Raise ``OSError`` if that fails."""
    left = memoryview(octets)
    while left:
        await _until(lambda: _is_writable(descriptor))
        left = left[os.write(descriptor, left[:_CHUNK_BYTES]) :]


async def wait_until_read(descriptor: int) -> None:
    """Return once the reader of a pipe or socket has read everything; at once if the descriptor is neither.

    Raise ``BrokenPipeError`` if the reader closes it before that. Unread data is lost then.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode):
        await _until(lambda: _is_read(descriptor, termios.FIONREAD))
    elif stat.S_ISSOCK(mode):
        await _until(lambda: _is_read(descriptor, termios.TIOCOUTQ))
        if _events(descriptor) & select.POLLHUP:  # the system discards what a peer has not read when it closes
            raise BrokenPipeError


async def _until(condition: Callable[[], bool]) -> None:
    """Poll with growing pauses: there is no event for an empty pipe."""
    pause_s = 0.0
    while not condition():
        await asyncio.sleep(pause_s)
        pause_s = _BACKOFF.after(pause_s)


def _is_writable(descriptor: int) -> bool:
    return bool(_events(descriptor) & select.POLLOUT)


def _events(descriptor: int) -> int:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    events = dict(poll.poll(0)).get(descriptor, 0)
    if events & select.POLLERR:
        raise BrokenPipeError
    return events


def _is_read(descriptor: int, request: int) -> bool:
    is_read = not _unread_bytes(descriptor, request)
    if not is_read:
        _events(descriptor)  # raises if there is no reader left
    return is_read


def _unread_bytes(descriptor: int, request: int) -> int:
    """Count the unread bytes in a pipe or socket; 0 where the system does not report them to the writer."""
    count = array("i", [0])
    try:
        fcntl.ioctl(descriptor, request, count)
    except OSError:
        return 0
    return count[0]
