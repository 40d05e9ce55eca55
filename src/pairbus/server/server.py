"""A namespace server: everything put together, started and stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

import uvicorn
from starlette.routing import BaseRoute
from uvicorn.server import ServerState

from pairbus.broker import Namespace, Records
from pairbus.dialect.connection_string import ConnectionString
from pairbus.ledger import Ledger
from pairbus.server.access import Gatekeeper, VerifyJwt
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.busy import BusyProtocol
from pairbus.server.clock import Clock, SystemClock
from pairbus.server.counters import Counters
from pairbus.server.declaration import apply_declaration
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.http.app import make_app
from pairbus.server.http.guard import RequestGuard
from pairbus.server.http.ledger_metrics import LedgerMetrics
from pairbus.server.http.metrics import Metrics, StorageMetrics, StorageReading, StrangerMetrics
from pairbus.server.http.protocol import HttpProtocol, StreamingWebSocket
from pairbus.server.jwt import DEFAULT_AUDIENCE, JwtVerifier, allow_any
from pairbus.server.keys import ensure_root_key, other_root_keys
from pairbus.server.listener import Listener
from pairbus.server.lives import Lives, Spill
from pairbus.server.messages import STUB_BODY, MessageView
from pairbus.server.metering import Meter, path_of_address
from pairbus.server.outbox import MOST_BYTES, Outbox
from pairbus.server.reception import Reception
from pairbus.server.settings import Settings, SettingsError
from pairbus.server.side_buffer.buffer import SideBuffer, miss
from pairbus.server.side_buffer.metrics import SideBufferMetrics
from pairbus.server.side_buffer.tally import Tally
from pairbus.server.signing_keys import SigningKeys, SigningKeysError
from pairbus.server.throttle.gauges import Gauges
from pairbus.server.throttle.pulse import Pulse
from pairbus.server.throttle.throttle import Throttle
from pairbus.server.throttle.timer import ThrottleTimer
from pairbus.server.websocket import websocket_route
from pairbus.store import Keeper, StoreError
from pairbus.store.certificate import Certificate, open_certificate

_log = logging.getLogger(__name__)

Annex = Callable[[AmqpServices], AbstractAsyncContextManager[Sequence[BaseRoute]]]
"""What others serve beside the namespace, over HTTP: routes that work on its services, for as long as they are open."""

_POLL_S: Final = 0.01
_HAND_OVER_S: Final = 2.0
"""A ledger that is well needs less; what another one has not taken by then is handed over at the next start."""

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 (asked for by name)
_KEEP_ALIVE_S: Final = 120
_KEEP_ALIVE_MARGIN_S: Final = 10


class NamespaceServer:
    """One namespace on one machine. Use it as ``async with NamespaceServer(settings) as server``."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, annexes: Sequence[Annex] = ()) -> None:
        self.settings = settings
        self._annexes = annexes
        self.ports: tuple[int, ...] = ()
        self.ca_file: Path | None = None
        """The certificate that vouches for ours; ``None`` where the settings name one of their own."""
        self.key = ""
        """The value of the root key."""
        self._clock = clock or SystemClock()
        self._resources = AsyncExitStack()
        self._parts: _Parts | None = None
        self._ledger: Ledger | None = None
        self._lives: Lives | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def host(self) -> NamespaceHost:
        """The namespace that is being served; raises ``RuntimeError`` when the server does not run."""
        return self._running.services.host

    @property
    def connection_string(self) -> str:
        """What a client needs, with the root key: for plain connections, as the SDKs' clients take it unchanged."""
        return str(self._connection_string(development=True))

    @property
    def tls_connection_string(self) -> str:
        return str(self._connection_string(development=False))

    @property
    def address(self) -> str:
        """Where it is for browsers, without TLS: ``http://localhost:5672``."""
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
            raise RuntimeError("the server does not run")
        return self._parts

    async def start(self) -> None:
        """Open the namespace and listen.

        Raises ``StoreError``, ``LedgerError``, ``OSError``, ``SettingsError`` or ``DeclarationError``.
        """
        async with AsyncExitStack() as stack:
            self._parts = await self._assemble(stack)
            self._resources = stack.pop_all()
        _log.info("'%s' listens on %s", self.settings.name, ", ".join(map(str, self.ports)))

    async def stop(self) -> None:
        """Confirm what has come, say goodbye to everyone, and close the store. To stop twice is fine."""
        parts, self._parts = self._parts, None
        if parts is not None:
            try:
                await parts.drain(self.settings.drain_s)
            finally:
                await self._resources.aclose()
            _log.info("'%s' has stopped", self.settings.name)

    def drop_connections(self) -> None:
        """Cut every connection without a word, as a network that fails would."""
        for connection in [*self._running.services.connections]:
            connection.abort()

    # Putting it together.

    async def _assemble(self, stack: AsyncExitStack) -> _Parts:
        settings = self.settings
        ledger = self._ledger = self._open_ledger(stack)
        host = self._open_namespace()
        counters = Counters()
        meter = None if ledger is None else self._open_meter(stack, ledger, host, counters)
        stack.callback(host.close)
        if meter is not None:
            stack.push_async_callback(meter.hand_over, _HAND_OVER_S)
        await host.durable()
        self._open_side_buffer(stack, host)
        gatekeeper = Gatekeeper(host, await self._jwt(stack), settings.max_token_minutes * 60_000 or None)
        dispatcher = Dispatcher(host)
        services = AmqpServices(
            host,
            gatekeeper,
            dispatcher,
            counters,
            settings.idle_timeout_s * 1_000,
            meter,
            settings.max_connections_per_address,
        )
        routes = [route for annex in self._annexes for route in await stack.enter_async_context(annex(services))]
        http = self._http(services, gatekeeper, routes)
        state = ServerState()
        state.default_headers = http.encoded_headers

        def connection_count() -> int:
            return services.stream_count + len(state.connections) + listener.waiting_count

        refuse = partial(BusyProtocol, _too_many(settings.max_connections), host.now_ms)
        crowded = partial(BusyProtocol, _too_many_of_one(settings.max_connections_per_address), host.now_ms)
        listener = Listener(
            host.loop,
            lambda secure: Reception(services, lambda: HttpProtocol(http, state, {}, services), crowded, secure=secure),
            self._tls(),
            lambda: host.throttle.admit("connections", connection_count()),
            refuse,
            services.unproven.evict,
        )
        stack.callback(listener.close)
        self._watch_facets(stack, host, connection_count)
        self.ports = tuple(listener.listen(settings.host, port) for port in settings.port)
        return _Parts(services, listener, state)

    def _open_side_buffer(self, stack: AsyncExitStack, host: NamespaceHost) -> None:
        settings = self.settings
        if settings.side_buffer is not None:
            buffer = SideBuffer.open(settings.side_buffer, settings.name, host, settings.max_side_buffer_bytes)
            stack.push_async_callback(buffer.close)
            buffer.start()
            host.side_buffer = buffer
        else:
            miss(host)

    def _watch_facets(self, stack: AsyncExitStack, host: NamespaceHost, connection_count: Callable[[], int]) -> None:
        gauges = Gauges(
            data=self.settings.data, used_bytes=host.used_bytes, connection_count=connection_count, pulse=Pulse()
        )
        timer = ThrottleTimer(host.throttle, gauges, host.loop)
        stack.callback(timer.close)
        timer.start()

    def _open_ledger(self, stack: AsyncExitStack) -> Ledger | None:
        settings = self.settings
        if settings.ledger is None:
            return None
        ledger = Ledger.open(settings.ledger, settings.name)
        stack.callback(ledger.close)
        if settings.ledger_lives:
            self._lives = Lives(path_of_address, self._clock(), Spill(ledger))
        return ledger

    def _open_meter(self, stack: AsyncExitStack, ledger: Ledger, host: NamespaceHost, counters: Counters) -> Meter:
        outbox = None
        if self._lives is not None:
            self._lives.settle_in()
            self._lives.now_ms = host.seen_ms
            most_bytes = min(MOST_BYTES, self.settings.max_store_bytes // 16)
            outbox = Outbox(self._lives, host, ledger, most_bytes)
            outbox.replay(self._clock())
        meter = Meter(ledger, host, counters, outbox)
        stack.callback(meter.close)
        return meter

    def _open_namespace(self) -> NamespaceHost:
        settings = self.settings
        loop = asyncio.get_running_loop()
        keeper = Keeper.open(
            settings.data,
            self._make_namespace,
            self._clock(),
            wake=loop.call_soon_threadsafe,
            max_bytes=settings.max_store_bytes,
            recovering=self._begin_lives,
        )
        recovery = keeper.recovery
        _log.info(
            "namespace opened name=%s entities=%d messages=%d damaged=%d quarantined=%d",
            settings.name,
            recovery.entities,
            recovery.messages,
            len(recovery.damaged),
            recovery.quarantined,
        )
        wall_clock = self._clock.wall_ms if isinstance(self._clock, SystemClock) else None
        host = NamespaceHost(settings.name, settings.limits, keeper, self._clock, loop, wall_clock)
        host.throttle = Throttle(settings)
        try:
            self._furnish(host.namespace)
        except BaseException:
            keeper.abandon()  # of what was declared, all or nothing
            raise
        return host

    def _furnish(self, namespace: Namespace) -> None:
        settings, now_ms = self.settings, self._clock()
        apply_declaration(settings.entities, namespace, now_ms)
        self.key = ensure_root_key(namespace, settings.key_name, settings.key, now_ms)
        for name in other_root_keys(namespace, settings.key_name, settings.entities.keys, now_ms):
            _log.warning("'%s' is a key with all rights, too; delete it if it should not be", name)

    def _make_namespace(self, records: Records) -> Namespace:
        return Namespace(
            records,
            limits=self.settings.limits,
            view=MessageView,
            fresh_id=uuid4,
            fresh_token=partial(os.urandom, 16),
            stub_body=STUB_BODY,
            chronicle=self._lives,
        )

    def _begin_lives(self, last: int) -> None:
        if self._lives is not None:
            self._lives.begin(last)

    async def _jwt(self, stack: AsyncExitStack) -> VerifyJwt | None:
        settings = self.settings
        if settings.allow_any_jwt:
            _log.warning("ANY BEARER TOKEN IS ACCEPTED WITH ALL RIGHTS: allow_any_jwt is for development only")
            return allow_any
        if settings.jwt_keys is None or settings.jwt_issuer is None:
            if settings.jwt_keys or settings.jwt_issuer or settings.jwt_audience:
                raise SettingsError("tokens of an issuer need both jwt_issuer and jwt_keys")
            return None
        try:
            keys = await SigningKeys.load(settings.jwt_keys)
        except SigningKeysError as error:
            raise SettingsError(f"jwt_keys: {error}") from error
        stack.callback(keys.close)
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

    def _http(self, services: AmqpServices, gatekeeper: Gatekeeper, routes: Sequence[BaseRoute]) -> uvicorn.Config:
        metrics = Metrics(services.counters, services.host.commits, services.host.throttle)
        host = services.host
        metrics.registry.register(StorageMetrics(partial(_storage_reading, host)))
        metrics.registry.register(StrangerMetrics(services.unproven, services.addresses, services.guesses))
        buffer = host.side_buffer
        metrics.registry.register(SideBufferMetrics(Tally() if buffer is None else buffer.tally))
        ledger = self._ledger
        if ledger is not None:
            metrics.registry.register(LedgerMetrics(lambda: ledger.status))
        app = make_app(
            services.host,
            gatekeeper,
            metrics,
            [websocket_route(services), *routes],
            open_metrics=self.settings.open_metrics,
            is_draining=lambda: services.is_draining,
            created_ms=services.host.created_ms,
            meter=services.meter,
            guesses=services.guesses,
        )
        config = uvicorn.Config(
            RequestGuard(app),
            http="h11",
            ws=StreamingWebSocket,
            lifespan="off",
            log_config=None,
            access_log=False,
            # The SDK for Python reads only while it is asked to, so it answers no pings; AMQP has its own.
            ws_ping_interval=None,
            ws_ping_timeout=None,
            ws_per_message_deflate=False,
            server_header=False,
            # A client that takes a connection from its pool as we hang up on it sees its request fail; so it is told
            # how long it may keep one, and we keep it a little longer.
            headers=[("Keep-Alive", f"timeout={_KEEP_ALIVE_S}")],
            timeout_keep_alive=_KEEP_ALIVE_S + _KEEP_ALIVE_MARGIN_S,
        )
        config.load()
        return config


def _storage_reading(host: NamespaceHost) -> StorageReading:
    try:
        ids = host.namespace.duplicate_ids_in_memory
    except StoreError:
        ids = 0
    return StorageReading(host.quarantined_count, host.stalled_s is not None, ids)


def _too_many(connections: int) -> str:
    return f"the server has reached its limit of {connections} connections; try again in 10 seconds or later"


def _too_many_of_one(connections: int) -> str:
    return f"your address has reached its limit of {connections} connections; close some, or try again later"


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Take a certificate of the operator's; raises ``SettingsError`` that says which file is no good."""
    for name, file in (("tls_cert", cert), ("tls_key", key)):
        try:
            file.read_bytes()
        except OSError as error:
            raise SettingsError(f"{name}: {file} cannot be read: {error.strerror}") from error
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise SettingsError(
            f"tls_cert and tls_key: {cert} and {key} are no certificate and its key in PEM ({error.reason})"
        ) from error


class _Parts:
    """What runs, to be stopped in order."""

    def __init__(self, services: AmqpServices, listener: Listener, http: ServerState) -> None:
        self.services = services
        self._listener = listener
        self._http = http

    async def drain(self, within_s: float) -> None:
        """Take nothing new, confirm what has come, say goodbye, and then hang up on those who stay."""
        services = self.services
        deadline = time.monotonic() + within_s
        self._listener.close()
        for stream in [*services.receptions]:
            stream.abort()
        services.is_draining = True
        try:
            async with asyncio.timeout(within_s):
                await services.host.durable()
        except (StoreError, TimeoutError) as error:
            _log.error("what came last could not be written: %s", error)
        if services.host.side_buffer is not None:  # it may have been taken in there instead
            await _until(services.host.side_buffer.is_quiet, deadline)
        for connection in [*services.connections]:
            connection.shut_down()
        await _until(lambda: not services.connections, deadline)
        for connection in [*services.connections]:
            connection.abort()
        for protocol in [*self._http.connections]:
            protocol.shutdown()
        await _until(lambda: not self._http.connections, deadline)
        for task in [*self._http.tasks]:
            task.cancel()
        for protocol in [*self._http.connections]:
            protocol.transport.abort()
        await asyncio.sleep(0)  # the transports have their last word


async def _until(condition: Callable[[], bool], deadline: float) -> None:
    # What is waited for tells nobody when it is so: one is uvicorn's, which only polls it too.
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
