"""Setting up a pair, and seeing for ourselves that it would work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NoReturn

from pairbus.cli.backlog_difference import BacklogDifference, Harm, differences
from pairbus.cli.connection import FAILED, Connection, one_line
from pairbus.cli.failure import fail
from pairbus.client.amqp.receiving_link import Wish
from pairbus.client.errors import (
    EntityNotFoundError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.lane import Lane
from pairbus.client.management.descriptions import QueueDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.pairing import NamespacePair, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.backlog import backlog_queues_by_name

_NOWHERE: Final = "x-pairbus-pair"
"""A path on the primary at which nothing is; that we are told so shows that it answers, and that the key holds."""

_AWAY: Final = (MessagingCommunicationError, MessagingTimeoutError, ServerBusyError)


class Origin(Enum):
    """Where a backlog queue comes from."""

    MADE = "made now"
    FOUND = "was there"
    DIFFERENT = "was there with another description"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueVerification:
    """What was found out about a backlog queue."""

    path: str
    origin: Origin
    differences: tuple[BacklogDifference, ...]
    send_failure: MessagingError | None
    receive_failure: MessagingError | None

    @property
    def defects(self) -> tuple[str, ...]:
        """Why it is of no use."""
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
class PairVerification:
    """What was found out about a pair."""

    primary: str
    secondary: str
    primary_name: str
    """What the backlog queues call the primary."""

    primary_failure: MessagingError | None
    """Why the primary was not reached; ``None`` if it was."""

    backlog_queues: tuple[BacklogQueueVerification, ...]
    backlogs_in_primary: tuple[str, ...] = ()
    """Whose backlog queues the primary has, as far as it tells: a namespace that is the secondary of another."""

    @property
    def defective(self) -> tuple[BacklogQueueVerification, ...]:
        return tuple(one for one in self.backlog_queues if one.defects)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings())

    def _warnings(self) -> Iterator[str]:
        if self.primary_failure is not None:
            yield (
                f"the primary namespace was not reached: {one_line(self.primary_failure)}; "
                "if it is down, the pair is set up all the same, else check the address"
            )
        if self.backlogs_in_primary:
            yield (
                f"the primary has backlog queues itself, of '{self.backlogs_in_primary[0]}'; if --primary and "
                "--secondary are swapped, delete those that were made now, and run this again"
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
    primary: Connection, secondary: Connection, backlog_queue_count: int, primary_name: str | None
) -> PairVerification:
    """Set up a pair and look at it; ends the command if that cannot be done."""
    async with (
        secondary.factory() as backup,
        primary.factory() as factory,
        secondary.manager() as manager,
        primary.manager() as home,
    ):
        primary_failure = await _reach(factory, primary)
        before = await _queues(manager)
        options = SendAvailabilityPairedNamespaceOptions(
            manager, backup, backlog_queue_count, primary_name=primary_name
        )
        pair = await _pair(factory, options)
        return PairVerification(
            primary=str(primary.endpoint),
            secondary=str(secondary.endpoint),
            primary_name=pair.primary_name,
            primary_failure=primary_failure,
            backlog_queues=await _backlog_queues(pair, options, before),
            backlogs_in_primary=() if primary_failure is not None else await _backlogs(home),
        )


# The primary.


async def _reach(factory: MessagingFactory, primary: Connection) -> MessagingError | None:
    """Whether it answers; a key that it does not take ends the command."""
    lane = Lane(factory, primary.entity_path or _NOWHERE)
    try:
        await lane.link()
    except UnauthorizedError as error:
        reason = one_line(error.message)
        fail(f"the key of the primary namespace {primary.endpoint} is wrong, or lacks Send: {reason}", FAILED)
    except _AWAY as error:
        return error
    except EntityNotFoundError as error:
        if primary.entity_path is not None:
            fail(one_line(error), FAILED)
        return None
    except MessagingError:
        return None  # it has answered: most likely that there is no such entity
    finally:
        await lane.close()
    return None


async def _backlogs(manager: NamespaceManager) -> tuple[str, ...]:
    """Whose backlog queues a namespace has; nobody's, if the key may not ask."""
    try:
        return tuple(sorted(await backlog_queues_by_name(manager)))
    except MessagingError:
        return ()


# The secondary.


async def _queues(manager: NamespaceManager) -> dict[str, QueueDescription]:
    """Return the queues of the secondary before pairing, by their paths in lower case."""
    try:
        return {queue.path.lower(): queue for queue in await manager.get_queues()}
    except UnauthorizedError as error:
        _lacks("Manage", manager, error)
    except MessagingError as error:
        advice = "; try again when it is up" if error.is_transient else ""
        fail(f"the secondary namespace does not tell its queues: {one_line(error.message)}{advice}", FAILED)


async def _pair(factory: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions) -> NamespacePair:
    manager = options.secondary_namespace_manager
    try:
        return await factory.pair_namespace(options)
    except UnauthorizedError as error:
        _lacks("Send", manager, error)
    except MessagingError as error:
        fail(f"the backlog queues in {manager.endpoint} cannot be set up: {one_line(error)}", FAILED)


def _lacks(claim: str, manager: NamespaceManager, error: UnauthorizedError) -> NoReturn:
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
    """Attach as a syphon would, and ask for nothing."""
    try:
        link = await options.messaging_factory.open_receiving_link(path, Wish())
    except UnauthorizedError as error:
        _lacks("Listen", options.secondary_namespace_manager, error)
    except MessagingError as error:
        return error
    await link.close()
    return None
