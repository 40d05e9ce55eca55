"""``pairbus serve``: a namespace on the network, until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from pairbus.cli.failure import fail
from pairbus.console import open_console
from pairbus.ledger import LedgerError
from pairbus.server import NamespaceServer
from pairbus.server.declaration import DeclarationError
from pairbus.server.event_loop import new_event_loop
from pairbus.server.listener import Listener, ListenError
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

try:
    import resource
except ImportError:  # there is no such limit on Windows
    resource = None  # type: ignore[assignment]

_FAILED: Final = 1
_BAD_SETTINGS: Final = 2
_NO_PORT: Final = frozenset({errno.EADDRINUSE, errno.EACCES})
_KEY_CHARACTERS: Final = 32
"""What is shorter can be guessed; those that are made have 44, as those of Azure."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve(config: Path | None = None, **options: Any) -> None:
    """Serve a namespace, and print the connection string to use.

    What is not given here is taken from variables of the environment (PAIRBUS_SERVE_PORT for --port), then from the
    settings file. SIGTERM and Ctrl-C stop it after what is under way; a second one stops it at once.

    Example: pairbus serve --data ./contoso --name contoso --port 5672
    """
    try:
        settings = load_settings(options, os.environ, config)
        _set_up_logging(settings)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(settings))
    except (SettingsError, DeclarationError) as error:
        fail(str(error), _BAD_SETTINGS)
    except ListenError as error:
        advice = "; name another with --port, or 0 for any that is free" if error.errno in _NO_PORT else ""
        fail(f"{error.strerror}{advice}", _FAILED)
    except (StoreError, LedgerError, OSError) as error:
        fail(str(error), _FAILED)


def _raise_file_limit() -> None:
    """Let as many files be open as the system allows: every connection is one."""
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _try_ports(settings: Settings) -> None:
    """A data directory is large: none is made for a namespace that cannot be reached. Raises ``ListenError``."""
    if settings.data.exists():
        return
    listener = Listener(
        asyncio.get_running_loop(),
        lambda _is_secure: asyncio.Protocol(),
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
    annexes = [partial(open_console, settings)] if settings.console else []
    async with NamespaceServer(settings, annexes=annexes) as server:
        _announce(settings, server)
        await stopped.wait()
        await server.stop()


def _stop_on_signals() -> asyncio.Event:
    """An event that the first signal sets. The second one ends the process as it is: the store does not mind."""
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


# What it says.


def _announce(settings: Settings, server: NamespaceServer) -> None:
    ports = ", ".join(map(str, server.ports))
    lines = {"namespace": settings.name, "host": settings.host, "ports": ports, "data": str(settings.data)}
    if server.ca_file is not None:
        lines["trust"] = f"{server.ca_file} (pairbus trust --data {settings.data} says how)"
    if settings.console:
        lines["console"] = f"{server.address}/console"
    if sys.stdout.isatty():
        _announce_in_colour(lines, server.connection_string)
    else:
        print(*(f"{name}: {text}" for name, text in lines.items()), server.connection_string, sep="\n", flush=True)
    if settings.allow_any_jwt:
        _warn("allow_any_jwt lets EVERYONE in who can make a JSON web token")
    if settings.key is not None and len(settings.key) < _KEY_CHARACTERS:
        _warn(
            f"the root key has {len(settings.key)} characters, and may be guessed: take at least {_KEY_CHARACTERS},"
            " or leave it out to have one made"
        )


def _warn(text: str) -> None:
    print(f"pairbus: WARNING: {text}", file=sys.stderr, flush=True)


def _announce_in_colour(lines: dict[str, str], connection_string: str) -> None:
    console = Console(highlight=False, soft_wrap=True)  # a line that was broken could not be copied
    for name, text in lines.items():
        console.print(f"[dim]{name:>9}[/dim]  ", end="")
        console.print(text, markup=False)
    console.print(connection_string, markup=False, style="bold green")


class _JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _set_up_logging(settings: Settings) -> None:
    handler = logging.StreamHandler()  # to stderr: what is printed is for whoever reads the connection string
    is_json = settings.log_format is LogFormat.JSON
    handler.setFormatter(
        _JsonFormatter() if is_json else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # what it says of each WebSocket is of no interest


# What it takes: one option for each setting, so that they are declared once.


def _option(setting: Setting) -> Parameter:
    negation = f"/{setting.option.replace('--', '--no-', 1)}" if setting.kind is bool else ""
    has_default = setting.default is not MISSING and setting.shown_default
    info = typer.Option(
        setting.option + negation, help=setting.summary, show_default=setting.shown_default if has_default else False
    )
    kind: Any = list[setting.kind] if setting.is_repeatable else setting.kind  # type: ignore[name-defined]
    # Without a default: what is not given on the command line may be given elsewhere.
    return Parameter(setting.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info])


def _config() -> Parameter:
    info = typer.Option("--config", help=f"a settings file: ours, or the emulator's Config.json [{CONFIG_VARIABLE}]")
    return Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, info])


def _take_options(command: Callable[..., None]) -> None:
    parameters = [_config(), *map(_option, SETTINGS.values())]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


_take_options(serve)
