"""The settings of a server: one declaration for the settings file, the environment and the command line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from pairbus.broker import PREMIUM, RELAXED, STANDARD, Limits
from pairbus.broker.limits import UNLIMITED
from pairbus.server.connection_limits import ConnectionLimits
from pairbus.server.declaration import (
    Declaration,
    DeclarationError,
    check_declaration,
    nearest,
    parse_declaration,
    read_value,
)
from pairbus.server.emulator import read_emulator_config
from pairbus.store.lmdb import DEFAULT_MAX_BYTES

PREFIX: Final = "PAIRBUS_SERVE_"
"""Prefix of the environment variables."""

CONFIG_VARIABLE: Final = PREFIX + "CONFIG"
"""Names the settings file, unless the command line does."""

DEFAULT_NAME: Final = "pairbus"
"""The name of a namespace without a configured name."""

_MEGABYTE: Final = 1 << 20
_UNITS_PER_MS: Final = 1_000_000
"""A unit of rule work is about a nanosecond."""
_CONNECTION: Final = ConnectionLimits()
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "max_sessions_per_connection": (1, 1 << 16),
    "max_links_per_connection": (1, 1_000_000),
    "max_tokens_per_connection": (1, 1_000_000),
    "max_rules_per_subscription": (0, 1_000_000),
    "rule_budget_ms": (1, 10_000),
    "max_duplicate_ids_in_memory": (1, 100_000_000),
    "audit_log_mb": (1, 10_000),
    "audit_log_files": (1, 1_000),
    "max_entity_metrics": (0, 1_000_000),
    "scrub_days": (0, 3_650),
    "unproven_connection_bytes": (4_096, 1 << 24),
    "unproven_received_bytes": (4_096, 1 << 30),
    "unproven_total_bytes": (4_096, 1 << 40),
    "jwt_refresh_s": (60, 86_400),
    "handshake_timeout_s": (0.1, 3_600),
    "token_timeout_s": (0.1, 3_600),
    "http_request_timeout_s": (0.1, 3_600),
    "http_send_timeout_s": (0.1, 3_600),
    "storage_timeout_s": (0.1, 3_600),
    "blocked_exit_s": (0, 86_400),
}
"""The settings with bounds, and their bounds."""
_GIGABYTE: Final = 1 << 30
_NAME: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,48}[A-Za-z0-9])?")
_TABLES: Final = ("queues", "topics", "keys")


class SettingsError(ValueError):
    """A setting is unknown, missing or invalid; the message says which, and where it was found."""


class Tier(StrEnum):
    """The tier whose limits a namespace has."""

    STANDARD = "standard"
    PREMIUM = "premium"
    RELAXED = "relaxed"


class LogLevel(StrEnum):
    """The minimum level of logged records."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


_LIMITS: Final = {Tier.STANDARD: STANDARD, Tier.PREMIUM: PREMIUM, Tier.RELAXED: RELAXED}


def _about(summary: str) -> dict[str, str]:
    return {"summary": summary}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a server. Raises ``SettingsError`` if one is invalid."""

    data: Path = field(metadata=_about("the data directory; created if missing"))
    name: str = field(
        default=DEFAULT_NAME, metadata=_about("the name of the namespace: up to 50 letters, digits and hyphens")
    )
    host: str = field(
        default="127.0.0.1", metadata=_about("the address to listen on; 0.0.0.0 is every address of this machine")
    )
    port: tuple[int, ...] = field(
        default=(5672,), metadata=_about("the port, or several, to listen on; 0 is any free one")
    )
    tls_cert: Path | None = field(
        default=None, metadata=_about("a certificate with its chain (PEM), instead of the generated one")
    )
    tls_key: Path | None = field(default=None, metadata=_about("the key of that certificate (PEM)"))
    tier: Tier = field(default=Tier.STANDARD, metadata=_about("the tier whose limits the namespace has"))
    key_name: str = field(default="RootManageSharedAccessKey", metadata=_about("the name of the root key"))
    key: str | None = field(
        default=None,
        repr=False,
        metadata=_about("the root key; if unset, it is generated at the first start, and kept"),
    )
    jwt_issuer: str | None = field(default=None, metadata=_about("the issuer that JSON web tokens must have"))
    jwt_audience: str | None = field(
        default=None,
        metadata=_about("the audience that JSON web tokens must have; https://servicebus.azure.net if unset"),
    )
    jwt_keys: str | None = field(
        default=None, metadata=_about("file or https address of the keys (JWKS) that sign JSON web tokens")
    )
    jwt_refresh_s: float = field(
        default=300.0,
        metadata=_about(
            "seconds between two reads of an https address in jwt_keys: for so long, a key that its issuer has removed"
            " counts; a file is read within seconds after it has changed"
        ),
    )
    allow_any_jwt: bool = field(
        default=False,
        metadata=_about("accept every JSON web token, without checking its signature; for development only"),
    )
    idle_timeout_s: int = field(
        default=240,
        metadata=_about(
            "idle timeout in seconds that the server announces; a connection is closed after twice as many"
            " seconds of silence"
        ),
    )
    drain_s: float = field(default=10.0, metadata=_about("seconds that a stop waits for requests in progress"))
    max_connections_per_address: int = field(
        default=0, metadata=_about("maximum number of connections of one address; 0 for any number")
    )
    max_token_minutes: int = field(
        default=0, metadata=_about("maximum remaining validity of a token, in minutes; 0 for any time")
    )
    max_connections: int = field(default=5_000, metadata=_about("maximum number of connections"))
    max_sessions_per_connection: int = field(
        default=_CONNECTION.max_sessions_per_connection, metadata=_about("maximum number of sessions of a connection")
    )
    max_links_per_connection: int = field(
        default=_CONNECTION.max_links_per_connection, metadata=_about("maximum number of links of a connection")
    )
    max_tokens_per_connection: int = field(
        default=_CONNECTION.max_tokens_per_connection, metadata=_about("maximum number of tokens of a connection")
    )
    max_rules_per_subscription: int = field(
        default=0,
        metadata=_about("maximum number of rules of a subscription; 0 for as many as the tier allows a topic"),
    )
    rule_budget_ms: int = field(
        default=STANDARD.rule_units // _UNITS_PER_MS,
        metadata=_about(
            "milliseconds of work, about, that the rules of a topic may do for one message; twice as much for a batch"
        ),
    )
    max_duplicate_ids_in_memory: int = field(
        default=STANDARD.duplicate_ids_in_memory,
        metadata=_about(
            "maximum number of message ids kept in memory for duplicate detection; older ones are read from the store"
        ),
    )
    unproven_connection_bytes: int = field(
        default=_CONNECTION.unproven_connection_bytes,
        metadata=_about("bytes of incomplete messages, and of unread answers, held for a connection without a token"),
    )
    unproven_received_bytes: int = field(
        default=_CONNECTION.unproven_received_bytes,
        metadata=_about("bytes that a connection may send before its first token is accepted"),
    )
    unproven_total_bytes: int = field(
        default=_CONNECTION.unproven_total_bytes,
        metadata=_about("bytes held for all connections without a token; beyond it the oldest of those is closed"),
    )
    handshake_timeout_s: float = field(
        default=_CONNECTION.handshake_timeout_s,
        metadata=_about("seconds until the first byte of a connection, and then until the end of the TLS handshake"),
    )
    token_timeout_s: float = field(
        default=_CONNECTION.token_timeout_s,
        metadata=_about("seconds until AMQP is opened, and then until the first token is accepted"),
    )
    http_request_timeout_s: float = field(
        default=_CONNECTION.http_request_timeout_s,
        metadata=_about("seconds from the first byte of an HTTP request to its last"),
    )
    http_send_timeout_s: float = field(
        default=_CONNECTION.http_send_timeout_s,
        metadata=_about("seconds that an HTTP client may leave a response unread"),
    )
    max_store_gb: int = field(
        default=DEFAULT_MAX_BYTES // _GIGABYTE, metadata=_about("maximum size of the store in gigabytes")
    )
    storage_timeout_s: float = field(
        default=2.0,
        metadata=_about(
            "seconds that a write to the store may take; after it, sends go to the side buffer, or are denied with"
            " server busy"
        ),
    )
    side_buffer: Path | None = field(
        default=None,
        metadata=_about(
            "a directory, best on another disk, that stores sends while the store cannot accept them; created"
            " if missing"
        ),
    )
    side_buffer_mb: int = field(default=256, metadata=_about("maximum size of the side buffer in megabytes"))
    scrub_days: float = field(
        default=7.0,
        metadata=_about("days within which every stored record is read, to find damage; 0 to read none"),
    )
    blocked_exit_s: float = field(
        default=10.0,
        metadata=_about(
            "seconds for which the event loop may be blocked before the process exits with code 4, so that it is"
            " started again; 0 for never"
        ),
    )
    throttle_store_percent: float | None = field(
        default=None, metadata=_about("percentage of max_store_gb in use at which sends are denied with server busy")
    )
    throttle_disk_mb: int | None = field(
        default=None,
        metadata=_about("megabytes of free disk space at which sends are denied with server busy"),
    )
    throttle_memory_mb: int | None = field(
        default=None, metadata=_about("megabytes of process memory at which sends are denied with server busy")
    )
    throttle_processor_percent: float | None = field(
        default=None,
        metadata=_about(
            "percentage of one processor used by the event loop at which sends are denied with server busy"
        ),
    )
    throttle_delay_ms: int | None = field(
        default=None,
        metadata=_about("milliseconds of event loop delay at which sends are denied with server busy"),
    )
    log_level: LogLevel = field(default=LogLevel.INFO, metadata=_about("minimum log level"))
    log_format: LogFormat = field(default=LogFormat.TEXT, metadata=_about("format of log lines: text or JSON"))
    trace_frames: bool = field(
        default=False, metadata=_about("log the AMQP frames of connections, without bodies, tokens and keys")
    )
    trace_frames_of: tuple[str, ...] = field(
        default=(),
        metadata=_about("the container ids or addresses, as patterns with *, whose frames are logged; all if unset"),
    )
    audit_log: bool = field(
        default=True,
        metadata=_about("record changes of entities and keys, and log-ins, as JSON lines in the data directory"),
    )
    audit_log_mb: int = field(default=10, metadata=_about("maximum size of a file of the audit log in megabytes"))
    audit_log_files: int = field(
        default=5, metadata=_about("maximum number of files of the audit log; beyond it the oldest is deleted")
    )
    connection_file: Path | None = field(
        default=None,
        metadata=_about(
            "a file for the connection string, readable by its owner only; standard output then contains no key"
        ),
    )
    open_metrics: bool = field(
        default=False, metadata=_about("show the names of entities in the metrics without a key, too")
    )
    allow_faults: bool = field(
        default=False,
        metadata=_about("let keys with the Manage claim inject faults, to practise outages; not for production"),
    )
    max_entity_metrics: int = field(
        default=1_000,
        metadata=_about("maximum number of entities with their own counters; the rest are counted together as other"),
    )
    console: bool = field(default=True, metadata=_about("serve the web console at /console"))
    ledger: Path | None = field(
        default=None,
        metadata=_about("a directory for records of billed operations, as Parquet files; created if missing"),
    )
    ledger_lives: bool = field(
        default=False, metadata=_about("record the lifecycle events of messages in the ledger, too")
    )
    entities: Declaration = field(default=Declaration())
    """Only in the settings file."""

    def __post_init__(self) -> None:
        _expect(
            _NAME.fullmatch(self.name),
            f"name must be up to 50 letters, digits and hyphens, starting with a letter, got {self.name!r}",
        )
        _expect(
            self.port and all(0 <= port < 2**16 for port in self.port),
            f"port must be between 0 and 65535, got {_shown(self.port)}",
        )
        _expect((self.tls_cert is None) == (self.tls_key is None), "tls_cert and tls_key must be set together")
        _expect(self.host and self.key_name, "host and key_name must not be empty")
        _expect(self.key != "", "key must not be empty")
        _expect(self.idle_timeout_s > 0, f"idle_timeout_s must be >= 1, got {self.idle_timeout_s}")
        _expect(self.drain_s >= 0, f"drain_s must be >= 0, got {self.drain_s}")
        _expect(
            self.max_connections_per_address >= 0,
            f"max_connections_per_address must be >= 0, got {self.max_connections_per_address}",
        )
        _expect(self.max_token_minutes >= 0, f"max_token_minutes must be >= 0, got {self.max_token_minutes}")
        _expect(self.max_connections > 0, f"max_connections must be >= 1, got {self.max_connections}")
        _expect(
            self.trace_frames or not self.trace_frames_of, "trace_frames_of needs trace_frames: set trace_frames, too"
        )
        _expect(self.ledger or not self.ledger_lives, "ledger_lives needs a ledger: set ledger, too")
        _expect(self.max_store_gb > 0, f"max_store_gb must be >= 1, got {self.max_store_gb}")
        _expect(self.side_buffer_mb > 0, f"side_buffer_mb must be >= 1, got {self.side_buffer_mb}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            _expect(low <= value <= high, f"{name} must be between {low} and {high}, got {value}")
        _expect(
            self.unproven_total_bytes >= self.unproven_connection_bytes,
            f"unproven_total_bytes must be >= unproven_connection_bytes ({self.unproven_connection_bytes}),"
            f" got {self.unproven_total_bytes}",
        )
        for name in ("throttle_store_percent", "throttle_processor_percent"):
            percent = getattr(self, name)
            _expect(percent is None or 0 < percent <= 100, f"{name} must be > 0 and <= 100, got {percent}")
        for name in ("throttle_disk_mb", "throttle_memory_mb", "throttle_delay_ms"):
            count = getattr(self, name)
            _expect(count is None or count > 0, f"{name} must be >= 1, got {count}")

    @property
    def limits(self) -> Limits:
        return replace(
            _LIMITS[self.tier],
            rules_per_subscription=self.max_rules_per_subscription or UNLIMITED,
            rule_units=self.rule_budget_ms * _UNITS_PER_MS,
            duplicate_ids_in_memory=self.max_duplicate_ids_in_memory,
        )

    @property
    def connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(**{each.name: getattr(self, each.name) for each in fields(ConnectionLimits)})

    @property
    def max_audit_file_bytes(self) -> int:
        return self.audit_log_mb * _MEGABYTE

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
    """One setting, for the readers of settings and for the documentation."""

    name: str
    kind: type
    """Type of the value, or of each value if ``is_repeatable``."""
    is_repeatable: bool
    default: Any
    """``MISSING`` if there is none."""
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


# Loading.


def load_settings(options: Mapping[str, object], environment: Mapping[str, str], file: Path | None) -> Settings:
    """Return the settings: options take precedence, then environment variables, then the file, then the defaults.

    An option that is ``None``, and a variable that is empty, are unset. The file is ours (TOML), or the emulator's
    (JSON). Raises ``SettingsError``.
    """
    near = _from_environment(environment) | _from_options(options)
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    found = near if file is None else _from_file(file, near) | near
    if "data" not in found:
        data = SETTINGS["data"]
        raise SettingsError(f"no data directory is set: use {data.option}, {data.variable}, or data in a settings file")
    settings = Settings(**found)
    try:
        check_declaration(settings.entities, settings.limits)
    except DeclarationError as error:  # only a file can declare entities
        raise SettingsError(f"{file}: {error}") from error
    return settings


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
        raise  # it names the file already
    except (ValueError, RecursionError) as error:  # of TOML, of JSON, or of the declaration
        raise SettingsError(f"{file}: {error}") from error


def _content(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise SettingsError(
            f"--config {file} cannot be read: {reason}; name a settings file (TOML), or the emulator's Config.json"
        ) from error


def _from_document(document: Mapping[str, object], file: Path) -> dict[str, Any]:
    known = [*SETTINGS, *_TABLES]
    for key in document:
        if key not in known:
            raise SettingsError(f"{file} has an unknown key '{key}'{nearest(key, known)}")
    found = {key: _read(SETTINGS[key], value, f"{file}: {key}") for key, value in document.items() if key in SETTINGS}
    tables = {key: document[key] for key in _TABLES if key in document}
    return found | {"entities": parse_declaration(tables)}


# Parsing.


def _read(setting: Setting, value: object, where: str) -> object:
    """Return a value of the setting's type, from one of the types that TOML or the command line has."""
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
    """Return the value of a text; the text itself if it is invalid, which is an error later."""
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


# Documentation.

_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
}


def settings_table() -> str:
    """Return all settings as a Markdown table."""
    lines = ["| setting | kind | default | description |", "|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = f"`{setting.shown_default}`" if setting.shown_default else ""
        lines.append(f"| `{setting.name}` | {_shown_kind(setting)} | {default} | {setting.summary} |")
    return "\n".join(lines) + "\n"


def _shown_kind(setting: Setting) -> str:
    if issubclass(setting.kind, StrEnum):
        return ", ".join(f"`{choice}`" for choice in setting.kind)
    return _KINDS[setting.kind] + (", or several" if setting.is_repeatable else "")
