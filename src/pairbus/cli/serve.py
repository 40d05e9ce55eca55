"""``pairbus serve``: serve a namespace until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import MISSING
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console

from pairbus.cli.failure import fail
from pairbus.cli.log_format import JsonFormatter, TextFormatter
from pairbus.console import open_console
from pairbus.durable import OWNER_ONLY, write_file
from pairbus.ledger import LedgerError
from pairbus.server import NamespaceServer, StopTimeoutError
from pairbus.server.amqp.frame_trace import FRAMES
from pairbus.server.declaration import Declaration, DeclarationError, declared_keys
from pairbus.server.listener import Listener, ListenError
from pairbus.server.process import freeze_modules, new_event_loop, tune_interpreter
from pairbus.server.settings import (
    CONFIG_VARIABLE,
    SETTINGS,
    LogFormat,
    Setting,
    Settings,
    SettingsError,
    load_settings,
)
from pairbus.store import StoreError

_log = logging.getLogger(__name__)

LINES_A_SECOND: Final = 20
"""Maximum for lines of one kind: those of one logger with the same format string, regardless of its arguments."""


class LogLimit(logging.Filter):
    """Limits the lines of each kind per second; the next line that passes counts the dropped ones (``suppressed=``)."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, unlimited: Collection[str] = ()) -> None:
        """``unlimited`` are the names of loggers whose lines all pass."""
        super().__init__()
        self._unlimited = unlimited
        self._now_s = now_s
        self._second = 0
        self._passed: Counter[tuple[str, str]] = Counter()
        """Number of lines in the current second, by kind."""
        self._suppressed: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line."""
        second = int(self._now_s())
        if second != self._second:
            self._second = second
            self._passed.clear()
        if record.name in self._unlimited:
            return True
        kind = (record.name, str(record.msg))
        if self._passed[kind] >= LINES_A_SECOND:
            self._suppressed[kind] += 1
            return False
        self._passed[kind] += 1
        suppressed = self._suppressed.pop(kind, 0)
        if suppressed:
            arguments = record.args if isinstance(record.args, tuple) else ()
            text = str(record.msg) if arguments else record.getMessage().replace("%", "%%")
            record.msg, record.args = f"{text} suppressed=%d", (*arguments, suppressed)
        return True


try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

_FAILED: Final = 1
_BAD_SETTINGS: Final = 2
_NO_ANSWER: Final = 3
"""The storage did not answer when the namespace was stopped."""

_BLOCKED: Final = 4
"""The event loop was blocked for longer than ``blocked_exit_s``."""

_NO_PORT: Final = frozenset({errno.EADDRINUSE, errno.EACCES})
_KEY_CHARACTERS: Final = 32
"""A shorter key can be guessed; generated keys have 44 characters, like those of Azure."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve(config: Path | None = None, **options: Any) -> None:
    """Serve a namespace and print its connection string.

    Unset options are read from environment variables (PAIRBUS_SERVE_PORT for --port), then from the settings file.
    SIGTERM and Ctrl-C stop the server once pending requests are done; a second one stops it at once.

    Example: pairbus serve --data ./contoso --name contoso --port 5672 --connection-file contoso.txt
    """
    try:
        settings = load_settings(options, os.environ, config)
        _check_connection_file(settings)
        _set_up_logging(settings)
        tune_interpreter()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(settings))
    except (SettingsError, DeclarationError) as error:
        fail(str(error), _BAD_SETTINGS)
    except ListenError as error:
        advice = "; choose another with --port, or 0 for any free port" if error.errno in _NO_PORT else ""
        fail(f"{error.strerror}{advice}", _FAILED)
    except (StoreError, LedgerError, OSError) as error:
        fail(str(error), _FAILED)


def _check_connection_file(settings: Settings) -> None:
    """Raise ``SettingsError`` if the connection string cannot be written, before anything is created."""
    file = settings.connection_file
    if file is None:
        return
    if file.is_dir():
        raise _bad_connection_file(file, "is a directory; name a file")
    is_created = file.absolute().is_relative_to(settings.data.absolute())  # at the start, with the data directory
    if not is_created and not file.parent.is_dir():
        raise _bad_connection_file(file, f"cannot be written: {file.parent} is not a directory; create it")
    if not is_created and not os.access(file.parent, os.W_OK):
        raise _bad_connection_file(file, f"cannot be written: {file.parent} is read-only; name another directory")


def _bad_connection_file(file: Path, reason: str) -> SettingsError:
    return SettingsError(f"{SETTINGS['connection_file'].option} {file} {reason}")


def _raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: every connection is an open file."""
    if resource is not None:
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _try_ports(settings: Settings) -> None:
    """Raise ``ListenError`` if a port is in use, before a data directory, which is large, is created."""
    if settings.data.exists():
        return
    listener = Listener(
        asyncio.get_running_loop(),
        lambda _accepted, _is_secure: asyncio.Protocol(),
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        lambda: False,
    )
    try:
        for port in settings.port:
            listener.listen(settings.host, port)
    finally:
        listener.close()


async def _serve(settings: Settings) -> None:
    _raise_file_limit()
    _try_ports(settings)
    stopped = _stop_on_signals()
    extensions = [partial(open_console, settings)] if settings.console else []
    try:
        async with NamespaceServer(settings, extensions=extensions) as server:
            _announce(settings, server)
            if settings.blocked_exit_s:
                server.when_blocked(settings.blocked_exit_s, partial(os._exit, _BLOCKED))
            freeze_modules()
            await stopped.wait()
            await server.stop()
    except StopTimeoutError:  # logged by the server
        _end_now(_NO_ANSWER)


def _end_now(code: int) -> NoReturn:
    """End the process at once. Python would wait for threads that are blocked by the storage."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _stop_on_signals() -> asyncio.Event:
    """Return an event that the first signal sets. The second signal kills the process, which the store survives."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopped.set()
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    return stopped


# Output.


def _announce(settings: Settings, server: NamespaceServer) -> None:
    ports = ", ".join(map(str, server.ports))
    lines = {"namespace": settings.name, "host": settings.host, "ports": ports, "data": str(settings.data)}
    if server.ca_file is not None:
        lines["trust"] = f"{server.ca_file} (see pairbus trust --data {settings.data})"
    if settings.console:
        lines["console"] = f"{server.address}/console"
    if settings.connection_file is not None:
        try:
            write_file(settings.connection_file, f"{server.connection_string}\n".encode(), OWNER_ONLY)
        except OSError as error:
            reason = f"cannot be written: {error.strerror or error}; name another file"
            raise _bad_connection_file(settings.connection_file, reason) from error
        lines["connection"] = f"@{settings.connection_file}"
    connection_string = None if settings.connection_file is not None else server.connection_string
    if sys.stdout.isatty():
        _announce_in_colour(lines, connection_string)
    else:
        texts = [f"{name}: {text}" for name, text in lines.items()]
        print(*texts, *([] if connection_string is None else [connection_string]), sep="\n", flush=True)
    if settings.allow_any_jwt:
        _warn(settings, "allow_any_jwt accepts EVERY JSON web token, without checking who signed it")
    if settings.allow_faults:
        _warn(settings, "allow_faults lets every key with the Manage claim inject faults: do not use it in production")
    if settings.key is not None and len(settings.key) < _KEY_CHARACTERS:
        _warn(
            settings,
            f"the root key has {len(settings.key)} characters and may be guessed: use at least {_KEY_CHARACTERS},"
            " or omit it to generate one",
        )
    for name, length in _short_keys(settings.entities):
        _warn(settings, f"{name} has {length} characters and may be guessed: use at least {_KEY_CHARACTERS}")


def _short_keys(declaration: Declaration) -> Iterator[tuple[str, int]]:
    """Yield the names and lengths of the declared keys that are too short."""
    for owner, rules in declared_keys(declaration):
        for rule in rules:
            length = min(len(rule.primary_key), len(rule.secondary_key))
            if length < _KEY_CHARACTERS:
                yield f"the key '{rule.name}' of {owner}", length


def _warn(settings: Settings, text: str) -> None:
    """Warn about a setting, on standard error: as a line of the log if each line has to be JSON."""
    if settings.log_format is LogFormat.JSON:
        _log.warning("insecure setting reason=%s", text)
    else:
        print(f"pairbus: WARNING: {text}", file=sys.stderr, flush=True)


def _announce_in_colour(lines: dict[str, str], connection_string: str | None) -> None:
    console = Console(highlight=False, soft_wrap=True)  # a wrapped line could not be copied
    for name, text in lines.items():
        console.print(f"[dim]{name:>10}[/dim]  ", end="")
        console.print(text, markup=False)
    if connection_string is not None:
        console.print(connection_string, markup=False, style="bold green")


def _set_up_logging(settings: Settings) -> None:
    handler = logging.StreamHandler()  # to stderr: stdout is for the connection string
    handler.addFilter(LogLimit(unlimited=(FRAMES,)))
    is_json = settings.log_format is LogFormat.JSON
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    if settings.trace_frames:  # whatever the level of the other lines
        logging.getLogger(FRAMES).setLevel(logging.DEBUG)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it logs every WebSocket, and what peers send


# Options: one for each setting, so that settings are declared once.


def _option(setting: Setting) -> Parameter:
    negation = f"/{setting.option.replace('--', '--no-', 1)}" if setting.kind is bool else ""
    has_default = setting.default is not MISSING and setting.shown_default
    info = typer.Option(
        setting.option + negation, help=setting.summary, show_default=setting.shown_default if has_default else False
    )
    kind: Any = list[setting.kind] if setting.is_repeatable else setting.kind  # type: ignore[name-defined]
    # No default: an unset option may be set in the environment or the settings file.
    return Parameter(setting.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info])


def _config() -> Parameter:
    info = typer.Option("--config", help=f"the settings file, or the emulator's Config.json [{CONFIG_VARIABLE}]")
    return Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, info])


def _take_options(command: Callable[..., None]) -> None:
    parameters = [_config(), *map(_option, SETTINGS.values())]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


_take_options(serve)
