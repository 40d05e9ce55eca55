"""The faults that can be injected into a namespace: one table, which the server, the client and the command line read.

The document of a fault, as the HTTP API and ``--json`` have it, is defined here as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any, Final, Self


class FaultKind(StrEnum):
    """A kind of fault."""

    CANNOT_SEND = "cannot-send"
    CANNOT_RECEIVE = "cannot-receive"
    CANNOT_MANAGE = "cannot-manage"
    CANNOT_CONNECT = "cannot-connect"
    SERVER_BUSY = "server-busy"
    SLOW = "slow"
    STORAGE_ERROR = "storage-error"
    STORAGE_STALL = "storage-stall"
    STORAGE_FULL = "storage-full"
    COMPONENT_CRASH = "component-crash"
    QUARANTINE = "quarantine"


class FaultScope(Enum):
    """The target of a fault; the value is its name in texts."""

    NAMESPACE = "the namespace"
    ENTITY = "a queue or topic"
    SUBSCRIPTION = "a subscription"


class CrashComponent(StrEnum):
    """A component of the server that a fault can crash."""

    DISPATCHER = "dispatcher"
    TIMERS = "timers"
    LISTENER = "listener"
    COMMIT_THREAD = "commit-thread"
    SIDE_BUFFER = "side-buffer"
    LEDGER = "ledger"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """The effect of a kind of fault, where it can be injected, and the argument that it takes."""

    summary: str
    scopes: tuple[FaultScope, ...]
    requires: str | None = None
    """The field of ``FaultRequest`` that must be set; no other kind accepts it."""

    accepts: str | None = None
    """A field that may be set; no other kind accepts it."""

    lasts: bool = True
    """True if the fault lasts for a time or until it is cleared; others happen once."""


_ANYWHERE: Final = tuple(FaultScope)
_NAMESPACE: Final = (FaultScope.NAMESPACE,)

FAULT_RULES: Final[Mapping[FaultKind, FaultRule]] = MappingProxyType(
    {
        FaultKind.CANNOT_SEND: FaultRule(
            summary="sends fail with a timeout error",
            scopes=(FaultScope.NAMESPACE, FaultScope.ENTITY),
        ),
        FaultKind.CANNOT_RECEIVE: FaultRule(
            summary="receivers are detached, and receiving, peeking and settling fail with a timeout error",
            scopes=_ANYWHERE,
        ),
        FaultKind.CANNOT_MANAGE: FaultRule(
            summary="requests to the management API, and changes of rules over AMQP, fail with a timeout error",
            scopes=_ANYWHERE,
        ),
        FaultKind.CANNOT_CONNECT: FaultRule(
            summary="new connections are reset; those that are open work on, unless they are dropped",
            scopes=_NAMESPACE,
            accepts="drop_connections",
        ),
        FaultKind.SERVER_BUSY: FaultRule(summary="requests are denied with server busy", scopes=_ANYWHERE),
        FaultKind.SLOW: FaultRule(
            summary="confirmations, deliveries and responses are delayed", scopes=_ANYWHERE, requires="latency_ms"
        ),
        FaultKind.STORAGE_ERROR: FaultRule(summary="commits fail with an I/O error", scopes=_NAMESPACE),
        FaultKind.STORAGE_STALL: FaultRule(summary="commits wait, as on a disk that hangs", scopes=_NAMESPACE),
        FaultKind.STORAGE_FULL: FaultRule(summary="the store has no space for more messages", scopes=_NAMESPACE),
        FaultKind.COMPONENT_CRASH: FaultRule(
            summary="a component of the server fails once, the next time that it runs",
            scopes=_NAMESPACE,
            requires="component",
            lasts=False,
        ),
        FaultKind.QUARANTINE: FaultRule(
            summary="a message is quarantined at once, as if its body were damaged on disk; this cannot be undone",
            scopes=(FaultScope.ENTITY, FaultScope.SUBSCRIPTION),
            requires="sequence_number",
            lasts=False,
        ),
    }
)

MAX_DURATION_MS: Final = 7 * 24 * 3_600_000
MAX_LATENCY_MS: Final = 10 * 60_000
_MAX_SEQUENCE: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRequest:
    """A fault to inject. Raises ``ValueError`` if a value is invalid, or does not fit the kind."""

    kind: FaultKind
    entity: str | None = None
    """The path of a queue, a topic, or ``TOPIC/Subscriptions/NAME``; ``None`` for the namespace."""

    duration_ms: int | None = None
    """``None``: until it is cleared."""

    latency_ms: int | None = None
    component: CrashComponent | None = None
    sequence_number: int | None = None
    drop_connections: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _choice("kind", FaultKind, self.kind))
        if self.component is not None:
            object.__setattr__(self, "component", _choice("component", CrashComponent, self.component))
        if self.entity is not None and (not isinstance(self.entity, str) or not self.entity):
            raise ValueError(f"entity must be the path of an entity, got {self.entity!r:.100}")
        if not isinstance(self.drop_connections, bool):
            raise ValueError(  # noqa: TRY004 (of a document, not of an argument)
                f"drop_connections must be true or false, got {self.drop_connections!r:.100}"
            )
        _check_number("duration_ms", self.duration_ms, 1, MAX_DURATION_MS)
        _check_number("latency_ms", self.latency_ms, 1, MAX_LATENCY_MS)
        _check_number("sequence_number", self.sequence_number, 1, _MAX_SEQUENCE)
        self._check_arguments()

    def _check_arguments(self) -> None:
        rule = FAULT_RULES[self.kind]
        if not rule.lasts and self.duration_ms is not None:
            raise ValueError(f"{self.kind} happens once: it does not take duration_ms")
        for name in ("latency_ms", "component", "sequence_number", "drop_connections"):
            is_set = getattr(self, name) not in {None, False}
            if is_set and name not in {rule.requires, rule.accepts}:
                raise ValueError(f"{self.kind} does not take {name}")
            if not is_set and name == rule.requires:
                raise ValueError(f"{self.kind} needs {name}")

    @classmethod
    def of_document(cls, document: object) -> Self:
        """Return the request in a parsed JSON document; raises ``ValueError``."""
        if not isinstance(document, Mapping):
            raise ValueError(f"a fault must be a JSON object, got {document!r:.100}")  # noqa: TRY004 (as above)
        known = [field.name for field in fields(cls)]
        for key in document:
            if key not in known:
                raise ValueError(f"a fault has no field {key!r:.100}; its fields are {', '.join(known)}")
        if document.get("kind") is None:
            raise ValueError(f"a fault needs a kind: {', '.join(FaultKind)}")
        return cls(**{key: value for key, value in document.items() if value is not None})

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the request."""
        return asdict(self)


def check_scope(kind: FaultKind, scope: FaultScope) -> None:
    """Raise ``ValueError`` unless a kind of fault can be injected there."""
    scopes = FAULT_RULES[kind].scopes
    if scope not in scopes:
        allowed = " or ".join(each.value for each in scopes)
        raise ValueError(f"{kind} applies to {allowed}, not to {scope.value}")


def _choice(name: str, choices: type[StrEnum], value: object) -> StrEnum:
    try:
        return choices(str(value))
    except ValueError:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r:.100}") from None


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if value is None:
        return
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number between {least} and {most}, got {value!r:.100}")
