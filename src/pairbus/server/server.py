"""A namespace server: assembly, start and stop."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4
from warnings import warn

import uvicorn
from starlette.routing import BaseRoute
from uvicorn.server import ServerState

from pairbus.broker import Namespace, Records
from pairbus.dialect.connection_string import ConnectionString
from pairbus.fault_kinds import CrashComponent
from pairbus.ledger import Ledger
from pairbus.server import components
from pairbus.server.access import Authorizer, VerifyJwt, ensure_root_key, other_root_keys
from pairbus.server.amqp.frame_trace import FrameTracing
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.audit import (
    SETTINGS_ACTOR,
    Actor,
    AuditAction,
    AuditLog,
    AuditMetrics,
    DeclaredState,
    declared_changes,
)
from pairbus.server.busy import BusyProtocol
from pairbus.server.clock import Clock, SystemClock
from pairbus.server.counters import Counters
from pairbus.server.declaration import apply_declaration
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.entity_traffic import EntityTraffic
from pairbus.server.errors import InvalidCredentialsError, StopTimeoutError
from pairbus.server.event_recorder import EventRecorder, Spill
from pairbus.server.fault_injection import FaultEffects
from pairbus.server.faults import Faults
from pairbus.server.host import NamespaceHost
from pairbus.server.http.app import RequestGuard, make_app
from pairbus.server.http.metrics import (
    ComponentMetrics,
    LedgerMetrics,
    Metrics,
    StorageMetrics,
    StorageReading,
    UnprovenConnectionMetrics,
)
from pairbus.server.http.protocol import HttpProtocol, StreamingWebSocket
from pairbus.server.index_check import IndexCheck
from pairbus.server.jwt import DEFAULT_AUDIENCE, JwtVerifier, SigningKeys, SigningKeysError, allow_any
from pairbus.server.listener import Listener, ProtocolSniffer
from pairbus.server.messages import STUB_BODY, MessageView
from pairbus.server.metering import OperationMeter, path_of_address
from pairbus.server.outbox import MOST_BYTES, Outbox
from pairbus.server.peer_limits import LoginFailure
from pairbus.server.scrubbing import Scrubber
from pairbus.server.settings import Settings, SettingsError
from pairbus.server.side_buffer.buffer import SideBuffer, SideBufferMetrics, warn_of_unset_buffer
from pairbus.server.side_buffer.entity_buffers import BufferCounts
from pairbus.server.supervision.diagnostics import Diagnostics
from pairbus.server.supervision.supervisor import ComponentStatus
from pairbus.server.throttle.gauges import Gauges, LoopLag
from pairbus.server.throttle.throttle import Throttle, ThrottleTimer
from pairbus.server.websocket import websocket_route
from pairbus.store import GroupCommitter, StoreError
from pairbus.store.bundles import BundleDirectory
from pairbus.store.certificate import Certificate, open_certificate
from pairbus.store.directory import DATA_FILE
from pairbus.store.faulty import FaultyStore
from pairbus.store.keyvalue import KeyValueStore

_log = logging.getLogger(__name__)

HttpExtension = Callable[[AmqpServices], AbstractAsyncContextManager[Sequence[BaseRoute]]]
"""Extra HTTP routes served beside the namespace: they work on its services, for as long as the context is open."""

_POLL_S: Final = 0.01
_HAND_OVER_S: Final = 2.0
"""Time for handing entries over to the ledger, which needs less; the rest is handed over at the next start."""

_CLOSE_S: Final = 1.0
"""Total time for the parts to close once the time for a stop is used up, before they are abandoned."""

_LEAST_CLOSE_S: Final = 0.25
"""Minimum time for each part: a working one needs no more."""

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 (explicitly configured)
_KEEP_ALIVE_S: Final = 120
_DAY_S: Final = 86_400
_KEEP_ALIVE_MARGIN_S: Final = 10


class NamespaceServer:
    """One namespace on one machine. Use it as ``async with NamespaceServer(settings) as server``."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        extensions: Sequence[HttpExtension] = (),
        annexes: Sequence[HttpExtension] = (),
    ) -> None:
        """``extensions`` add HTTP routes, such as those of the console; ``annexes`` is the former name."""
        if annexes:
            warn("the argument annexes of NamespaceServer is now called extensions", DeprecationWarning, stacklevel=2)
        self.settings = settings
        self._extensions = (*extensions, *annexes)
        self.ports: tuple[int, ...] = ()
        self.ca_file: Path | None = None
        """The certificate of our private authority; ``None`` if the settings name a certificate."""
        self.key = ""
        """The value of the root key."""
        self._clock = clock or SystemClock()
        self._resources = AsyncExitStack()
        self._closing = _Closing(settings.drain_s)
        self._parts: _Parts | None = None
        self._ledger: Ledger | None = None
        self._recorder: EventRecorder | None = None
        self._scrubber: Scrubber | None = None
        self._index_check: IndexCheck | None = None
        self._signing_keys: SigningKeys | None = None
        self._faults = Faults() if settings.allow_faults else None
        self._faulty_store: FaultyStore | None = None
        self._fault_effects: FaultEffects | None = None
        self._traffic = EntityTraffic()
        self._start_changes: list[tuple[AuditAction, dict[str, Any]]] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def host(self) -> NamespaceHost:
        """Return the namespace that is being served; raises ``RuntimeError`` if the server is not running."""
        return self._running.services.host

    @property
    def connection_string(self) -> str:
        """Return a connection string with the root key: for plain connections, which the SDKs' clients accept
        unchanged.
        """
        return str(self._connection_string(development=True))

    @property
    def tls_connection_string(self) -> str:
        return str(self._connection_string(development=False))

    @property
    def address(self) -> str:
        """Return the base URL without TLS, for browsers: ``http://localhost:5672``."""
        host = self._known_host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.ports[0]}"

    @property
    def _known_host(self) -> str:
        host = self.settings.host
        return "localhost" if host in {*_LOOPBACK, *_EVERYWHERE} else host

    def _connection_string(self, *, development: bool) -> ConnectionString:
        return ConnectionString(
            host=self._known_host,
            port=self.ports[0],
            key_name=self.settings.key_name,
            key=self.key,
            development=development,
        )

    @property
    def _running(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the server is not running")
        return self._parts

    async def start(self) -> None:
        """Open the namespace and listen.

        Raises ``StoreError``, ``LedgerError``, ``OSError``, ``SettingsError`` or ``DeclarationError``.
        """
        async with AsyncExitStack() as stack:
            try:
                self._parts = await self._assemble(stack)
            except BaseException:
                self._closing = _Closing(self.settings.drain_s)
                raise
            self._resources = stack.pop_all()
        _log.info("server started namespace=%s ports=%s", self.settings.name, ",".join(map(str, self.ports)))

    async def stop(self) -> None:
        """Confirm what has arrived, close all connections, and close the store. Stopping twice is allowed.

        Raises ``StopTimeoutError`` if the storage does not answer within ``drain_s`` seconds and about one more.
        """
        parts, self._parts = self._parts, None
        if parts is None:
            return
        closing = self._closing = _Closing(self.settings.drain_s)
        if self._fault_effects is not None:
            self._fault_effects.close()
        try:
            try:
                await parts.drain(closing)
            finally:
                closing.allow(_CLOSE_S)
                await self._resources.aclose()
        finally:
            if closing.given_up:
                raise self._given_up(closing)
        _log.info("server stopped namespace=%s", self.settings.name)

    def _given_up(self, closing: _Closing) -> StopTimeoutError:
        """Log the parts that a stop has abandoned, and return the error."""
        name, waited_s = self.settings.name, closing.waited_s
        _log.error(
            'stop timed out namespace=%s reason="storage does not answer" abandoned="%s" unconfirmed_sends=%d'
            " seconds=%.1f",
            name,
            ", ".join(closing.given_up),
            closing.unconfirmed_sends,
            waited_s,
        )
        return StopTimeoutError(name, closing.given_up, closing.unconfirmed_sends, waited_s)

    @property
    def components(self) -> Sequence[ComponentStatus]:
        """Return the states of all supervised components."""
        return self._running.services.supervisor.statuses()

    def when_blocked(self, seconds: float, give_up: Callable[[], object]) -> None:
        """Call ``give_up``, on another thread, when the event loop has been blocked for that time.

        Nothing in a process can unblock a loop; give up by ending the process.
        """
        self._running.services.watchdog.give_up_after(seconds, give_up)

    def drop_connections(self) -> None:
        """Abort every connection, as a network failure would."""
        for connection in [*self._running.services.connections]:
            connection.abort()

    # Assembly.

    async def _assemble(self, stack: AsyncExitStack) -> _Parts:
        settings = self.settings
        ledger = self._ledger = self._open_ledger(stack)
        host = self._open_namespace()
        host.audit = AuditLog.open(settings)
        stack.push_async_callback(self._close_audit, host.audit)
        scrubber = self._scrubber = Scrubber(host, settings.data / DATA_FILE, settings.scrub_days * _DAY_S)
        counters = Counters()
        meter = None if ledger is None else self._open_meter(stack, ledger, host, counters)
        self._close_at_stop(stack, "store", host.close_within)
        if meter is not None:
            stack.push_async_callback(self._hand_over, meter)
        await host.durable()
        self._record_start(host.audit)
        stack.push_async_callback(scrubber.close)
        scrubber.start()
        self._open_side_buffer(stack, host)
        verify_jwt = await self._jwt(stack)
        signing_keys = self._signing_keys
        authorizer = Authorizer(
            host,
            verify_jwt,
            settings.max_token_minutes * 60_000 or None,
            None if signing_keys is None else signing_keys.trusts,
        )
        dispatcher = Dispatcher(host)
        services = AmqpServices(
            host,
            authorizer,
            dispatcher,
            counters,
            settings.idle_timeout_s * 1_000,
            meter,
            settings.max_connections_per_address,
            settings.connection_limits,
        )
        if signing_keys is not None:
            signing_keys.on_changed.add(services.recheck.start)
        self._supervise(services)
        if self._faults is not None and self._faulty_store is not None:
            self._fault_effects = FaultEffects(self._faults, services, self._faulty_store)
        if settings.trace_frames:
            services.tracing = FrameTracing(patterns=settings.trace_frames_of)
        services.guesses.on_failed.add(partial(_record_failed_login, host.audit))
        routes = [route for extend in self._extensions for route in await stack.enter_async_context(extend(services))]
        http = self._http(services, authorizer, routes)
        state = ServerState()
        state.default_headers = http.encoded_headers

        def connection_count() -> int:
            return services.stream_count + len(state.connections) + listener.waiting_count

        refuse = partial(BusyProtocol, _too_many(settings.max_connections), host.now_ms)
        crowded = partial(BusyProtocol, _too_many_of_one(settings.max_connections_per_address), host.now_ms)
        listener = Listener(
            host.loop,
            lambda accepted, secure: ProtocolSniffer(
                services, lambda: HttpProtocol(http, state, {}, services), accepted, secure=secure
            ),
            self._tls(),
            lambda: host.throttle.admit("connections", connection_count()),
            refuse,
            services.unproven,
            services.limits.handshake_timeout_s,
            lambda limit: counters.limits.update({limit: 1}),
            services.addresses,
            crowded,
        )
        if self._faults is not None:
            listener.crash_point = partial(self._faults.crash, CrashComponent.LISTENER)
        stack.callback(listener.close)
        services.supervisor.add(components.throttle(self._watch_facets(stack, host, connection_count)))
        self.ports = tuple(listener.listen(settings.host, port) for port in settings.port)
        services.supervisor.add(components.listener(listener))
        self._start_supervision(stack, services)
        return _Parts(services, listener, state)

    def _supervise(self, services: AmqpServices) -> None:
        """Add the components to the supervisor, and prepare diagnostics. Nothing is checked before the start."""
        host, supervisor = services.host, services.supervisor
        sections = components.sections(self.settings, host, services.counters, supervisor, services.watchdog)
        diagnostics = services.diagnostics = Diagnostics(BundleDirectory(self.settings.data), host.loop, sections)
        supervisor.report = diagnostics.report
        host.on_storage_incident.add(diagnostics.report)
        supervisor.add(components.commit_thread(host))
        supervisor.add(components.timers(host))
        supervisor.add(components.dispatcher(services.dispatcher))
        index_check = self._index_check = IndexCheck(host, supervisor)
        supervisor.add(components.index(index_check))
        supervisor.add(components.diagnostics(diagnostics))
        supervisor.add(components.watchdog(services.watchdog))
        if host.audit.writer is not None:
            supervisor.add(components.audit_log(host.audit.writer))
        if self._signing_keys is not None:
            supervisor.add(components.signing_keys(self._signing_keys))
        if self._scrubber is not None:
            supervisor.add(components.scrubber(self._scrubber, host))
        if host.side_buffer is not None:
            supervisor.add(components.side_buffer(host.side_buffer, host))
        if self._ledger is not None and services.meter is not None:
            supervisor.add(components.ledger(self._ledger, services.meter))

    def _start_supervision(self, stack: AsyncExitStack, services: AmqpServices) -> None:
        if services.diagnostics is not None:
            services.diagnostics.start()
            stack.push_async_callback(services.diagnostics.close)
        if self._index_check is not None:
            self._index_check.start()
            stack.push_async_callback(self._index_check.close)
        stack.push_async_callback(services.supervisor.close)
        stack.callback(services.watchdog.close)
        services.supervisor.start()
        services.watchdog.start()

    def _record_start(self, audit: AuditLog) -> None:
        """Record the settings, and what the declared entities and keys have changed."""
        audit.record_start(self.settings)
        for action, facts in self._start_changes:
            audit.record(action, SETTINGS_ACTOR, **facts)
        self._start_changes.clear()

    async def _close_audit(self, audit: AuditLog) -> None:
        """Close the audit log; a disk that does not answer is no reason not to stop."""
        audit.record(AuditAction.SERVER_STOPPED, SETTINGS_ACTOR)
        await audit.close(self._closing.left_s)

    def _close_at_stop(self, stack: AsyncExitStack, part: str, close: Callable[[float], Awaitable[None]]) -> None:
        """Close a part when the server stops, before those that were opened earlier."""

        async def closed() -> None:
            await self._closing.close(part, close)

        stack.push_async_callback(closed)

    async def _hand_over(self, meter: OperationMeter) -> None:
        await meter.hand_over(min(_HAND_OVER_S, self._closing.left_s))

    def _open_side_buffer(self, stack: AsyncExitStack, host: NamespaceHost) -> None:
        settings = self.settings
        if settings.side_buffer is not None:
            buffer = SideBuffer.open(settings.side_buffer, settings.name, host, settings.max_side_buffer_bytes)
            buffer.writer.overdue_s = settings.storage_timeout_s
            self._close_at_stop(stack, "side buffer", buffer.close)
            buffer.start()
            host.side_buffer = buffer
        else:
            warn_of_unset_buffer(host)

    def _watch_facets(
        self, stack: AsyncExitStack, host: NamespaceHost, connection_count: Callable[[], int]
    ) -> ThrottleTimer:
        gauges = Gauges(
            data=self.settings.data,
            used_bytes=lambda: host.committer.used_bytes,
            connection_count=connection_count,
            loop_lag=LoopLag(),
        )
        timer = ThrottleTimer(host.throttle, gauges, host.loop)
        stack.callback(timer.close)
        timer.start()
        return timer

    def _open_ledger(self, stack: AsyncExitStack) -> Ledger | None:
        settings = self.settings
        if settings.ledger is None:
            return None
        ledger = Ledger.open(settings.ledger, settings.name)
        self._close_at_stop(stack, "ledger", partial(_close_ledger, ledger))
        if settings.ledger_lives:
            self._recorder = EventRecorder(path_of_address, self._clock(), Spill(ledger))
        return ledger

    def _open_meter(
        self, stack: AsyncExitStack, ledger: Ledger, host: NamespaceHost, counters: Counters
    ) -> OperationMeter:
        outbox = None
        if self._recorder is not None:
            self._recorder.settle_in()
            self._recorder.now_ms = host.seen_ms
            most_bytes = min(MOST_BYTES, self.settings.max_store_bytes // 16)
            outbox = Outbox(self._recorder, host, ledger, most_bytes)
            outbox.replay(self._clock())
        meter = OperationMeter(ledger, host, counters, outbox)
        stack.callback(meter.close)
        return meter

    def _open_namespace(self) -> NamespaceHost:
        settings = self.settings
        self._traffic = EntityTraffic(settings.max_entity_metrics, self._recorder)
        loop = asyncio.get_running_loop()
        committer = GroupCommitter.open(
            settings.data,
            self._make_namespace,
            self._clock(),
            wake=loop.call_soon_threadsafe,
            max_bytes=settings.max_store_bytes,
            recovering=self._begin_recording,
            wrap_store=self._wrap_store,
        )
        recovery = committer.recovery
        _log.info(
            "namespace opened namespace=%s entities=%d messages=%d damaged=%d quarantined=%d",
            settings.name,
            recovery.entities,
            recovery.messages,
            len(recovery.damaged),
            recovery.quarantined,
        )
        wall_clock: Clock | None = getattr(self._clock, "wall_ms", None)
        host = NamespaceHost(settings.name, settings.limits, committer, self._clock, loop, wall_clock)
        host.throttle = Throttle(settings)
        host.commit_overdue_s = settings.storage_timeout_s
        host.faults = self._faults
        try:
            self._furnish(host.use_namespace())
        except BaseException:
            committer.abandon()  # apply all of the declaration or nothing
            raise
        return host

    def _wrap_store(self, store: KeyValueStore) -> KeyValueStore:
        faults = self._faults
        if faults is None:
            return store
        self._faulty_store = FaultyStore(store, lambda: faults.store_trouble(self._clock()))
        return self._faulty_store

    def _furnish(self, namespace: Namespace) -> None:
        settings, now_ms = self.settings, self._clock()
        before = DeclaredState.read(settings.entities, namespace, now_ms)
        apply_declaration(settings.entities, namespace, now_ms)
        self.key = ensure_root_key(namespace, settings.key_name, settings.key, now_ms)
        after = DeclaredState.read(settings.entities, namespace, now_ms)
        self._start_changes = [*declared_changes(before, after)]
        for name in other_root_keys(namespace, settings.key_name, settings.entities.keys, now_ms):
            _log.warning("undeclared key has all rights, delete it if unused namespace=%s key=%s", settings.name, name)

    def _make_namespace(self, records: Records) -> Namespace:
        return Namespace(
            records,
            limits=self.settings.limits,
            view=MessageView,
            fresh_id=uuid4,
            fresh_token=partial(os.urandom, 16),
            stub_body=STUB_BODY,
            event_sink=self._traffic,
        )

    def _begin_recording(self, last: int) -> None:
        if self._recorder is not None:
            self._recorder.begin(last)

    async def _jwt(self, stack: AsyncExitStack) -> VerifyJwt | None:
        settings = self.settings
        if settings.allow_any_jwt:
            _log.warning("token verification disabled setting=allow_any_jwt namespace=%s", settings.name)
            return allow_any
        if settings.jwt_keys is None or settings.jwt_issuer is None:
            if settings.jwt_keys or settings.jwt_issuer or settings.jwt_audience:
                raise SettingsError("tokens of an issuer need both jwt_issuer and jwt_keys")
            return None
        try:
            keys = self._signing_keys = await SigningKeys.load(settings.jwt_keys, refresh_s=settings.jwt_refresh_s)
        except SigningKeysError as error:
            raise SettingsError(f"jwt_keys: {error}") from error
        stack.callback(keys.stop)
        return JwtVerifier(keys, settings.jwt_issuer, settings.jwt_audience or DEFAULT_AUDIENCE)

    def _tls(self) -> ssl.SSLContext:
        settings = self.settings
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if settings.tls_cert is not None and settings.tls_key is not None:
            _load(context, settings.tls_cert, settings.tls_key)
            return context
        certificate: Certificate = open_certificate(settings.data, [settings.host, settings.name], self._clock())
        self.ca_file = certificate.ca_file
        context.load_cert_chain(certificate.cert_file, certificate.key_file)
        return context

    def _http(self, services: AmqpServices, authorizer: Authorizer, routes: Sequence[BaseRoute]) -> uvicorn.Config:
        metrics = Metrics(services.counters, services.host.committer, services.host.throttle, self._traffic)
        host = services.host
        metrics.registry.register(StorageMetrics(partial(_storage_reading, host, self._scrubber)))
        metrics.registry.register(AuditMetrics(host.audit))
        metrics.registry.register(
            UnprovenConnectionMetrics(services.unproven, services.turns, services.addresses, services.guesses)
        )
        metrics.registry.register(ComponentMetrics(services.supervisor, services.watchdog))
        buffer = host.side_buffer
        if buffer is None:
            metrics.registry.register(SideBufferMetrics(BufferCounts()))
        else:
            metrics.registry.register(SideBufferMetrics(buffer.counts, lambda: buffer.oldest_s))
        ledger = self._ledger
        if ledger is not None:
            metrics.registry.register(LedgerMetrics(lambda: ledger.status))
        app = make_app(
            services.host,
            authorizer,
            metrics,
            [websocket_route(services), *routes],
            open_metrics=self.settings.open_metrics,
            is_draining=lambda: services.is_draining,
            created_ms=services.host.committer.created_ms,
            meter=services.meter,
            guesses=services.guesses,
            supervisor=services.supervisor,
            diagnostics=services.diagnostics,
        )
        config = uvicorn.Config(
            RequestGuard(app, services.counters),
            http="h11",
            ws=StreamingWebSocket,
            lifespan="off",
            log_config=None,
            access_log=False,
            # The SDK for Python only reads on demand, so it answers no pings; AMQP has its own.
            ws_ping_interval=None,
            ws_ping_timeout=None,
            ws_per_message_deflate=False,
            server_header=False,
            # Any peer on this machine could claim another address for each request: to guess keys without a limit, and
            # to hide from the log and the audit log.
            proxy_headers=False,
            # A client that takes a connection from its pool just as we close it sees its request fail; so the response
            # says how long the client may keep it, and we keep it a little longer.
            headers=[("Keep-Alive", f"timeout={_KEEP_ALIVE_S}")],
            timeout_keep_alive=_KEEP_ALIVE_S + _KEEP_ALIVE_MARGIN_S,
        )
        config.load()
        return config


def _storage_reading(host: NamespaceHost, scrubber: Scrubber | None) -> StorageReading:
    try:
        ids = host.use_namespace().duplicate_ids_in_memory
    except StoreError:
        ids = 0
    reading = StorageReading(
        quarantined=host.quarantined_count,
        damaged_pages=host.damaged_page_count,
        rebuilds=len(host.committer.rebuilds),
        is_stalled=host.stalled_s is not None,
        ids_in_memory=ids,
    )
    if scrubber is None:
        return reading
    return reading._replace(
        scrubbed_records=scrubber.records,
        scrub_passes=scrubber.passes,
        scrub_progress=scrubber.progress,
        last_scrub_s=scrubber.last_pass_ms / 1_000,
    )


def _record_failed_login(audit: AuditLog, failure: LoginFailure) -> None:
    actor = Actor(peer=failure.peer, protocol=failure.protocol, container=failure.container)
    audit.record(AuditAction.LOGIN_FAILED, actor, key=failure.key, error=InvalidCredentialsError("wrong key"))


def _too_many(connections: int) -> str:
    return f"the server has reached its limit of {connections} connections; try again in 10 seconds or later"


def _too_many_of_one(connections: int) -> str:
    return f"your address has reached its limit of {connections} connections; close some, or try again later"


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Load the operator's certificate; raises ``SettingsError`` that names the invalid file."""
    for name, file in (("tls_cert", cert), ("tls_key", key)):
        try:
            file.read_bytes()
        except OSError as error:
            raise SettingsError(f"{name}: {file} cannot be read: {error.strerror}") from error
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise SettingsError(
            f"tls_cert and tls_key: {cert} and {key} are not a certificate and its key in PEM ({error.reason})"
        ) from error


class _Closing:
    """The time budget of a stop, and the parts that it has abandoned."""

    def __init__(self, within_s: float) -> None:
        self._began_s = time.monotonic()
        self.ends_s = self._began_s + within_s
        self.given_up: list[str] = []
        self.unconfirmed_sends = 0

    @property
    def left_s(self) -> float:
        """Return the time that a part may take to close."""
        return max(self.ends_s - time.monotonic(), _LEAST_CLOSE_S)

    def allow(self, least_s: float) -> None:
        """Extend the remaining time to at least ``least_s``."""
        self.ends_s = max(self.ends_s, time.monotonic() + least_s)

    async def close(self, part: str, close: Callable[[float], Awaitable[None]]) -> None:
        """Close a part, or give it up."""
        try:
            await close(self.left_s)
        except TimeoutError:
            self.given_up.append(part)

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._began_s


async def _close_ledger(ledger: Ledger, within_s: float) -> None:
    """Close a ledger; if time is short, leave its journals to the next start. Raises ``TimeoutError``."""
    ends_s = time.monotonic() + within_s
    ledger.begin_close()
    await _until(lambda: ledger.is_closed, ends_s - _CLOSE_S)
    ledger.leave_journals()
    await _until(lambda: ledger.is_closed, ends_s)
    if not ledger.is_closed:
        raise TimeoutError


class _Parts:
    """The running parts, to be stopped in order."""

    def __init__(self, services: AmqpServices, listener: Listener, http: ServerState) -> None:
        self.services = services
        self._listener = listener
        self._http = http

    async def drain(self, closing: _Closing) -> None:
        """Stop accepting, confirm what has arrived, shut connections down, then abort those that remain."""
        services, deadline = self.services, closing.ends_s
        services.watchdog.close()
        services.supervisor.stop()
        services.host.committer.restart_thread()  # needed to confirm what has arrived
        self._listener.close()
        for stream in [*services.receptions]:
            stream.abort()
        services.is_draining = True
        try:
            async with asyncio.timeout(closing.left_s):
                await services.host.durable()
        except StoreError as error:
            _log.error('last writes failed namespace=%s error="%s"', services.host.name, error)
        except TimeoutError:  # if it cannot be written in the end, that is logged then
            pass
        if services.host.side_buffer is not None:  # the side buffer may have stored it instead
            await _until(services.host.side_buffer.writer.is_quiet, deadline)
        closing.unconfirmed_sends = sum(connection.unconfirmed_sends for connection in services.connections)
        for connection in [*services.connections]:
            connection.shut_down()
        await _until(lambda: not services.connections, deadline)
        for connection in [*services.connections]:
            connection.abort()
        services.worker.shutdown(wait=False, cancel_futures=True)
        for protocol in [*self._http.connections]:
            protocol.shutdown()
        await _until(lambda: not self._http.connections, deadline)
        for task in [*self._http.tasks]:
            task.cancel()
        for protocol in [*self._http.connections]:
            protocol.transport.abort()
        await asyncio.sleep(0)  # let the transports send their last bytes


async def _until(condition: Callable[[], bool], deadline: float) -> None:
    # The awaited states have no event: one of them is uvicorn's, which only polls it too.
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
