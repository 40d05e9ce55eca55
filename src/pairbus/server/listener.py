"""The listener: accepts connections with and without TLS, and detects their protocol by the first bytes."""

from __future__ import annotations

import asyncio
import errno
import logging
import selectors
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from functools import partial
from itertools import takewhile
from math import inf
from operator import itemgetter
from typing import Final, cast
from urllib.parse import unquote

from pairbus.server.amqp.connection import ServerConnection
from pairbus.server.amqp.services import AmqpServices, UnprovenConnections
from pairbus.server.connection_limits import ConnectionLimits
from pairbus.server.faults import FAULTS_PATH
from pairbus.server.log_context import Facts, peer_of
from pairbus.server.peer_limits import AddressLimit, peer_address
from pairbus.server.supervision.supervisor import Problem

LONGEST_PREFACE_BYTES: Final = 16
"""A connection that is not identified after so many bytes has an unknown protocol."""

_TLS_FIRST_BYTE: Final = 0x16
_AMQP: Final = b"AMQP"
_METHODS: Final = (b"GET ", b"PUT ", b"POST", b"HEAD", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ", b"CONNECT ")


class Preface(Enum):
    """The protocol that the first bytes of a connection show."""

    TLS = "tls"
    AMQP = "amqp"
    HTTP = "http"
    UNKNOWN = "unknown"
    TOO_SHORT = "too short"
    """More bytes are needed."""


def preface_of(data: bytes) -> Preface:
    if not data:
        return Preface.TOO_SHORT
    if data[0] == _TLS_FIRST_BYTE:
        return Preface.TLS
    if _begins(data, _AMQP):
        return Preface.AMQP if len(data) >= len(_AMQP) else Preface.TOO_SHORT
    known = [method for method in _METHODS if _begins(data, method)]
    if not known:
        return Preface.UNKNOWN
    return Preface.HTTP if any(len(data) >= len(method) for method in known) else Preface.TOO_SHORT


_LONGEST_LINE_BYTES: Final = 1_024


def names_faults(data: bytes) -> bool | None:
    """Return whether an HTTP request is about injected faults; ``None`` if more bytes are needed.

    Such a request is served even if no other connection can be opened: otherwise that fault could not be cleared.
    """
    line, is_complete, _ = data.partition(b"\r\n")
    if not is_complete and len(line) < _LONGEST_LINE_BYTES:
        return None
    words = line.decode("latin-1").split(" ")
    path = unquote(words[1].partition("?")[0]).lower() if len(words) > 1 else ""
    return path == FAULTS_PATH or path.startswith(f"{FAULTS_PATH}/")


def _begins(data: bytes, word: bytes) -> bool:
    return data[: len(word)] == word[: len(data)]


_log = logging.getLogger(__name__)

_HANDSHAKE_TIMEOUT: Final = "handshake_timeout_s"

REFUSE_WITHIN_S: Final = 5.0
"""Timeout of the response to a connection that is refused."""

MakeHttp = Callable[[], asyncio.Protocol]

MakeRefusal = Callable[[asyncio.Future[None]], asyncio.Protocol]
"""Creates the protocol that responds with *server busy*, and completes the future when it is closed."""


class ProtocolSniffer(asyncio.Protocol):
    """Reads the first bytes of a connection, and passes it to the protocol that they show."""

    def __init__(
        self, services: AmqpServices, make_http: MakeHttp, accepted: socket.socket | None = None, *, secure: bool
    ) -> None:
        """``accepted`` is the socket as which the connection was counted for its address."""
        self._services = services
        self._make_http = make_http
        self._accepted = accepted
        self._secure = secure
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        accepted, self._accepted = self._accepted, None
        self._services.addresses.move(accepted, stream)
        self._transport = stream
        self._services.receptions.add(stream)
        self._services.unproven.add(stream)
        within_s = self._services.limits.handshake_timeout_s
        self._timer = self._services.host.loop.call_later(within_s, self._time_out)

    def _time_out(self) -> None:
        self._services.counters.limits[_HANDSHAKE_TIMEOUT] += 1
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._data += data
        preface = preface_of(self._data)
        transport = self._transport
        if transport is None or (preface is Preface.TOO_SHORT and len(self._data) < LONGEST_PREFACE_BYTES):
            return
        faults = self._services.host.faults
        if faults and faults.refuses_connections(self._services.host.now_ms()):
            may_pass = names_faults(self._data) if preface is Preface.HTTP else False
            if may_pass is None:
                return
            if not may_pass:
                peer = peer_of(transport.get_extra_info("peername"))
                _log.info('connection reset peer=%s reason="injected fault"', peer)
                transport.abort()
                return
        if preface is Preface.AMQP:
            self._hand_over(transport, AmqpProtocol(self._services, secure=self._secure))
        elif preface is Preface.HTTP:
            self._hand_over(transport, self._make_http())
        else:
            peer = peer_of(transport.get_extra_info("peername"))
            _log.info("unknown protocol, connection closed peer=%s data=%r", peer, self._data[:8])
            transport.abort()

    def _hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self._unregister(transport)
        data, self._data, self._transport = self._data, b"", None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._transport is not None:
            self._unregister(self._transport)
            self._services.addresses.discard(self._transport)
            self._transport = None

    def _unregister(self, transport: asyncio.Transport) -> None:
        self._services.receptions.discard(transport)
        self._services.unproven.discard(transport)
        if self._timer is not None:
            self._timer.cancel()


class AmqpProtocol(asyncio.Protocol):
    """Connects a transport to an AMQP connection."""

    def __init__(self, services: AmqpServices, *, secure: bool) -> None:
        self._services = services
        self._name = "amqps" if secure else "amqp"
        self._transport: asyncio.Transport | None = None
        self._connection: ServerConnection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        self._transport = stream
        self._connection = self._connect(stream)

    def _connect(self, stream: asyncio.Transport) -> ServerConnection:
        return ServerConnection(
            self._services, stream, self._name, peer_address(stream), peer_of(stream.get_extra_info("peername"))
        )

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.data_received(data)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._connection is not None and self._transport is not None:
            self._services.addresses.discard(self._transport)
            self._connection.connection_lost()
            self._connection = self._transport = None


_BACKLOG: Final = 1_024
_ACCEPT_AT_ONCE: Final = 16
"""Maximum number of connections that are accepted before other work runs."""
_MAX_READY: Final = 64
"""Maximum number of accepted connections that wait for a handover; more stay in the backlog of the system."""
_PAUSE_S: Final = 1.0
_CLOSED_WITHIN_S: Final = 0.02
"""Time for evicted connections to be closed, which takes some passes of the loop."""
_TLS_HANDSHAKE: Final = b"\x16"
_LOOPBACK: Final = ("127.0.0.1", "localhost")
_OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_TLS_SHUTDOWN_S: Final = 1.0
_TLS_READ_BYTES: Final = 32 * 1024
"""Encrypted bytes that are buffered while a connection waits for its turn; the default is 256 KB."""

_MOST_REFUSALS: Final = 64
"""Maximum number of refused connections that get a response at a time."""

MakeProtocol = Callable[[socket.socket, bool], asyncio.Protocol]
"""Creates the protocol of a connection; the second argument is true with TLS."""


_Selector: Final[Callable[[], selectors.BaseSelector]] = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""A selector without a file descriptor of its own: there may be none left."""

_HINT: Final = "the client may not trust the certificate, see pairbus trust"


class ListenError(OSError):
    """The port cannot be bound: it is in use, or the process lacks the right."""


class _Refusals:
    """The refusals of connections for one reason.

    Each reason has its own: connections beyond the limit of their address do not leave those of others unanswered.
    """

    def __init__(self, make: MakeRefusal | None, reason: str) -> None:
        self.make = make
        self.reason = reason
        self.tasks: dict[asyncio.Task[None], float] = {}
        """The responses that are under way, and their starts."""


class Listener:
    """Accepts connections, and peeks at the first byte of each: TLS has to be detected before anything is read."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make_protocol: MakeProtocol,
        context: ssl.SSLContext,
        has_room: Callable[[], bool],
        make_refusal: MakeRefusal | None = None,
        unproven: UnprovenConnections | None = None,
        handshake_timeout_s: float = ConnectionLimits().handshake_timeout_s,
        count: Callable[[str], object] = lambda _limit: None,
        addresses: AddressLimit | None = None,
        make_crowded: MakeRefusal | None = None,
    ) -> None:
        """``count`` is called for each connection that reaches a limit, with the name of that.

        ``make_crowded`` is like ``make_refusal``, for the connections that ``addresses`` refuses.
        """
        self._loop = loop
        self._make_protocol = make_protocol
        self._context = context
        self._has_room = has_room
        self._refusals = _Refusals(make_refusal, "too many connections")
        self._addresses = AddressLimit() if addresses is None else addresses
        self._crowded = _Refusals(make_crowded, "too many connections of one address")
        self._unproven = UnprovenConnections(now_s=loop.time) if unproven is None else unproven
        self._handshake_timeout_s = handshake_timeout_s
        self._count = count
        self._starting_sockets: dict[asyncio.Task[None], socket.socket] = {}
        """The connections whose handshake is in progress."""

        self._sockets: list[socket.socket] = []
        self._bound: list[tuple[str, int]] = []
        """Addresses and ports to listen on."""
        self._paused: set[socket.socket] = set()
        """Listening sockets that accept nothing for a while, after an error for lack of resources."""
        self._neglected: set[socket.socket] = set()
        """Listening sockets with connections at the last check, for which the loop has not called since."""
        self._failure: Exception | None = None
        self.crash_point: Callable[[], object] = lambda: None
        """Called with each connection; an injected fault raises an error here."""
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        """Connections that have not sent anything, with their timeouts."""
        self._ready: dict[socket.socket, bool] = {}
        """Connections that have sent a byte, and whether it was TLS; the oldest first."""
        self._starting: dict[asyncio.Task[None], float] = {}
        """Handovers that are under way, which take a while with TLS, and their starts; the oldest first."""

    @property
    def waiting_count(self) -> int:
        """Number of accepted connections that have no protocol yet."""
        return len(self._silent) + len(self._ready) + len(self._starting)

    def listen(self, host: str, port: int) -> int:
        """Listen on a port, or on a free one if it is 0; return the port. Raise ``ListenError``."""
        first, *others = _addresses(host)
        bound = self._bind(first, port)
        for address in others:
            # "localhost" has two addresses, and a client may try either one first. Without IPv6, or if the port is in
            # use there, the first address has to suffice.
            with suppress(OSError):
                self._bind(address, bound)
        return bound

    def _bind(self, address: str, port: int) -> int:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.setblocking(False)
            listening.bind((address, port))
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise ListenError(error.errno, f"cannot listen on {address}, port {port}: {error.strerror}") from error
        self._sockets.append(listening)
        self._loop.add_reader(listening, self._accept, listening)
        bound = int(listening.getsockname()[1])
        if (address, bound) not in self._bound:
            self._bound.append((address, bound))
        return bound

    def problem(self) -> Problem | None:
        """Return a defect, or that a listening socket is closed, or that the event loop has lost it.

        Called twice a second: the loop calls for a socket that had connections then before the next call.
        """
        if self._failure is not None:
            return Problem(reason=f"accepting failed with {type(self._failure).__name__}", error=self._failure)
        count = sum(listening.fileno() >= 0 for listening in self._sockets)
        if count != len(self._bound):
            return Problem(reason=f"{len(self._bound)} sockets should listen, but {count} are open")
        before, self._neglected = self._neglected, self._readable()
        return Problem(reason="the event loop does not watch a socket") if before & self._neglected else None

    def _readable(self) -> set[socket.socket]:
        """Return the sockets with connections to accept."""
        with _Selector() as selector:
            for listening in self._sockets:
                if listening not in self._paused:
                    selector.register(listening, selectors.EVENT_READ)
            return {key.fileobj for key, _ in selector.select(0) if isinstance(key.fileobj, socket.socket)}

    def restart(self) -> None:
        """Listen again on the same addresses and ports; existing connections are not affected. Raise ``ListenError``.

        Clients that were about to be accepted connect again.
        """
        self._failure = None
        self._close_sockets()
        for address, port in self._bound:
            self._bind(address, port)

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening)
                listening.close()
        self._sockets.clear()
        self._paused.clear()
        self._neglected.clear()

    def close(self) -> None:
        """Stop to accept connections, and close those that have no protocol yet."""
        self._close_sockets()
        for silent in [*self._silent]:
            self._drop(silent)
        for accepted in self._ready:
            self._discard(accepted)
        self._ready.clear()
        for task in (*self._starting, *self._refusals.tasks, *self._crowded.tasks):
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        self._neglected.discard(listening)
        try:
            self._accept_some(listening)
        except Exception as error:  # noqa: BLE001 (the supervisor restarts the listener)
            self._loop.remove_reader(listening)
            self._failure = error

    def _accept_some(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPT_AT_ONCE if len(self._ready) < _MAX_READY else 0):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                self._make_room(listening, error)
                return
            try:
                self._receive(accepted, str(peer[0]))
            except BaseException:
                self._discard(accepted)
                raise

    def _make_room(self, listening: socket.socket, error: OSError) -> None:
        """Evict unproven connections after an error for lack of resources, and pause until they are closed.

        New connections wait in the backlog of the system meanwhile.
        """
        evicted = sum(takewhile(bool, (self._evict() for _ in range(_ACCEPT_AT_ONCE))))
        pause_s = _CLOSED_WITHIN_S if evicted else _PAUSE_S
        _log.error('accept failed, pausing seconds=%g evicted=%d error="%s"', pause_s, evicted, error)
        self._loop.remove_reader(listening)
        self._paused.add(listening)
        self._loop.call_later(pause_s, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        self._paused.discard(listening)
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _receive(self, accepted: socket.socket, address: str) -> None:
        self.crash_point()
        if not self._addresses.add(accepted, address):
            self._refuse(accepted, self._crowded)
            return
        if not self._has_room() and not self._evict():
            self._addresses.discard(accepted)
            self._refuse(accepted, self._refusals)
            return
        accepted.setblocking(False)
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._silent[accepted] = self._loop.call_later(self._handshake_timeout_s, self._time_out, accepted)
        self._loop.add_reader(accepted, self._peek_first_byte, accepted)

    def _evict(self) -> bool:
        """Close the oldest unproven connection to make room; return whether there was one.

        The oldest of all, in whatever phase it is: otherwise a flood of silent connections would keep new clients out.
        """
        silent_s = next((timer.when() - self._handshake_timeout_s for timer in self._silent.values()), inf)
        oldest = (
            (silent_s, self._evict_silent),
            (next(iter(self._starting.values()), inf), self._evict_starting),
            (self._unproven.oldest_s, self._unproven.evict),
        )
        return any(evict() for _, evict in sorted(oldest, key=itemgetter(0))) or self._evict_ready()

    def _evict_silent(self) -> bool:
        for silent in self._silent:
            self._unproven.evicted_count += 1
            self._drop(silent)
            return True
        return False

    def _evict_starting(self) -> bool:
        for task in self._starting:
            if task.done():  # it is among the unproven ones by now
                continue
            self._unproven.evicted_count += 1
            del self._starting[task]
            with suppress(OSError):  # it is closed already
                # Not cancelled: a loop may have made its transport by now, and would neither use nor close it.
                self._starting_sockets[task].shutdown(socket.SHUT_RDWR)
            return True
        return False

    def _evict_ready(self) -> bool:
        for accepted in self._ready:
            self._unproven.evicted_count += 1
            del self._ready[accepted]
            self._discard(accepted)
            return True
        return False

    def _peek_first_byte(self, accepted: socket.socket) -> None:
        """Queue a connection for its handover. The first byte is not consumed: the protocol reads it."""
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._drop(accepted)
            return
        self._release(accepted)
        self._ready[accepted] = first == _TLS_HANDSHAKE
        if len(self._ready) == 1:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Hand over one connection: each pass of the loop starts one, and serves all existing connections."""
        for accepted, secure in self._ready.items():
            del self._ready[accepted]
            starting = self._run(self._start(accepted, secure=secure), self._starting, accepted)
            self._starting_sockets[starting] = accepted
            break
        if self._ready:
            self._loop.call_soon(self._hand_over)

    def _run(
        self, work: Coroutine[None, None, None], tasks: dict[asyncio.Task[None], float], accepted: socket.socket
    ) -> asyncio.Task[None]:
        def done(task: asyncio.Task[None]) -> None:
            tasks.pop(task, None)
            self._starting_sockets.pop(task, None)
            if task.cancelled():  # before it started: otherwise it closes the socket itself
                self._discard(accepted)
            elif (error := task.exception()) is not None:
                _log.error("handshake failed%s", Facts(peer=_peer_of(accepted), error=repr(error)), exc_info=error)
                self._discard(accepted)

        task = self._loop.create_task(work)
        tasks[task] = self._loop.time()
        task.add_done_callback(done)
        return task

    async def _start(self, accepted: socket.socket, *, secure: bool) -> None:
        peer = _peer_of(accepted)
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                await self._connect(partial(self._make_protocol, accepted, secure), accepted, secure=secure)
        except TimeoutError:
            self._count(_HANDSHAKE_TIMEOUT)
            _log.info('handshake failed peer=%s error="timed out"', peer)
            self._discard(accepted)
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            reason = str(error) or ("evicted" if isinstance(error, asyncio.CancelledError) else "closed by the peer")
            _log.info("handshake failed%s", Facts(peer=peer, error=reason, hint=_HINT if secure else None))
            self._discard(accepted)

    async def _connect(
        self, make: Callable[[], asyncio.Protocol], accepted: socket.socket, *, secure: bool
    ) -> asyncio.Transport:
        transport, _ = await self._loop.connect_accepted_socket(
            make,
            accepted,
            ssl=self._context if secure else None,
            ssl_handshake_timeout=2 * self._handshake_timeout_s if secure else None,  # the caller times out first
            ssl_shutdown_timeout=_TLS_SHUTDOWN_S if secure else None,
        )
        if secure:
            transport.set_read_buffer_limits(high=_TLS_READ_BYTES)  # type: ignore[attr-defined] # of TLS transports only
        return transport

    # Connections beyond the limit. They do not count towards it, or they would keep others out.

    def _refuse(self, accepted: socket.socket, refusals: _Refusals) -> None:
        """Respond *server busy*; just close the connection while too many responses are under way."""
        make = refusals.make if len(refusals.tasks) < _MOST_REFUSALS else None
        _log.warning(
            'connection refused peer=%s reason="%s" answered=%s',
            _peer_of(accepted),
            refusals.reason,
            make is not None,
        )
        if make is None:
            self._count("busy_responses")
            accepted.close()
        else:
            accepted.setblocking(False)
            self._run(self._answer(accepted, make), refusals.tasks, accepted)

    async def _answer(self, accepted: socket.socket, make: MakeRefusal) -> None:
        finished = self._loop.create_future()
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(REFUSE_WITHIN_S):
                secure = await self._first_byte(accepted) == _TLS_HANDSHAKE
                transport = await self._connect(partial(make, finished), accepted, secure=secure)
                await finished
        except (OSError, asyncio.CancelledError):  # an SSLError and a TimeoutError are OSErrors
            if transport is None:
                accepted.close()
            else:
                transport.abort()

    async def _first_byte(self, accepted: socket.socket) -> bytes:
        """Wait for the first byte and return it, without consuming it."""
        readable = asyncio.Event()
        self._loop.add_reader(accepted, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK)

    def _time_out(self, accepted: socket.socket) -> None:
        self._count(_HANDSHAKE_TIMEOUT)
        self._drop(accepted)

    def _drop(self, accepted: socket.socket) -> None:
        self._release(accepted)
        self._discard(accepted)

    def _discard(self, accepted: socket.socket) -> None:
        """Close a connection that has no protocol, and stop counting it."""
        self._addresses.discard(accepted)
        accepted.close()

    def _release(self, accepted: socket.socket) -> None:
        self._loop.remove_reader(accepted)
        self._silent.pop(accepted).cancel()


def _peer_of(accepted: socket.socket) -> str:
    try:
        return peer_of(accepted.getpeername())
    except OSError:  # it is disconnected already
        return "unknown"


def _addresses(host: str) -> list[str]:
    if host in _LOOPBACK:
        return ["127.0.0.1", "::1"]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(error.errno, f"cannot listen on host '{host}': {error.strerror}") from error
    return list(dict.fromkeys(str(address[4][0]) for address in found))
