"""Microseconds per 1 KB transfer: received, its properties decoded, settled; our engine, and Qpid Proton's.

Run as ``python -m benchmarks.transfer ENGINE MESSAGES`` it prints one engine's figures as JSON; the comparison runs
each engine in a process of its own, several times in turn, and takes the medians.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.traffic import BODY, Traffic, record
from pairbus.wire import (
    ACCEPTED,
    Configuration,
    Connection,
    ConnectionOpened,
    Delivery,
    LinkAttached,
    Sections,
    SessionBegun,
    Source,
    Target,
    decode_message,
)
from pairbus.wire import connection as connection_module

HERE = Path(__file__).resolve().parent.parent
COMPILED = HERE / "build" / "compiled"
REPEATS = 7
MESSAGES = 20_000


def read_properties(sections: Sections) -> None:
    """Decode what a broker routes by: the properties and the application properties."""
    assert sections.properties().message_id == "0123456789abcdef"
    assert sections.application_properties()["n"] == 5


def read_payload(payload: bytes) -> None:
    """Decode what a broker routes by: the properties and the application properties."""
    read_properties(Sections(payload))


def read_message(payload: bytes) -> None:
    """Decode the whole message into one object, as Proton's ``Message.decode`` does."""
    message = decode_message(payload)
    assert message.properties.message_id == "0123456789abcdef"
    assert message.application_properties is not None
    assert message.application_properties["n"] == 5
    assert len(message.body[0]) == len(BODY)


def run_pairbus(traffic: Traffic, read: Callable[[bytes], None]) -> float:
    """Return the seconds that our engine takes for the whole traffic."""
    server = Connection(Configuration(container_id="server"))
    link = None
    for event in server.receive_data(traffic.handshake):
        match event:
            case ConnectionOpened():
                server.open()
            case SessionBegun(session=session):
                session.begin()
            case LinkAttached():
                link = event.link
                link.attach(source=Source(address="here"), target=Target(address="orders"))
    assert link is not None
    settled = 0
    start = time.perf_counter()
    for data in traffic.rounds:
        link.flow(traffic.together)
        for received in server.receive_data(data):
            if isinstance(received, Delivery):
                read(received.payload)
                link.settle(received, ACCEPTED)
                settled += 1
        server.data_to_send()
    seconds = time.perf_counter() - start
    assert settled == len(traffic.rounds) * traffic.together
    return seconds


def run_proton(traffic: Traffic) -> float:
    """Return the seconds that Proton takes for the whole traffic, used without its event loop, as bare as it goes."""
    proton: Any = importlib.import_module("proton")
    transport, connection, collector = (
        proton.Transport(proton.Transport.SERVER),
        proton.Connection(),
        proton.Collector(),
    )
    connection.collect(collector)
    transport.bind(connection)
    transport.push(traffic.handshake)
    link: Any = None
    while event := collector.peek():
        if event.type == proton.Event.CONNECTION_REMOTE_OPEN:
            connection.open()
        elif event.type == proton.Event.SESSION_REMOTE_OPEN:
            event.session.open()
        elif event.type == proton.Event.LINK_REMOTE_OPEN:
            link = event.link
            link.open()
        collector.pop()
    settled = 0
    start = time.perf_counter()
    for data in traffic.rounds:
        link.flow(traffic.together)
        pull(transport)
        position = 0
        while position < len(data):
            size = min(transport.capacity(), len(data) - position)
            transport.push(data[position : position + size])
            position += size
            while event := collector.peek():
                if event.type == proton.Event.DELIVERY:
                    settled += take_proton_delivery(proton, link, event.delivery)
                collector.pop()
        pull(transport)
    seconds = time.perf_counter() - start
    assert settled == len(traffic.rounds) * traffic.together
    return seconds


def take_proton_delivery(proton: Any, link: Any, delivery: Any) -> int:
    """Receive, decode and settle one delivery; return how many were complete."""
    if not delivery.readable or delivery.partial:
        return 0
    message = proton.Message()  # one for each delivery, as Proton's own recv_msg makes it
    message.decode(link.recv(delivery.pending))
    link.advance()
    assert message.id == "0123456789abcdef"
    assert message.properties["n"] == 5
    delivery.update(proton.Delivery.ACCEPTED)
    delivery.settle()
    return 1


def pull(transport: Any) -> None:
    """Take out what Proton wants to send."""
    while (pending := transport.pending()) > 0:
        transport.peek(pending)
        transport.pop(pending)


def main(engine: str, messages: int) -> None:
    """Measure one engine in this process and print its figures."""
    if engine != "proton":
        compiled = not str(connection_module.__file__).endswith(".py")
        assert compiled == (engine == "compiled"), f"{engine} runs from {connection_module.__file__}"
    busy, quiet = record(messages), record(messages // 10, together=1)
    run_proton(record(1000)) if engine == "proton" else run_pairbus(record(1000), read_message)
    if engine == "proton":
        whole = run_proton(busy) / messages * 1e6
        figures = {"properties": whole, "message": whole, "one a read": run_proton(quiet) / messages * 1e7}
    else:
        figures = {
            "properties": run_pairbus(busy, read_payload) / messages * 1e6,
            "message": run_pairbus(busy, read_message) / messages * 1e6,
            "one a read": run_pairbus(quiet, read_payload) / messages * 1e7,
        }
    print(json.dumps(figures))


def measure(engine: str) -> dict[str, float]:
    """Measure one engine in a process of its own."""
    path = COMPILED if engine == "compiled" else HERE / "src"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.transfer", engine, str(MESSAGES)],
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{HERE}"},
        cwd=HERE,
        check=True,
        capture_output=True,
        text=True,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def compare() -> None:
    """Print what each engine takes, and how that compares to Proton."""
    engines = ["plain", "compiled"]
    if importlib.util.find_spec("proton") is None:
        print("Proton is not installed (python-qpid-proton): no comparison with it.")
    else:
        engines.append("proton")
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
    for _ in range(REPEATS):
        for engine in engines:
            runs[engine].append(measure(engine))
    medians = {
        engine: {kind: statistics.median(run[kind] for run in done) for kind in done[0]}
        for engine, done in runs.items()
    }
    kinds = list(medians["plain"])
    print(f"µs per 1 KB transfer: received, decoded, settled ({MESSAGES:,} messages, median of {REPEATS} runs in turn)")
    print(f"{'':10}" + "".join(f"{kind:>13}" for kind in kinds) + "   of Proton's")
    for engine, figures in medians.items():
        line = f"{engine:10}" + "".join(f"{figures[kind]:13.2f}" for kind in kinds)
        if "proton" in medians:
            line += "   " + ", ".join(f"1/{medians['proton'][kind] / figures[kind]:.1f}" for kind in kinds)
        print(line)
    print("To reach, with the properties decoded: plain 1/4 of Proton's, compiled 1/15.")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
