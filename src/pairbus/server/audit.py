"""The audit log: who did what to which entity or key, from where, and with which result.

Call ``host.audit.record(…)`` after an action, once its result is certain. Never pass a secret or the body of a message:
records name keys and settings, and not their values.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Final, NamedTuple, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pairbus.broker import (
    Address,
    AuthorizationRule,
    EntityDescription,
    EntityNotFoundError,
    Namespace,
    RuleDescription,
)
from pairbus.broker.descriptions import KIND_OF
from pairbus.heartbeat import Heartbeat
from pairbus.server.declaration import Declaration, declared_entities
from pairbus.server.errors import UnauthorizedError, refusal_of
from pairbus.server.settings import SETTINGS, Settings
from pairbus.store.rotating_log import RotatingLog

_log = logging.getLogger(__name__)

DIRECTORY: Final = "audit"
FILE: Final = "audit.jsonl"
"""The newest records, in the directory ``audit`` of the data directory."""

_MAX_WAITING: Final = 10_000
_RETRY_S: Final = 1.0
_POLL_S: Final = 0.01
_WINDOW_S: Final = 60.0
_REFUSED_A_WINDOW: Final = 30
"""Records of refused actions and failed logins in a minute. With more, peers could rotate the other records away."""

_MAX_CHARACTERS: Final = 300

Detail: TypeAlias = str | int | float | bool | Sequence[str] | Mapping[str, str | int | float | bool]


class AuditAction(StrEnum):
    """The actions that are recorded."""

    SERVER_STARTED = "server-started"
    SERVER_STOPPED = "server-stopped"
    ENTITY_CREATED = "entity-created"
    ENTITY_UPDATED = "entity-updated"
    ENTITY_DELETED = "entity-deleted"
    RULE_CREATED = "rule-created"
    RULE_UPDATED = "rule-updated"
    RULE_DELETED = "rule-deleted"
    KEY_CREATED = "key-created"
    KEY_ROTATED = "key-rotated"
    """The value of a key was changed."""
    KEY_UPDATED = "key-updated"
    """The rights of a key were changed."""
    KEY_REVOKED = "key-revoked"
    MESSAGES_PURGED = "messages-purged"
    MESSAGES_RESUBMITTED = "messages-resubmitted"
    LOGIN_FAILED = "login-failed"
    CONSOLE_LOGIN = "console-login"
    CONSOLE_LOGOUT = "console-logout"
    FAULT_ENGAGED = "fault-engaged"
    FAULT_CLEARED = "fault-cleared"
    RECORDS_LOST = "records-lost"
    """The disk of the audit log failed for so long that records had to be dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The origin of an action: key, peer and protocol. The settings at the start are an actor without a peer."""

    key_name: str = ""
    """The name of the key, or the subject of a token."""

    rights: tuple[str, ...] = ()
    peer: str = ""
    """The address and port."""

    protocol: str = ""
    container: str = ""


NOBODY: Final = Actor()
SETTINGS_ACTOR: Final = Actor(key_name="settings", protocol="start")


class KeyChange(NamedTuple):
    """A change of a key."""

    action: AuditAction
    name: str


def key_changes(before: Iterable[AuthorizationRule], after: Iterable[AuthorizationRule]) -> Iterator[KeyChange]:
    """Yield the differences of two lists of keys."""
    old = {rule.name.lower(): rule for rule in before}
    new = {rule.name.lower(): rule for rule in after}
    for name, rule in new.items():
        known = old.get(name)
        if known is None:
            yield KeyChange(AuditAction.KEY_CREATED, rule.name)
        elif (known.primary_key, known.secondary_key) != (rule.primary_key, rule.secondary_key):
            yield KeyChange(AuditAction.KEY_ROTATED, rule.name)
        elif {*known.rights} != {*rule.rights}:
            yield KeyChange(AuditAction.KEY_UPDATED, rule.name)
    for name, rule in old.items():
        if name not in new:
            yield KeyChange(AuditAction.KEY_REVOKED, rule.name)


def keys_of(description: object) -> Sequence[AuthorizationRule]:
    """Return the keys of a queue or a topic; a subscription has none."""
    rules: Sequence[AuthorizationRule] = getattr(description, "authorization_rules", ())
    return rules


def changed_settings(before: Any, after: Any) -> list[str]:
    """Return the names of the settings in which two descriptions of an entity differ, without their keys."""
    names = [each.name for each in fields(after) if each.name != "authorization_rules"]
    return [name for name in names if getattr(before, name) != getattr(after, name)]


# Changes by the settings file.


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredState:
    """The keys of a namespace, and the entities that its settings file declares, at one moment."""

    keys: Sequence[AuthorizationRule]
    entities: Mapping[Address, EntityDescription]
    rules: Mapping[tuple[Address, str], RuleDescription]

    @classmethod
    def read(cls, declaration: Declaration, namespace: Namespace, now_ms: int) -> DeclaredState:
        entities: dict[Address, EntityDescription] = {}
        rules: dict[tuple[Address, str], RuleDescription] = {}
        for address, _ in declared_entities(declaration):
            with suppress(EntityNotFoundError):
                entities[address] = namespace.entity(address, now_ms).description
                if address.subscription is not None:
                    found = namespace.rules(address.entity, address.subscription, now_ms)
                    rules |= {(address, rule.description.name): rule.description for rule in found}
        return cls(keys=[*namespace.authorization_rules(now_ms)], entities=entities, rules=rules)


def declared_changes(before: DeclaredState, after: DeclaredState) -> Iterator[tuple[AuditAction, dict[str, Any]]]:
    """Yield the actions, with their facts, that lead from one state to another. A declaration deletes no entity."""
    for address, description in after.entities.items():
        known, entity = before.entities.get(address), str(address)
        if known is None:
            yield AuditAction.ENTITY_CREATED, {"entity": entity, "kind": KIND_OF[type(description)].value}
        elif changed := changed_settings(known, description):
            yield AuditAction.ENTITY_UPDATED, {"entity": entity, "changed": changed}
        for change in key_changes(keys_of(known), keys_of(description)):
            yield change.action, {"entity": entity, "key": change.name}
    for (address, name), rule in after.rules.items():
        if (address, name) not in before.rules:
            yield AuditAction.RULE_CREATED, {"entity": str(address), "rule": name}
        elif before.rules[address, name] != rule:
            yield AuditAction.RULE_UPDATED, {"entity": str(address), "rule": name}
    for address, name in before.rules.keys() - after.rules.keys():
        yield AuditAction.RULE_DELETED, {"entity": str(address), "rule": name}
    for change in key_changes(before.keys, after.keys):
        yield change.action, {"key": change.name}


# Writing.


class AuditWriter:
    """Writes lines on a thread of its own, so that a disk that fails or does not answer holds nothing else up."""

    def __init__(self, files: RotatingLog, lost_line: Callable[[int], bytes]) -> None:
        """``lost_line`` returns the line that records how many lines were dropped."""
        self._files = files
        self._lost_line = lost_line
        self._waiting: deque[bytes] = deque()
        self._unreported = 0
        self._changed = Condition()
        self._is_closing = False
        self.heartbeat = Heartbeat()
        self.written_count = 0
        self.lost_count = 0
        self.error: Exception | None = None
        """The error for which lines cannot be written at present."""
        self._thread = self._started_thread()

    def _started_thread(self) -> Thread:
        thread = Thread(target=self._run, name="pairbus-audit", daemon=True)
        thread.start()
        return thread

    @property
    def has_lost_thread(self) -> bool:
        """Return whether the thread has ended without being closed."""
        return not self._thread.is_alive() and not self._is_closing

    def restart_thread(self) -> None:
        """Start another thread, if it has ended. It writes the lines that wait; the last ones may be written twice."""
        if self.has_lost_thread:
            self._thread = self._started_thread()

    def put(self, line: bytes) -> None:
        """Queue a line, or drop it if very many wait."""
        with self._changed:
            if len(self._waiting) < _MAX_WAITING:
                self._waiting.append(line)
            else:
                self.lost_count += 1
                self._unreported += 1
            self._changed.notify()

    async def close(self, within_s: float) -> None:
        """Write the rest, but do not wait for a disk that does not answer: the server stops all the same."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        end_s = time.monotonic() + within_s
        while self._thread.is_alive() and time.monotonic() < end_s:  # noqa: ASYNC110 (a thread has no event to await)
            await asyncio.sleep(_POLL_S)
        if unwritten := len(self._waiting):
            _log.error("audit log closed with unwritten records path=%s records=%d", self._files.path, unwritten)

    def _run(self) -> None:
        while lines := self._wait():
            lost = self._unreported
            try:
                self._files.append([*lines, *([self._lost_line(lost)] if lost else [])])
            except Exception as error:  # noqa: BLE001 (of the disk, or a defect: the thread must not end)
                if not self._fail(error):
                    break
            else:
                self._succeed(len(lines), lost)
        self._files.close()

    def _wait(self) -> list[bytes]:
        """Wait for lines and return them; none if the log is closed. They stay queued until they are written."""
        self.heartbeat.rest()
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            self.heartbeat.beat()
            return [*self._waiting]

    def _fail(self, error: Exception) -> bool:
        """Log the first failure, and wait before the next attempt; return whether to make one."""
        if self.error is None:
            _log.error('audit log failed, retrying path=%s error="%s"', self._files.path, error)
        self.error = error
        self.heartbeat.beat(_RETRY_S)
        with self._changed:
            return not self._changed.wait_for(lambda: self._is_closing, _RETRY_S)

    def _succeed(self, count: int, lost: int) -> None:
        with self._changed:
            for _ in range(count):
                self._waiting.popleft()
            self._unreported -= lost
        self.written_count += count
        if self.error is not None:
            _log.warning("audit log recovered path=%s lost=%d", self._files.path, lost)
            self.error = None


class AuditLog:
    """Records actions. Without a writer it records nothing."""

    def __init__(
        self,
        namespace: str = "",
        writer: AuditWriter | None = None,
        now_s: Callable[[], float] = time.time,
        last_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._namespace = namespace
        self.writer = writer
        self._now_s = now_s
        self._last_settings = last_settings
        self._window_s = 0.0
        self._refused_count = 0
        self._skipped_count = 0
        """Records of refused actions that were skipped; the next one says how many."""

    @classmethod
    def open(cls, settings: Settings) -> AuditLog:
        """Open the audit log of a server. A disk that cannot be read is no reason not to start."""
        if not settings.audit_log:
            return cls()
        path = settings.data / DIRECTORY / FILE
        files = RotatingLog(path, settings.max_audit_file_bytes, settings.audit_log_files)
        log = cls(settings.name, last_settings=_last_settings(files))
        log.writer = AuditWriter(files, log._lost)
        return log

    def record(
        self,
        action: AuditAction | str,
        actor: Actor,
        *,
        entity: str = "",
        rule: str = "",
        key: str = "",
        error: Exception | None = None,
        **details: Detail,
    ) -> None:
        """Record an action, and the error that it was refused with, if it was. Never raises, and never blocks.

        ``details`` are further facts: plain values, no secrets, no bodies.
        """
        if self.writer is None:
            return
        skipped = {}
        if error is not None:
            if not self._admit_refused():
                return
            if self._skipped_count:
                skipped["skipped"], self._skipped_count = self._skipped_count, 0
        facts = {"entity": entity, "rule": rule, "key": key, **details}
        self.writer.put(self._line(action, _outcome(error) | _actor(actor) | facts | skipped))

    async def close(self, within_s: float) -> None:
        if self.writer is not None:
            await self.writer.close(within_s)

    # The start: which settings differ from the defaults, and from those of the start before.

    def record_start(self, settings: Settings) -> None:
        shown = shown_settings(settings)
        last = self._last_settings
        changed = [] if last is None else sorted({name for name, _ in {*shown.items()} ^ {*_texts(last)}})
        self.record(AuditAction.SERVER_STARTED, SETTINGS_ACTOR, settings=shown, changed=changed)

    def _admit_refused(self) -> bool:
        now_s = self._now_s()
        if not 0 <= now_s - self._window_s < _WINDOW_S:
            self._window_s, self._refused_count = now_s, 0
        self._refused_count += 1
        if self._refused_count > _REFUSED_A_WINDOW:
            self._skipped_count += 1
            return False
        return True

    def _lost(self, count: int) -> bytes:
        return self._line(AuditAction.RECORDS_LOST, {"result": "ok", "count": count})

    def _line(self, action: str, facts: Mapping[str, object]) -> bytes:
        moment = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        record: dict[str, object] = {"time": moment, "namespace": self._namespace, "action": str(action)}
        record |= {name: _plain(value) for name, value in facts.items() if value not in ("", (), [], None)}
        return json.dumps(record, ensure_ascii=True, default=str).encode()


def _outcome(error: Exception | None) -> dict[str, object]:
    """Return the result and the error condition. The text of the error could repeat a part of the request."""
    if error is None:
        return {"result": "ok"}
    result = "denied" if isinstance(error, UnauthorizedError) else "failed"
    return {"result": result, "condition": refusal_of(error).condition}


_KEYS: Final = {"key_name": "who"}
"""The keys of the log that are not the names of the fields."""


def _actor(actor: Actor) -> dict[str, object]:
    return {_KEYS.get(each.name, each.name): getattr(actor, each.name) for each in fields(Actor)}


def _plain(value: object) -> object:
    return value[:_MAX_CHARACTERS] if isinstance(value, str) else value


def shown_settings(settings: Settings) -> dict[str, str]:
    """Return the settings that differ from their defaults, as texts; a secret as the word ``set``."""
    shown = {}
    for setting in SETTINGS.values():
        value = getattr(settings, setting.name)
        if value != setting.default:
            text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            shown[setting.name] = "set" if setting.is_secret else text[:_MAX_CHARACTERS]
    return shown


def _last_settings(files: RotatingLog) -> Mapping[str, Any] | None:
    try:
        line = files.last(f'"action": "{AuditAction.SERVER_STARTED}"'.encode())
        settings = None if line is None else json.loads(line).get("settings", {})
    except (OSError, ValueError, AttributeError):
        return None
    return settings if isinstance(settings, dict) else None


def _texts(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((str(name), str(value)) for name, value in settings.items())


class AuditMetrics(Collector):
    """The state of the audit log."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def collect(self) -> Iterator[Metric]:
        writer = self._audit.writer
        written, lost, error = (
            (0, 0, None) if writer is None else (writer.written_count, writer.lost_count, writer.error)
        )
        yield CounterMetricFamily("pairbus_audit_records", "Records of the audit log that are on disk", value=written)
        yield CounterMetricFamily(
            "pairbus_audit_records_lost", "Records of the audit log that were dropped for lack of space", value=lost
        )
        yield GaugeMetricFamily(
            "pairbus_audit_failing",
            "1 while the audit log cannot be written; the log says why",
            value=error is not None,
        )


def audit_file(data: Path) -> Path:
    """Return the path of the newest file of the audit log in a data directory."""
    return data / DIRECTORY / FILE
