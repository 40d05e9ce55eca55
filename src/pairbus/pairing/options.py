"""The options of a pair, and how a pair is created from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import entry_points
from random import SystemRandom
from types import NoneType
from typing import Final

from pairbus.client.client_resource import PairedNamespaceOptions, Primary
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.validation import check_path, check_type, shown
from pairbus.pairing.backlog import Backlog, ensure_backlog_queues
from pairbus.pairing.events import Listeners
from pairbus.pairing.pair import LEAST_PING_INTERVAL, MOST_PING_INTERVAL, NamespacePair, PairSettings
from pairbus.pairing.policy import FAILURE_RULES, FailureRules, check_rules
from pairbus.pairing.primary_names import find_primary_names, is_same_host, is_same_namespace, record_name
from pairbus.pairing.syphon import IN_PROCESS, InProcessSyphon, SyphonEngine, SyphonSettings

GROUP: Final = "pairbus.syphons"
"""The entry point group of other engines."""


def find_engine(name: str | SyphonEngine) -> SyphonEngine:
    """Return an engine by its name, or the engine itself. Raise ``ValueError`` if it is not installed."""
    if not isinstance(name, str):
        return name
    if name == IN_PROCESS:
        return InProcessSyphon
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted({IN_PROCESS, *found}))
        raise ValueError(f"there is no syphon engine {shown(name)}; there are: {known}")
    engine: SyphonEngine = found[name].load()
    return engine


_MOST_QUEUES: Final = 10_000
_NO_TIME: Final = timedelta()


class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions[NamespacePair]):
    """Keeps senders working: while an entity is down, its messages go to backlog queues in the secondary namespace.

    ``secondary_namespace_manager`` creates the backlog queues, also those that are deleted later, and
    ``messaging_factory`` sends to them; both are of the secondary namespace, and owned by the application.
    """

    def __init__(
        self,
        secondary_namespace_manager: NamespaceManager,
        messaging_factory: MessagingFactory,
        backlog_queue_count: int = 10,
        failover_interval: timedelta = timedelta(minutes=1),
        enable_syphon: bool = False,
        *,
        ping_interval: timedelta = timedelta(minutes=1),
        attempt_timeout: timedelta = timedelta(seconds=5),
        primary_name: str | None = None,
        failure_rules: FailureRules = FAILURE_RULES,
        preserve_session_order: bool = False,
        syphon: SyphonSettings | None = None,
        syphon_engine: str | SyphonEngine = IN_PROCESS,
    ) -> None:
        check_type("secondary_namespace_manager", secondary_namespace_manager, (NamespaceManager,))
        check_type("messaging_factory", messaging_factory, (MessagingFactory,))
        check_type("backlog_queue_count", backlog_queue_count, (int,))
        for name, flag in (("enable_syphon", enable_syphon), ("preserve_session_order", preserve_session_order)):
            check_type(name, flag, (bool,))
        check_type("primary_name", primary_name, (str, NoneType))
        check_type("syphon", syphon, (SyphonSettings, NoneType))
        if not callable(syphon_engine):
            check_type("syphon_engine", syphon_engine, (str,))
        check_rules(failure_rules)
        if not 1 <= backlog_queue_count <= _MOST_QUEUES:
            raise ValueError(f"backlog_queue_count must be 1 to {_MOST_QUEUES:,}, got {backlog_queue_count}")
        _check_time("failover_interval", failover_interval, _NO_TIME, timedelta(minutes=60))
        _check_time("ping_interval", ping_interval, LEAST_PING_INTERVAL, MOST_PING_INTERVAL)
        _check_time("attempt_timeout", attempt_timeout, timedelta(milliseconds=100), timedelta(minutes=60))
        if primary_name is not None:
            check_path("primary_name", primary_name)
        self.secondary_namespace_manager: Final = secondary_namespace_manager
        self.messaging_factory: Final = messaging_factory
        self.backlog_queue_count: Final = backlog_queue_count
        """Number of backlog queues; missing ones are created."""
        self.failover_interval: Final = failover_interval
        """Time without a success after a failure until messages are diverted; zero diverts at once."""
        self.enable_syphon: Final = enable_syphon
        """Run a syphon in this process; at least one process of a pair should."""
        self.ping_interval: Final = ping_interval
        self.attempt_timeout: Final = attempt_timeout
        """Timeout of an attempt to send to either namespace, or to connect to it."""
        self.primary_name: Final = primary_name
        """The name in the paths of the backlog queues; ``None`` for the one that the primary announces, or its host."""
        self.failure_rules: Final = failure_rules
        self.preserve_session_order: Final = preserve_session_order
        self.syphon: Final = SyphonSettings() if syphon is None else syphon
        self.syphon_engine: Final = syphon_engine

    async def pair(self, primary: Primary) -> NamespacePair:
        if not isinstance(primary, MessagingFactory):
            raise TypeError(f"primary must be a MessagingFactory, got {shown(primary)}")
        self._check_namespaces(primary.endpoint)
        engine = find_engine(self.syphon_engine) if self.enable_syphon else None
        secondary = self.messaging_factory
        secondary.enlist()
        unpaired_attempt_s, attempt_s = primary.send_attempt_s, self.attempt_timeout.total_seconds()
        primary.limit_send_attempts(attempt_s)  # the maximum wait for a primary that does not respond
        try:
            pair = await self._create_pair(primary)
        except BaseException:
            primary.limit_send_attempts(unpaired_attempt_s)
            secondary.dismiss()
            raise
        try:
            with _explain_unauthorized("messaging_factory", secondary.endpoint):
                await pair.start(engine)
            primary.check_open()  # if it was closed meanwhile, it did not close the pair
        except BaseException:
            primary.limit_send_attempts(unpaired_attempt_s)
            await pair.abort()
            raise
        secondary.limit_send_attempts(attempt_s)
        return pair

    async def _create_pair(self, primary: MessagingFactory) -> NamespacePair:
        manager = self.secondary_namespace_manager
        with _explain_unauthorized("secondary_namespace_manager", manager.endpoint):
            names = await find_primary_names(primary, manager, self.primary_name)
            name = await names.choose(manager.queue_exists)
            queues = await ensure_backlog_queues(manager, name, self.backlog_queue_count)
            if name == names.announced:
                await record_name(manager, primary.endpoint, name)
        if self.preserve_session_order and any(one.enable_partitioning for one in queues):
            partitioned = ", ".join(one.path for one in queues if one.enable_partitioning)
            raise ValueError(
                f"preserve_session_order requires backlog queues without partitions, got {partitioned}; delete them"
                " when they are empty, and pair again"
            )
        listeners = Listeners()
        paths = [one.path for one in queues]
        backlog = Backlog(self.messaging_factory, manager, paths, SystemRandom(), listeners)
        return NamespacePair(primary, manager, backlog, self._settings(), listeners, names)

    def _settings(self) -> PairSettings:
        return PairSettings(
            failover_interval_s=self.failover_interval.total_seconds(),
            ping_interval_s=self.ping_interval.total_seconds(),
            failure_rules=self.failure_rules,
            preserve_session_order=self.preserve_session_order,
            syphon=self.syphon,
        )

    def _check_namespaces(self, primary: Endpoint) -> None:
        manager, secondary = self.secondary_namespace_manager.endpoint, self.messaging_factory.endpoint
        for name, endpoint in (("messaging_factory", secondary), ("secondary_namespace_manager", manager)):
            if is_same_namespace(endpoint, primary):
                raise ValueError(f"{name} must be of the secondary namespace, got {endpoint}, which is the primary")
        if not is_same_host(manager, secondary):
            raise ValueError(
                "secondary_namespace_manager and messaging_factory must be of the same namespace, got "
                f"{manager} and {secondary}"
            )


@contextmanager
def _explain_unauthorized(name: str, endpoint: Endpoint) -> Iterator[None]:
    """Name the option whose key lacks a claim in an ``UnauthorizedError``."""
    try:
        yield
    except UnauthorizedError as error:
        text = f"the key of {name} lacks a claim on {endpoint}: {error.message}"
        raise UnauthorizedError(text, entity=error.entity, condition=error.condition) from error


def _check_time(name: str, value: timedelta, minimum: timedelta, maximum: timedelta) -> None:
    check_type(name, value, (timedelta,))
    if not minimum <= value <= maximum:
        raise ValueError(f"{name} must be {minimum} to {maximum}, got {value}")
