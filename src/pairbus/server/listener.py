"""The port: everything that connects, in the clear or not."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Final

from pairbus.server.reception import REFUSE_WITHIN_S, SPEAK_WITHIN_S, MakeRefusal

_log = logging.getLogger(__name__)

_BACKLOG: Final = 1_024
_ACCEPT_AT_ONCE: Final = 100
_PAUSE_S: Final = 1.0
_TLS_HANDSHAKE: Final = b"\x16"
_LOOPBACK: Final = ("127.0.0.1", "localhost")
_OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_SAY_GOODBYE_WITHIN_S: Final = 1.0

_MOST_REFUSALS: Final = 64
"""How many connections beyond the limit are answered at a time."""

MakeProtocol = Callable[[bool], asyncio.Protocol]
"""Makes the protocol of a connection, told whether it is secure."""


_HINT: Final = " (does it trust our certificate? 'pairbus trust' says how)"


class ListenError(OSError):
    """The port cannot be had: somebody has it, or it takes more rights."""


class Listener:
    """Accepts connections, and looks at the first byte of each: only TLS has to be told before anything is read."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make_protocol: MakeProtocol,
        context: ssl.SSLContext,
        has_room: Callable[[], bool],
        make_refusal: MakeRefusal | None = None,
        evict_unproven: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._make_protocol = make_protocol
        self._context = context
        self._has_room = has_room
        self._make_refusal = make_refusal
        self._evict_unproven = evict_unproven
        self._sockets: list[socket.socket] = []
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        """Connections that have not said anything."""
        self._starting: dict[asyncio.Task[None], None] = {}
        """Those that are being handed over, which takes a while with TLS; the oldest first."""
        self._refusing: dict[asyncio.Task[None], None] = {}

    @property
    def waiting_count(self) -> int:
        """How many connections have come that are nobody's yet."""
        return len(self._silent) + len(self._starting)

    def listen(self, host: str, port: int) -> int:
        """Listen on a port, or on a free one (0); which. Raises ``OSError``."""
        first, *others = _addresses(host)
        bound = self._bind(first, port)
        for address in others:
            # "localhost" is two addresses, and which one a client tries first is anybody's guess. Where the machine
            # has no IPv6, or somebody has the port there, the first one has to do.
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
        return int(listening.getsockname()[1])

    def close(self) -> None:
        """Accept nothing more, and drop what has said nothing yet."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for silent in [*self._silent]:
            self._drop(silent)
        for task in (*self._starting, *self._refusing):
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                self._pause(listening, error)
                return
            self._receive(accepted)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """There is no room for another connection: leave it in the backlog for a moment."""
        _log.error("a connection cannot be accepted: %s", error)
        self._loop.remove_reader(listening)
        self._loop.call_later(_PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _receive(self, accepted: socket.socket) -> None:
        if not self._has_room() and not self._evict():
            self._refuse(accepted)
            return
        accepted.setblocking(False)
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._silent[accepted] = self._loop.call_later(SPEAK_WITHIN_S, self._drop, accepted)
        self._loop.add_reader(accepted, self._look, accepted)

    def _evict(self) -> bool:
        """Close the oldest connection that has not proved who it is, to make room; return whether there was one."""
        for silent in self._silent:
            self._drop(silent)
            return True
        for task in self._starting:
            del self._starting[task]
            task.cancel()
            return True
        return self._evict_unproven()

    def _look(self, accepted: socket.socket) -> None:
        """The first byte is there; it stays there for whoever reads it."""
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
        self._run(self._start(accepted, secure=first == _TLS_HANDSHAKE), self._starting, accepted)

    def _run(
        self, work: Coroutine[None, None, None], tasks: dict[asyncio.Task[None], None], accepted: socket.socket
    ) -> None:
        def done(task: asyncio.Task[None]) -> None:
            tasks.pop(task, None)
            if task.cancelled():  # before it began: otherwise it closes the socket itself
                accepted.close()

        task = self._loop.create_task(work)
        tasks[task] = None
        task.add_done_callback(done)

    async def _start(self, accepted: socket.socket, *, secure: bool) -> None:
        peer = _peer_of(accepted)
        try:
            await self._connect(partial(self._make_protocol, secure), accepted, secure=secure)
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            reason = str(error) or ("evicted" if isinstance(error, asyncio.CancelledError) else "closed by the peer")
            _log.info("handshake failed peer=%s error=%s%s", peer, reason, _HINT if secure else "")
            accepted.close()

    async def _connect(
        self, make: Callable[[], asyncio.Protocol], accepted: socket.socket, *, secure: bool
    ) -> asyncio.Transport:
        transport, _ = await self._loop.connect_accepted_socket(
            make,
            accepted,
            ssl=self._context if secure else None,
            ssl_handshake_timeout=SPEAK_WITHIN_S if secure else None,
            ssl_shutdown_timeout=_SAY_GOODBYE_WITHIN_S if secure else None,
        )
        return transport

    # Connections beyond the limit. They are not counted: they would keep others out.

    def _refuse(self, accepted: socket.socket) -> None:
        """Answer that the server is busy; just close while too many are being answered."""
        make = self._make_refusal if len(self._refusing) < _MOST_REFUSALS else None
        _log.warning(
            'connection refused peer=%s reason="too many connections" answered=%s', _peer_of(accepted), make is not None
        )
        if make is None:
            accepted.close()
        else:
            accepted.setblocking(False)
            self._run(self._answer(accepted, make), self._refusing, accepted)

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
        """Wait for the first byte, which stays there for whoever reads it."""
        readable = asyncio.Event()
        self._loop.add_reader(accepted, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK)

    def _drop(self, accepted: socket.socket) -> None:
        self._release(accepted)
        accepted.close()

    def _release(self, accepted: socket.socket) -> None:
        self._loop.remove_reader(accepted)
        self._silent.pop(accepted).cancel()


def _peer_of(accepted: socket.socket) -> str:
    try:
        host, port, *_ = accepted.getpeername()
    except OSError:  # it is gone already
        return "unknown"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _addresses(host: str) -> list[str]:
    if host in _LOOPBACK:
        return ["127.0.0.1", "::1"]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(error.errno, f"cannot listen on host '{host}': {error.strerror}") from error
    return list(dict.fromkeys(str(address[4][0]) for address in found))
