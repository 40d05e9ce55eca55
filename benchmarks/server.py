"""The server as a process of its own, and a client process that does nothing but load it.

The client is our own wire engine on a blocking socket. Every figure is of messages that were confirmed, which is to
say that they are on disk. Beside it, in the same run: the broker on its store without any network, and LMDB alone.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TextIO

import lmdb

from benchmarks.broker import NOW, QUEUE, make_namespace
from benchmarks.processors import cpu_s
from benchmarks.transfer import COMPILED, HERE
from pairbus.broker import NewMessage as BrokerMessage
from pairbus.broker import QueueDescription
from pairbus.build import COMPILED as COMPILED_BUILD
from pairbus.build import PLAIN as PLAIN_BUILD
from pairbus.build import build
from pairbus.dialect.connection_string import ConnectionString, parse_connection_string
from pairbus.dialect.sas import make_sas_token
from pairbus.dialect.sent import BATCH_FORMAT, join_batch
from pairbus.store import GroupCommitter
from pairbus.wire import (
    ACCEPTED,
    AMQP_VALUE,
    RECEIVER,
    SENDER,
    Configuration,
    Connection,
    Delivery,
    DispositionReceived,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    Message,
    Properties,
    Source,
    Target,
    anonymous,
    encode_message,
)

WINDOW: Final = 500
BATCH: Final = 100
GROUP: Final = 100
ROUNDS: Final = 5
MESSAGES_A_ROUND: Final = 10_000
SAMPLES: Final = 1_000
PAUSE_S: Final = 0.005
BODY: Final = os.urandom(1024)
TIMEOUT_S: Final = 20.0
BUDGET: Final = 36_000
"""The cost of the prototype in plain Python, with only the wire and the store."""

_QUEUE_ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)
_READ_BYTES: Final = 256 * 1024

_OPTIONS: Final = ("--port", "0", "--tier", "relaxed", "--log-level", "warning")
_RUN: Final = (
    "import sys; from pairbus.build import build; from pairbus.cli.main import app; chosen = sys.argv.pop(1);"
    " app() if build() == chosen else sys.exit(f'{build()} runs instead of {chosen}')"
)
"""Runs the command if the build is the one that is to be measured."""


def payload_of(number: int) -> bytes:
    """Return a typical message of an application: a body of 1 KB, a message id and two properties of its own."""
    return encode_message(
        Message(
            properties=Properties(message_id=f"message-{number:08}"),
            application_properties={"kind": "order", "number": number},
            body=(BODY,),
        )
    )


# The server


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves a namespace."""

    process: subprocess.Popen[str]
    address: ConnectionString

    @property
    def cpu_s(self) -> float:
        """Return its processor time so far, in seconds."""
        return cpu_s(self.process.pid)

    @property
    def private_bytes(self) -> int:
        """The memory that it has for itself; pages of the data file are the system's."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


@contextmanager
def serving(data: Path, *options: str, compiled: bool | None = None, log: TextIO | None = None) -> Iterator[Server]:
    """``pairbus serve`` on a free port of this machine, stopped with SIGTERM; it logs to ``log``, or to our stderr.

    Unless a build is chosen, it is the one that this process runs.
    """
    if compiled is None:
        compiled = build() == COMPILED_BUILD
    chosen = COMPILED_BUILD if compiled else PLAIN_BUILD
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, chosen, "serve", "--data", str(data), "--name", "bench", *_OPTIONS, *options],
        env={**os.environ, "PYTHONPATH": str(COMPILED if compiled else HERE / "src")},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        yield Server(process, _announced(process))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)


def _announced(process: subprocess.Popen[str]) -> ConnectionString:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Endpoint="):
            return parse_connection_string(line.strip())
    raise RuntimeError("the server has not come up")


# The client


class Client:
    """One connection, driven by whoever calls: nothing happens in between."""

    def __init__(self, address: ConnectionString) -> None:
        self.address = address
        self.engine = Connection(Configuration(container_id="load", idle_time_out_ms=240_000), anonymous())
        self.socket = socket.create_connection(("127.0.0.1", address.port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.engine.open()
        self.session = self.engine.begin()
        self._tag = 0

    def close(self) -> None:
        self.engine.close()
        self.flush()
        self.socket.close()

    def flush(self) -> None:
        data = self.engine.data_to_send()
        if data:
            self.socket.sendall(data)

    def read(self) -> list[Event]:
        """Send what there is, wait for something, and say what it means."""
        self.flush()
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        return self.engine.receive_data(data)

    def read_until(self, is_done: Callable[[], object]) -> None:
        """Read on; what arrives is of no interest but for what it changes."""
        while not is_done():
            for event in self.read():
                if isinstance(event, LinkDetached):
                    raise ConnectionError(f"the server has detached a link: {event.error}")

    def tag(self) -> bytes:
        self._tag += 1
        return self._tag.to_bytes(4, "big")

    def put_token(self, path: str = "") -> None:
        """Show a token for an entity, or for the whole namespace, and wait until it is accepted."""
        requests = self.session.attach("cbs-requests", SENDER, source=Source(), target=Target(address="$cbs"))
        answers = self.session.attach("cbs-answers", RECEIVER, source=Source(address="$cbs"), target=Target())
        answers.flow(1)
        self.read_until(lambda: requests.can_send and answers.is_attached)
        words: dict[str, Any] = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": path}
        properties = Properties(message_id="token", reply_to="cbs-answers")
        request = Message(
            properties=properties,
            application_properties=words,
            body=(token_for(self.address, path),),
            body_kind=AMQP_VALUE,
        )
        requests.send(encode_message(request), tag=self.tag(), settled=True)
        while not any(isinstance(event, Delivery) for event in self.read()):
            continue

    def sender(self, path: str) -> Link:
        link = self.session.attach(f"to {path}", SENDER, source=Source(), target=Target(address=path))
        self.read_until(lambda: link.can_send)
        return link

    def receiver(self, path: str, credit: int = 0) -> Link:
        link = self.session.attach(f"from {path}", RECEIVER, source=Source(address=path), target=Target())
        if credit:
            link.flow(credit)
        while not any(isinstance(event, LinkAttached) and event.link is link for event in self.read()):
            continue
        return link

    # Loads. Each returns when everything is confirmed.

    def send_all(self, link: Link, payloads: Sequence[bytes], message_format: int = 0, window: int = WINDOW) -> None:
        waiting = iter(payloads)
        confirmed = unconfirmed = 0
        while confirmed < len(payloads):
            for payload in waiting:
                link.send(payload, tag=self.tag(), message_format=message_format)
                unconfirmed += 1
                if unconfirmed >= window or not link.can_send:
                    break
            for event in self.read():
                if isinstance(event, DispositionReceived) and event.settled:
                    assert event.state == ACCEPTED, event.state
                    confirmed += len(event.deliveries)
                    unconfirmed -= len(event.deliveries)

    def complete_all(self, link: Link, count: int, prefetch: int = WINDOW) -> None:
        """Receive and complete so many messages; each counts when the server says that it is completed."""
        received = completed = 0
        while completed < count:
            if link.credit < min(prefetch // 2, count - received):
                link.flow(min(prefetch, count - received))
            for event in self.read():
                if isinstance(event, Delivery):
                    link.update(event, ACCEPTED)
                    received += 1
                elif isinstance(event, DispositionReceived) and event.settled:
                    completed += len(event.deliveries)

    def end_to_end_s(self, sender: Link, receiver: Link, payload: bytes) -> tuple[float, float]:
        """Seconds until a message is confirmed, and until it has come back out of the queue."""
        receiver.flow(1)
        self.flush()
        start = time.perf_counter()
        sender.send(payload, tag=self.tag())
        confirmed_s = received_s = 0.0
        while not (confirmed_s and received_s):
            events = self.read()
            elapsed_s = time.perf_counter() - start
            for event in events:
                if isinstance(event, Delivery):
                    received_s = elapsed_s
                    receiver.settle(event, ACCEPTED)
                elif isinstance(event, DispositionReceived) and event.settled:
                    confirmed_s = elapsed_s
        self.flush()
        return confirmed_s, received_s


@contextmanager
def connected(address: ConnectionString) -> Iterator[Client]:
    client = Client(address)
    try:
        client.put_token()
        yield client
    finally:
        client.close()


# The administrator


class Administrator:
    """One HTTP connection to the management API."""

    def __init__(self, address: ConnectionString) -> None:
        self._http = HTTPConnection("127.0.0.1", address.port, timeout=TIMEOUT_S)
        self._headers = {"Authorization": token_for(address), "Content-Type": "application/atom+xml;type=entry"}

    def create(self, path: str) -> None:
        """Make a queue."""
        status, answer = self.ask("PUT", f"/{path}?api-version=2021-05", _QUEUE_ENTRY)
        assert status == 201, answer

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        self._http.request(method, path, body, self._headers)
        answer = self._http.getresponse()
        return answer.status, answer.read()


def token_for(address: ConnectionString, path: str = "") -> str:
    """Return a token for an entity, or the whole namespace, that is valid for an hour."""
    assert address.key_name is not None
    assert address.key is not None
    return make_sas_token(f"sb://localhost/{path}", address.key_name, address.key, int(time.time()) + 3_600)


# What is measured


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages a second, and what each takes of the server's processor."""

    per_s: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Figures:
    sent: Rate
    batched: Rate
    completed: Rate
    confirmed_ms: tuple[float, float]
    received_ms: tuple[float, float]


def measure(data: Path, *, compiled: bool) -> Figures:
    with serving(data, compiled=compiled) as server, connected(server.address) as client:
        Administrator(server.address).create("orders")
        payloads = [payload_of(number) for number in range(MESSAGES_A_ROUND)]
        batches = [join_batch(payloads[first : first + BATCH]) for first in range(0, len(payloads), BATCH)]
        sender, receiver = client.sender("orders"), client.receiver("orders")
        rounds: list[tuple[Rate, Rate, Rate]] = []
        for _ in range(ROUNDS):
            sent = rate_of(server, len(payloads), lambda: client.send_all(sender, payloads))
            completed = rate_of(server, len(payloads), lambda: client.complete_all(receiver, len(payloads)))
            batched = rate_of(server, len(payloads), lambda: client.send_all(sender, batches, BATCH_FORMAT, 5))
            client.complete_all(receiver, len(payloads))
            rounds.append((sent, batched, completed))
        sent, batched, completed = (_median(rates) for rates in zip(*rounds, strict=True))
        samples = [_at_leisure(client, sender, receiver, payloads[0]) for _ in range(SAMPLES)]
        confirmed_ms, received_ms = (_percentiles_ms(times) for times in zip(*samples, strict=True))
    return Figures(sent, batched, completed, confirmed_ms, received_ms)


def rate_of(server: Server, count: int, work: Callable[[], None]) -> Rate:
    before_s, start = server.cpu_s, time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return Rate(count / seconds, (server.cpu_s - before_s) / count * 1e6)


def _median(rates: Sequence[Rate]) -> Rate:
    return Rate(statistics.median(r.per_s for r in rates), statistics.median(r.cpu_us for r in rates))


def _at_leisure(client: Client, sender: Link, receiver: Link, payload: bytes) -> tuple[float, float]:
    select.select([client.socket], [], [], PAUSE_S)
    return client.end_to_end_s(sender, receiver, payload)


def _percentiles_ms(seconds: Sequence[float]) -> tuple[float, float]:
    hundredths = statistics.quantiles(seconds, n=100)
    return hundredths[49] * 1e3, hundredths[98] * 1e3


# What it is compared with


@dataclass(frozen=True, slots=True)
class Alone:
    """Messages a second, put in and taken out again, with an fsync for every hundred."""

    sent: float
    completed: float


def broker_alone(path: Path) -> Alone:
    """The same messages through the broker and its store, called in this process."""
    payloads = [payload_of(number) for number in range(MESSAGES_A_ROUND)]
    with GroupCommitter.open(path, make_namespace, NOW) as committer:
        committer.namespace.create_queue("orders", QueueDescription(max_size_megabytes=1_000_000), NOW)
        rounds = [(_send_round(committer, payloads), _complete_round(committer, len(payloads))) for _ in range(ROUNDS)]
    sent, completed = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    return Alone(sent, completed)


def _send_round(committer: GroupCommitter, payloads: Sequence[bytes]) -> float:
    start = time.perf_counter()
    for first in range(0, len(payloads), GROUP):
        for number in range(first, first + GROUP):
            committer.namespace.send(QUEUE, (BrokerMessage(payloads[number], f"message-{number:08}"),), NOW)
        committer.commit(NOW)
    return len(payloads) / (time.perf_counter() - start)


def _complete_round(committer: GroupCommitter, count: int) -> float:
    start = time.perf_counter()
    for _ in range(0, count, GROUP):
        for delivery in committer.namespace.receive(QUEUE, GROUP, NOW):
            committer.namespace.settle(QUEUE, delivery.lock_token or b"", NOW)
        committer.commit(NOW)
    return count / (time.perf_counter() - start)


def lmdb_alone(path: Path) -> Alone:
    """The same bytes put and deleted, and nothing else."""
    record, body, key = os.urandom(110), payload_of(0), struct.Struct(">cQ").pack
    environment = lmdb.open(str(path), subdir=False, map_size=1 << 32, lock=False, readahead=False, meminit=False)

    def put(transaction: lmdb.Transaction, number: int) -> None:
        transaction.put(key(b"R", number), record)
        transaction.put(key(b"B", number), body)

    def delete(transaction: lmdb.Transaction, number: int) -> None:
        transaction.delete(key(b"R", number))
        transaction.delete(key(b"B", number))

    rounds = [(_lmdb_round(environment, put), _lmdb_round(environment, delete)) for _ in range(ROUNDS)]
    environment.close()
    sent, completed = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    return Alone(sent, completed)


def _lmdb_round(environment: lmdb.Environment, work: Callable[[lmdb.Transaction, int], None]) -> float:
    start = time.perf_counter()
    for first in range(0, MESSAGES_A_ROUND, GROUP):
        with environment.begin(write=True) as transaction:
            for number in range(first, first + GROUP):
                work(transaction, number)
    return MESSAGES_A_ROUND / (time.perf_counter() - start)


# What is printed


def report() -> None:
    """Print the rates and the latency, and how they compare."""
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        where = Path(directory)
        store, broker = lmdb_alone(where / "bare.mdb"), broker_alone(where / "alone")
        builds = {"plain": measure(where / "plain", compiled=False)}
        if (COMPILED / ".ready").exists():
            builds["compiled"] = measure(where / "compiled", compiled=True)
    print(f"One server process, one client process, 1 KB messages, all confirmed; window and prefetch {WINDOW}")
    print(f"median of {ROUNDS} rounds of {MESSAGES_A_ROUND:,}; {os.cpu_count()} cores, {_load()}")
    print(f"{'LMDB alone, put; delete':52}{store.sent:10,.0f};{store.completed:8,.0f} a second")
    print(f"{'broker and store alone, send; complete':52}{broker.sent:10,.0f};{broker.completed:8,.0f} a second")
    for name, figures in builds.items():
        _print_rate(f"send one by one, {name}", figures.sent, broker.sent, store.sent)
        _print_rate(f"send in batches of {BATCH}, {name}", figures.batched, broker.sent, store.sent)
        _print_rate(f"receive and complete, {name}", figures.completed, broker.completed, store.completed)
        for what, (half, most) in (("confirmed", figures.confirmed_ms), ("received", figures.received_ms)):
            print(f"{f'sent until {what}, one at a time, {name}':52}{half:10.2f} ms; 99 of 100 within {most:.2f} ms")
    if "compiled" not in builds:
        print("pairbus is not compiled (make compiled): no figures with it.")
    print(f"to reach: {BUDGET:,} a second, the bare prototype's, for a message sent one by one with the plain build")


def _print_rate(name: str, rate: Rate, broker: float, store: float) -> None:
    ratios = f"{rate.per_s / broker:.2f} of the broker alone, {rate.per_s / store:.2f} of LMDB alone"
    print(f"{name:52}{rate.per_s:10,.0f} a second   {rate.cpu_us:4.0f} µs of the server's processor   {ratios}")


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} processes wanted one in the last minute"


if __name__ == "__main__":
    report()
