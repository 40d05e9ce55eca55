"""Setup of a pair, and verification that it works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Final, NoReturn, Self

from pairbus.cli.connection import NamedNamespace, one_line
from pairbus.cli.failure import FAILED, fail
from pairbus.client.amqp.receiving_link import ReceiveOptions
from pairbus.client.entity_link import EntityLink
from pairbus.client.errors import (
    EntityNotFoundError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.descriptions import EntityStatus, QueueDescription, TopicDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.dialect.paths import is_backlog_path, is_drill_path
from pairbus.pairing import NamespacePair, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.backlog import MOST_DELIVERIES, backlog_description, backlog_queues_by_name
from pairbus.pairing.guarantee import DestinationGuarantee, guarantee_of, guarantee_without_settings, read_settings
from pairbus.pairing.primary_names import RECORD


class Harm(Enum):
    """The effect of a difference on a pair."""

    NONE = "none"
    RISK = "risk"
    """The pair works, but may lose or change messages."""

    DEFECT = "defect"
    """The pair cannot use the queue."""


_HARMS: Final[dict[str, tuple[Harm, str]]] = {
    "requires_session": (Harm.DEFECT, "the queue rejects diverted messages, which have no session"),
    "status": (Harm.DEFECT, "the queue must accept and deliver messages"),
    "forward_to": (Harm.DEFECT, "messages are forwarded to an entity that no syphon reads"),
    "requires_duplicate_detection": (
        Harm.RISK,
        "the queue drops a message with the id of another one, even if their destinations differ",
    ),
    "default_message_time_to_live": (Harm.RISK, "messages that wait longer are dead-lettered or dropped"),
    "enable_dead_lettering_on_message_expiration": (Harm.RISK, "messages that expire in the queue are dropped"),
    "auto_delete_on_idle": (Harm.RISK, "the queue is deleted when idle for that long; pairing creates it again"),
    "max_delivery_count": (Harm.RISK, "messages are dead-lettered after that many delivery attempts of the syphon"),
    "enable_partitioning": (Harm.RISK, "the order of sessions cannot be preserved"),
}
_COMPARED: Final = (
    "max_size_in_megabytes",
    "lock_duration",
    "enable_batched_operations",
    "forward_dead_lettered_messages_to",
    *_HARMS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogDifference:
    """A setting of a backlog queue that differs from the value that pairing sets."""

    field: str
    found: Any
    ours: Any

    @property
    def harm(self) -> Harm:
        return _HARMS[self.field][0] if self.field in _HARMS else Harm.NONE

    @property
    def consequence(self) -> str:
        """The consequence of the difference; empty if there is none."""
        return _HARMS[self.field][1] if self.field in _HARMS else ""

    def __str__(self) -> str:
        return f"{self.field} is {value_text(self.found)} instead of {value_text(self.ours)}"


def differences(found: QueueDescription) -> tuple[BacklogDifference, ...]:
    """Compare a queue with the backlog queue that pairing creates at its path."""
    ours = _filled(backlog_description(found.path), found)
    pairs = ((name, getattr(found, name), getattr(ours, name)) for name in _COMPARED)
    return tuple(BacklogDifference(field=name, found=was, ours=wanted) for name, was, wanted in pairs if was != wanted)


def _filled(ours: QueueDescription, found: QueueDescription) -> QueueDescription:
    """Return the description with those defaults of the service that are compared."""
    capped = found.max_delivery_count == MOST_DELIVERIES
    return replace(
        ours,
        max_delivery_count=MOST_DELIVERIES if capped else ours.max_delivery_count,
        requires_session=False,
        requires_duplicate_detection=False,
        enable_partitioning=False,
        status=EntityStatus.ACTIVE,
    )


def value_text(value: object) -> str:
    """Return a setting as text for the user."""
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case timedelta():
            return "never" if value == timedelta.max else str(value)
        case Enum():
            return str(value.value)
        case _:
            return str(value)


_MISSING_PATH: Final = "x-pairbus-pair"
"""A path without an entity: the error "not found" proves that the primary answers and accepts the key."""

_UNREACHABLE: Final = (MessagingCommunicationError, MessagingTimeoutError, ServerBusyError)


class Origin(Enum):
    """The state in which a backlog queue was found."""

    MADE = "created"
    FOUND = "exists"
    DIFFERENT = "exists with other settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueVerification:
    """The result of the verification of a backlog queue."""

    path: str
    origin: Origin
    differences: tuple[BacklogDifference, ...]
    send_failure: MessagingError | None
    receive_failure: MessagingError | None

    @property
    def defects(self) -> tuple[str, ...]:
        """The reasons why the pair cannot use the queue."""
        return tuple(self._defects())

    def _defects(self) -> Iterator[str]:
        if self.send_failure is not None:
            yield f"cannot be sent to: {one_line(self.send_failure)}"
        if self.receive_failure is not None:
            yield f"cannot be received from: {one_line(self.receive_failure)}"
        for one in self.differences:
            if one.harm is Harm.DEFECT:
                yield f"{one}: {one.consequence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDestination:
    """A queue or topic of the primary, which messages from the backlog are delivered to."""

    path: str
    is_topic: bool
    guarantee: DestinationGuarantee

    @property
    def kind(self) -> str:
        return "topic" if self.is_topic else "queue"

    @classmethod
    def of(cls, found: QueueDescription | TopicDescription) -> Self:
        return cls(path=found.path, is_topic=isinstance(found, TopicDescription), guarantee=guarantee_of(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairVerification:
    """The result of the verification of a pair."""

    primary: str
    secondary: str
    primary_name: str
    """The name of the primary in the paths of the backlog queues."""

    primary_failure: MessagingError | None
    """The error of connecting to the primary; ``None`` if it is reachable."""

    backlog_queues: tuple[BacklogQueueVerification, ...]
    destinations: tuple[PairDestination, ...] = ()
    unknown_destinations: DestinationGuarantee | None = None
    """The guarantee of all destinations if their settings cannot be read; ``None`` if they are in ``destinations``."""

    backlogs_in_primary: tuple[str, ...] = ()
    """Names of namespaces whose backlog queues the primary holds, so that it is itself a secondary of theirs."""

    @property
    def defective(self) -> tuple[BacklogQueueVerification, ...]:
        return tuple(one for one in self.backlog_queues if one.defects)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings())

    def _warnings(self) -> Iterator[str]:
        if self.primary_failure is not None:
            yield (
                f"the primary namespace is unreachable: {one_line(self.primary_failure)}; "
                "the pair is set up nevertheless; unless the primary is down, check its address"
            )
        if self.backlogs_in_primary:
            yield (
                f"the primary itself has backlog queues, for '{self.backlogs_in_primary[0]}'; if --primary and "
                "--secondary are swapped, delete the queues created now and run this command again"
            )
        risks: dict[BacklogDifference, list[str]] = {}
        for queue in self.backlog_queues:
            for one in queue.differences:
                if one.harm is Harm.RISK:
                    risks.setdefault(one, []).append(queue.path)
        for one, paths in risks.items():
            yield f"{one} in {_listed(paths)}: {one.consequence}"


def _listed(paths: list[str]) -> str:
    return f"'{paths[0]}'" + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


async def verify_pair(
    primary: NamedNamespace, secondary: NamedNamespace, backlog_queue_count: int, primary_name: str | None
) -> PairVerification:
    """Set up a pair and verify it; end the command if that is impossible."""
    async with (
        secondary.factory() as backup,
        primary.factory() as factory,
        secondary.manager() as manager,
        primary.manager() as primary_manager,
    ):
        primary_failure = await _reach(factory, primary)
        before = await _queues(manager)
        options = SendAvailabilityPairedNamespaceOptions(
            manager, backup, backlog_queue_count, primary_name=primary_name
        )
        pair = await _pair(factory, options)
        destinations, unknown = await _guarantees(primary_manager, primary.entity_path, primary_failure)
        return PairVerification(
            primary=str(primary.endpoint),
            secondary=str(secondary.endpoint),
            primary_name=pair.primary_name,
            primary_failure=primary_failure,
            backlog_queues=await _backlog_queues(pair, options, before),
            destinations=destinations,
            unknown_destinations=unknown,
            backlogs_in_primary=() if primary_failure is not None else await _backlogs(primary_manager),
        )


# The primary.


async def _reach(factory: MessagingFactory, primary: NamedNamespace) -> MessagingError | None:
    """Connect to the primary; return the error if it is unreachable. End the command if it rejects the key."""
    link = EntityLink(factory, primary.entity_path or _MISSING_PATH)
    try:
        await link.link()
    except UnauthorizedError as error:
        reason = one_line(error.message)
        fail(f"the key of the primary namespace {primary.endpoint} is wrong, or lacks Send: {reason}", FAILED)
    except _UNREACHABLE as error:
        return error
    except EntityNotFoundError as error:
        if primary.entity_path is not None:
            fail(one_line(error), FAILED)
        return None
    except MessagingError:
        return None  # the primary answered, most likely that there is no such entity
    finally:
        await link.close()
    return None


async def _backlogs(manager: NamespaceManager) -> tuple[str, ...]:
    """Return the names of the primaries whose backlog queues a namespace has; none if the key lacks Manage."""
    try:
        return tuple(sorted(await backlog_queues_by_name(manager)))
    except MessagingError:
        return ()


async def _guarantees(
    manager: NamespaceManager, entity_path: str | None, primary_failure: MessagingError | None
) -> tuple[tuple[PairDestination, ...], DestinationGuarantee | None]:
    """Return the destinations on the primary; or the guarantee of all of them, if their settings cannot be read."""
    if primary_failure is not None:
        return (), guarantee_without_settings(primary_failure)
    try:
        if entity_path is None:
            found = await _entities(manager)
        else:
            found = [await read_settings(manager, entity_path.strip("/"))]
    except MessagingError as error:
        return (), guarantee_without_settings(error)
    except ValueError as error:  # a link ignores the part of a path after a '?'
        fail(f"the entity of the primary is not a queue or topic: {error}", FAILED)
    return tuple(PairDestination.of(one) for one in sorted(found, key=lambda one: one.path.lower())), None


async def _entities(manager: NamespaceManager) -> list[QueueDescription | TopicDescription]:
    """Return the queues and topics of applications."""
    queues = [one for one in await manager.get_queues() if not _is_own(one.path)]
    return [*queues, *await manager.get_topics()]


def _is_own(path: str) -> bool:
    """Return whether pairing has created the queue at a path."""
    return is_backlog_path(path) or is_drill_path(path) or f"/{RECORD}/" in path.lower()


# The secondary.


async def _queues(manager: NamespaceManager) -> dict[str, QueueDescription]:
    """Return the queues of the secondary before pairing, by their paths in lower case."""
    try:
        return {queue.path.lower(): queue for queue in await manager.get_queues()}
    except UnauthorizedError as error:
        _fail_without("Manage", manager, error)
    except MessagingError as error:
        advice = "; try again when it is up" if error.is_transient else ""
        fail(f"the queues of the secondary namespace cannot be listed: {one_line(error.message)}{advice}", FAILED)


async def _pair(factory: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions) -> NamespacePair:
    manager = options.secondary_namespace_manager
    try:
        return await factory.pair_namespace(options)
    except UnauthorizedError as error:
        _fail_without("Send", manager, error)
    except MessagingError as error:
        fail(f"the backlog queues in {manager.endpoint} cannot be set up: {one_line(error)}", FAILED)


def _fail_without(claim: str, manager: NamespaceManager, error: UnauthorizedError) -> NoReturn:
    fail(
        f"the key of the secondary namespace {manager.endpoint} is wrong, or lacks {claim}: {one_line(error.message)}; "
        "it needs Manage, Send and Listen",
        FAILED,
    )


async def _backlog_queues(
    pair: NamespacePair,
    options: SendAvailabilityPairedNamespaceOptions,
    before: Mapping[str, QueueDescription],
) -> tuple[BacklogQueueVerification, ...]:
    found = []
    for status in pair.status().backlog_queues:
        description = before.get(status.path.lower())
        differing = () if description is None else differences(description)
        found.append(
            BacklogQueueVerification(
                path=status.path,
                origin=_origin(description, differing),
                differences=differing,
                send_failure=status.cause,
                receive_failure=await _receive_failure(options, status.path),
            )
        )
    return tuple(found)


def _origin(description: QueueDescription | None, differing: tuple[BacklogDifference, ...]) -> Origin:
    if description is None:
        return Origin.MADE
    return Origin.DIFFERENT if differing else Origin.FOUND


async def _receive_failure(options: SendAvailabilityPairedNamespaceOptions, path: str) -> MessagingError | None:
    """Attach a receiver as a syphon does, without credit, and return the error if that fails."""
    try:
        link = await options.messaging_factory.open_receiving_link(path, ReceiveOptions())
    except UnauthorizedError as error:
        _fail_without("Listen", options.secondary_namespace_manager, error)
    except MessagingError as error:
        return error
    await link.close()
    return None
