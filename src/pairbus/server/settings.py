"""How a namespace is served: one declaration for the settings file, the environment and the command line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from pairbus.broker import PREMIUM, RELAXED, STANDARD, Limits
from pairbus.server.declaration import Declaration, DeclarationError, nearest, parse_declaration, read_value
from pairbus.server.emulator import read_emulator_config
from pairbus.store.lmdb import DEFAULT_MAX_BYTES

PREFIX: Final = "PAIRBUS_SERVE_"
"""What the names of variables begin with."""

CONFIG_VARIABLE: Final = PREFIX + "CONFIG"
"""Names the settings file, where the command line does not."""

DEFAULT_NAME: Final = "pairbus"
"""The name of a namespace that was given none."""

_MEGABYTE: Final = 1 << 20
_GIGABYTE: Final = 1 << 30
_NAME: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,48}[A-Za-z0-9])?")
_TABLES: Final = ("queues", "topics", "keys")


class SettingsError(ValueError):
    """A setting that is unknown, missing or wrong; says which, and where it was found."""


class Tier(StrEnum):
    """Whose limits a namespace has."""

    STANDARD = "standard"
    PREMIUM = "premium"
    RELAXED = "relaxed"


class LogLevel(StrEnum):
    """From which weight on something is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line of the log looks."""

    TEXT = "text"
    JSON = "json"


_LIMITS: Final = {Tier.STANDARD: STANDARD, Tier.PREMIUM: PREMIUM, Tier.RELAXED: RELAXED}


def _about(summary: str) -> dict[str, str]:
    return {"summary": summary}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be set. Raises ``SettingsError`` where one does not fit."""

    data: Path = field(metadata=_about("the directory that everything is kept in; made if it is not there"))
    name: str = field(
        default=DEFAULT_NAME, metadata=_about("the name of the namespace: up to 50 letters, digits and hyphens")
    )
    host: str = field(
        default="127.0.0.1", metadata=_about("the address to listen on; 0.0.0.0 is every one of this machine")
    )
    port: tuple[int, ...] = field(
        default=(5672,), metadata=_about("the port, or several, to listen on; 0 is any free one")
    )
    tls_cert: Path | None = field(
        default=None, metadata=_about("a certificate with its chain (PEM), instead of the one made here")
    )
    tls_key: Path | None = field(default=None, metadata=_about("the key of that certificate (PEM)"))
    tier: Tier = field(default=Tier.STANDARD, metadata=_about("whose limits the namespace has"))
    key_name: str = field(default="RootManageSharedAccessKey", metadata=_about("the name of the root key"))
    key: str | None = field(
        default=None, repr=False, metadata=_about("the root key; without it one is made at the first start, and kept")
    )
    jwt_issuer: str | None = field(default=None, metadata=_about("who has to have issued a JSON web token"))
    jwt_audience: str | None = field(
        default=None,
        metadata=_about("whom a JSON web token has to be meant for; https://servicebus.azure.net where it is not set"),
    )
    jwt_keys: str | None = field(
        default=None, metadata=_about("file or https address of the keys (JWKS) that sign JSON web tokens")
    )
    allow_any_jwt: bool = field(
        default=False, metadata=_about("let every JSON web token in, whoever signed it; for development only")
    )
    idle_timeout_s: int = field(
        default=240,
        metadata=_about(
            "seconds within which a client should let itself be heard; after twice as many of silence it is given up"
        ),
    )
    drain_s: float = field(default=10.0, metadata=_about("how many seconds a stop waits for what is under way"))
    max_connections_per_address: int = field(
        default=0, metadata=_about("how many connections one address may have at a time; 0 for any number")
    )
    max_token_minutes: int = field(
        default=0, metadata=_about("for how many minutes a token may still hold when it is shown; 0 for any time")
    )
    max_connections: int = field(default=5_000, metadata=_about("how many connections there may be at a time"))
    max_store_gb: int = field(
        default=DEFAULT_MAX_BYTES // _GIGABYTE, metadata=_about("how many gigabytes the store may take at most")
    )
    side_buffer: Path | None = field(
        default=None,
        metadata=_about(
            "a directory, best on another disk, that sends are kept in while the store cannot take them;"
            " made if it is not there"
        ),
    )
    side_buffer_mb: int = field(default=256, metadata=_about("how many megabytes the side buffer may take at most"))
    throttle_store_percent: float | None = field(
        default=None, metadata=_about("deny sends with server busy while so much of max_store_gb is in use, or more")
    )
    throttle_disk_mb: int | None = field(
        default=None,
        metadata=_about("deny sends with server busy while the disk has room for so few megabytes, or fewer"),
    )
    throttle_memory_mb: int | None = field(
        default=None, metadata=_about("deny sends with server busy while the process has so many megabytes, or more")
    )
    throttle_processor_percent: float | None = field(
        default=None,
        metadata=_about("deny sends with server busy while the event loop uses so much of one processor, or more"),
    )
    throttle_delay_ms: int | None = field(
        default=None,
        metadata=_about("deny sends with server busy while the event loop is so many milliseconds late, or more"),
    )
    log_level: LogLevel = field(default=LogLevel.INFO, metadata=_about("from which weight on something is logged"))
    log_format: LogFormat = field(default=LogFormat.TEXT, metadata=_about("lines of text, or of JSON"))
    open_metrics: bool = field(default=False, metadata=_about("show the metrics to those without a key too"))
    console: bool = field(default=True, metadata=_about("serve the console, a page for browsers, at /console"))
    ledger: Path | None = field(
        default=None,
        metadata=_about("a directory to record in what is billed, as Parquet files; made if it is not there"),
    )
    ledger_lives: bool = field(default=False, metadata=_about("record what happens to each message in the ledger, too"))
    entities: Declaration = field(default=Declaration())
    """From the settings file alone."""

    def __post_init__(self) -> None:
        _expect(
            _NAME.fullmatch(self.name), f"name is {self.name!r}; up to 50 letters, digits and hyphens, from a letter on"
        )
        _expect(self.port and all(0 <= port < 2**16 for port in self.port), f"port is {_shown(self.port)}; 0 to 65535")
        _expect((self.tls_cert is None) == (self.tls_key is None), "tls_cert and tls_key belong together")
        _expect(self.host and self.key_name, "host and key_name cannot be empty")
        _expect(self.key != "", "key cannot be empty")
        _expect(self.idle_timeout_s > 0, f"idle_timeout_s is {self.idle_timeout_s}; at least 1")
        _expect(self.drain_s >= 0, f"drain_s is {self.drain_s}; at least 0")
        _expect(
            self.max_connections_per_address >= 0,
            f"max_connections_per_address must be >= 0, got {self.max_connections_per_address}",
        )
        _expect(self.max_token_minutes >= 0, f"max_token_minutes must be >= 0, got {self.max_token_minutes}")
        _expect(self.max_connections > 0, f"max_connections is {self.max_connections}; at least 1")
        _expect(self.ledger or not self.ledger_lives, "ledger_lives needs a ledger to be recorded in")
        _expect(self.max_store_gb > 0, f"max_store_gb is {self.max_store_gb}; at least 1")
        _expect(self.side_buffer_mb > 0, f"side_buffer_mb is {self.side_buffer_mb}; at least 1")
        for name in ("throttle_store_percent", "throttle_processor_percent"):
            percent = getattr(self, name)
            _expect(percent is None or 0 < percent <= 100, f"{name} is {percent}; more than 0, and 100 at most")
        for name in ("throttle_disk_mb", "throttle_memory_mb", "throttle_delay_ms"):
            count = getattr(self, name)
            _expect(count is None or count > 0, f"{name} is {count}; at least 1")

    @property
    def limits(self) -> Limits:
        return _LIMITS[self.tier]

    @property
    def max_store_bytes(self) -> int:
        return self.max_store_gb * _GIGABYTE

    @property
    def max_side_buffer_bytes(self) -> int:
        return self.side_buffer_mb * _MEGABYTE


def _expect(condition: object, complaint: str) -> None:
    if not condition:
        raise SettingsError(complaint)


class Setting(NamedTuple):
    """One of them, for those who ask for it or explain it."""

    name: str
    kind: type
    """Of the value, or of each value where ``is_repeatable``."""
    is_repeatable: bool
    default: Any
    """``MISSING`` where there is none."""
    summary: str
    is_secret: bool

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def shown_default(self) -> str:
        return _shown(self.default)


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ", ".join(map(str, value))
    return "required" if value is MISSING else str(value)


def _settings() -> Iterator[Setting]:
    hints = get_type_hints(Settings)
    for each in fields(Settings):
        if each.metadata:
            kind, is_repeatable = hints[each.name], get_origin(hints[each.name]) is tuple
            if is_repeatable or get_origin(kind) is UnionType:
                kind = get_args(kind)[0]
            yield Setting(each.name, kind, is_repeatable, each.default, each.metadata["summary"], not each.repr)


SETTINGS: Final = {setting.name: setting for setting in _settings()}


# Finding them.


def load_settings(options: Mapping[str, object], environment: Mapping[str, str], file: Path | None) -> Settings:
    """The settings: options count most, then variables of the environment, then the file, then the defaults.

    An option that is ``None``, and a variable that is empty, are not given. The file is ours (TOML), or the emulator's
    (JSON). Raises ``SettingsError``.
    """
    near = _from_environment(environment) | _from_options(options)
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    found = near if file is None else _from_file(file, near) | near
    if "data" not in found:
        data = SETTINGS["data"]
        raise SettingsError(
            f"there is no data directory: give {data.option}, {data.variable}, or data in a settings file"
        )
    return Settings(**found)


def _from_options(options: Mapping[str, object]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in SETTINGS:
            raise SettingsError(f"there is no option '{name}'{nearest(name, SETTINGS)}")
    return {name: _read(SETTINGS[name], value, SETTINGS[name].option) for name, value in given.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    variables = {setting.variable: setting for setting in SETTINGS.values()}
    found = {}
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and variable != CONFIG_VARIABLE:
            if variable not in variables:
                raise SettingsError(f"there is no setting for the variable {variable}{nearest(variable, variables)}")
            setting = variables[variable]
            if text:
                found[setting.name] = _read(setting, _from_text(setting, text), f"the variable {variable}")
    return found


def _from_file(file: Path, near: Mapping[str, Any]) -> dict[str, Any]:
    content = _content(file)
    try:
        if file.suffix.lower() == ".json" or content.lstrip().startswith("{"):
            config = read_emulator_config(json.loads(content), near.get("name"))
            return {"name": config.name, "entities": config.entities}
        return _from_document(tomllib.loads(content), file)
    except SettingsError:
        raise  # it has named the file
    except (ValueError, RecursionError) as error:  # of TOML, of JSON, or of what they declare
        raise SettingsError(f"{file}: {error}") from error


def _content(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {file} cannot be read: {error}") from error


def _from_document(document: Mapping[str, object], file: Path) -> dict[str, Any]:
    known = [*SETTINGS, *_TABLES]
    for key in document:
        if key not in known:
            raise SettingsError(f"{file} has an unknown key '{key}'{nearest(key, known)}")
    found = {key: _read(SETTINGS[key], value, f"{file}: {key}") for key, value in document.items() if key in SETTINGS}
    tables = {key: document[key] for key in _TABLES if key in document}
    return found | {"entities": parse_declaration(tables)}


# Reading them.


def _read(setting: Setting, value: object, where: str) -> object:
    """A value of the setting's kind, from one of the kinds that TOML or the command line has."""
    if setting.is_repeatable:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_read_one(setting, each, where) for each in values)
    return _read_one(setting, value, where)


def _read_one(setting: Setting, value: object, where: str) -> object:
    is_path = setting.kind is Path
    if is_path and isinstance(value, Path):
        return value
    try:
        read: object = read_value(str if is_path else setting.kind, value, where, secret=setting.is_secret)
    except DeclarationError as error:
        raise SettingsError(str(error)) from error
    if read == "":
        raise SettingsError(f"{where} is empty")
    return Path(str(read)) if is_path else read


_TRUTHS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _from_text(setting: Setting, text: str) -> object:
    """What a text stands for; the text itself where it stands for nothing, which is an error later."""
    if setting.is_repeatable:
        return [_from_word(setting.kind, word.strip()) for word in text.split(",")]
    return _from_word(setting.kind, text.strip())


def _from_word(kind: type, text: str) -> object:
    if kind is bool:
        return _TRUTHS.get(text.lower(), text)
    if kind not in {int, float}:
        return text
    try:
        return kind(text)
    except ValueError:
        return text


# Explaining them.

_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
}


def settings_table() -> str:
    """All settings as a table in Markdown."""
    lines = ["| setting | kind | default | what it says |", "|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = f"`{setting.shown_default}`" if setting.shown_default else ""
        lines.append(f"| `{setting.name}` | {_shown_kind(setting)} | {default} | {setting.summary} |")
    return "\n".join(lines) + "\n"


def _shown_kind(setting: Setting) -> str:
    if issubclass(setting.kind, StrEnum):
        return ", ".join(f"`{choice}`" for choice in setting.kind)
    return _KINDS[setting.kind] + (", or several" if setting.is_repeatable else "")
