"""What an application says when it pairs its namespace with another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from random import SystemRandom
from types import NoneType
from typing import Final

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.paired_namespace import PairedNamespaceOptions, Primary
from pairbus.client.validation import check_path, check_type, shown
from pairbus.pairing.addresses import is_same_host, is_same_namespace
from pairbus.pairing.backlog import Backlog, ensure_backlog_queues
from pairbus.pairing.engines import find_engine
from pairbus.pairing.events import Listeners
from pairbus.pairing.failure_rules import FAILURE_RULES, FailureRules, check_rules
from pairbus.pairing.pair import NamespacePair
from pairbus.pairing.primary_names import find_primary_names, record_name
from pairbus.pairing.settings import LEAST_PING_INTERVAL, MOST_PING_INTERVAL, PairSettings
from pairbus.pairing.syphon import IN_PROCESS, SyphonEngine, SyphonSettings

_MOST_QUEUES: Final = 10_000
_NO_TIME: Final = timedelta()


class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions[NamespacePair]):
    """Keeps senders going: while an entity is down, its messages go to backlog queues in the secondary namespace.

    ``secondary_namespace_manager`` makes the backlog queues and ``messaging_factory`` sends to them; both are of the
    secondary namespace, and stay the application's own.
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
            raise ValueError(f"backlog_queue_count is {backlog_queue_count}; it must be 1 to {_MOST_QUEUES:,}")
        _check_time("failover_interval", failover_interval, _NO_TIME, timedelta(minutes=60))
        _check_time("ping_interval", ping_interval, LEAST_PING_INTERVAL, MOST_PING_INTERVAL)
        _check_time("attempt_timeout", attempt_timeout, timedelta(milliseconds=100), timedelta(minutes=60))
        if primary_name is not None:
            check_path("primary_name", primary_name)
        self.secondary_namespace_manager: Final = secondary_namespace_manager
        self.messaging_factory: Final = messaging_factory
        self.backlog_queue_count: Final = backlog_queue_count
        """How many backlog queues there are, once the namespace is paired."""
        self.failover_interval: Final = failover_interval
        """How long nothing may succeed after a failure before messages are diverted; zero diverts at once."""
        self.enable_syphon: Final = enable_syphon
        """Whether this process brings messages home; at least one process of a pair should."""
        self.ping_interval: Final = ping_interval
        self.attempt_timeout: Final = attempt_timeout
        """How long a try to send waits for an answer of either namespace, and an attempt to connect to one."""
        self.primary_name: Final = primary_name
        """What the backlog queues are named after; ``None`` for the name that the primary announces, or its host."""
        self.failure_rules: Final = failure_rules
        self.preserve_session_order: Final = preserve_session_order
        self.syphon: Final = SyphonSettings() if syphon is None else syphon
        self.syphon_engine: Final = syphon_engine

    async def pair(self, primary: Primary) -> NamespacePair:
        if not isinstance(primary, MessagingFactory):
            raise TypeError(f"a MessagingFactory is paired, not {shown(primary)}")
        self._check_namespaces(primary.endpoint)
        engine = find_engine(self.syphon_engine) if self.enable_syphon else None
        secondary = self.messaging_factory
        secondary.enlist()
        unpaired_attempt_s, attempt_s = primary.send_attempt_s, self.attempt_timeout.total_seconds()
        primary.limit_send_attempts(attempt_s)  # a primary that is silent is not waited for any longer
        try:
            pair = await self._make(primary)
        except BaseException:
            primary.limit_send_attempts(unpaired_attempt_s)
            secondary.dismiss()
            raise
        try:
            with _blaming("messaging_factory", secondary.endpoint):
                await pair.start(engine)
            primary.check_open()  # it may have been closed meanwhile, and would not close the pair
        except BaseException:
            primary.limit_send_attempts(unpaired_attempt_s)
            await pair.abort()
            raise
        secondary.limit_send_attempts(attempt_s)
        return pair

    async def _make(self, primary: MessagingFactory) -> NamespacePair:
        manager = self.secondary_namespace_manager
        with _blaming("secondary_namespace_manager", manager.endpoint):
            names = await find_primary_names(primary, manager, self.primary_name)
            name = await names.choose(manager.queue_exists)
            queues = await ensure_backlog_queues(manager, name, self.backlog_queue_count)
            if name == names.announced:
                await record_name(manager, primary.endpoint, name)
        if self.preserve_session_order and any(one.enable_partitioning for one in queues):
            raise ValueError("a backlog queue is partitioned, and cannot keep the order of sessions")
        listeners = Listeners()
        backlog = Backlog(self.messaging_factory, [one.path for one in queues], SystemRandom(), listeners)
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
                raise ValueError(f"{name} is of {endpoint}, which is the primary; the secondary is another namespace")
        if not is_same_host(manager, secondary):
            raise ValueError(
                f"secondary_namespace_manager is of {manager} and messaging_factory of {secondary}; "
                "both are to be of the secondary namespace"
            )


@contextmanager
def _blaming(name: str, endpoint: Endpoint) -> Iterator[None]:
    """Whoever is refused hears which of the keys is not good enough."""
    try:
        yield
    except UnauthorizedError as error:
        told = f"{name}, of {endpoint}, is not allowed to: {error.message}"
        raise UnauthorizedError(told, entity=error.entity, condition=error.condition) from error


def _check_time(name: str, value: timedelta, least: timedelta, most: timedelta) -> None:
    check_type(name, value, (timedelta,))
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must be {least} to {most}")
