"""E5: messages to ``$cbs`` that peers without a key never finish take bounded memory, on a real process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from pairbus.server.connection_limits import ConnectionLimits
from pairbus.wire import SENDER, Attach, Source, Target
from pairbus.wire.performatives import Transfer
from tests.server.test_hostile_peers import (
    BEGUN,
    COMES_BACK_BYTES,
    MEGABYTE,
    RETURNED_WITHIN_S,
    Served,
    exchange,
    measured,
    prepare,
    visit,
)
from tests.waiting import eventually
from tests.wire.pair import frame

PEERS: Final = 100
UNFINISHED_BYTES: Final = 16 * MEGABYTE
"""The bytes that each peer sends, unless it is stopped."""

AT_ONCE_BYTES: Final = ConnectionLimits().unproven_total_bytes + 8 * MEGABYTE
"""They send 1.6 GB; the process grows by some 30 MB, until they have been closed."""

PART_BYTES: Final = 60_000


def unfinished(links: int) -> Iterator[bytes]:
    """Yield the parts of messages that never end, of so many links in turn."""
    for number in range(links):
        yield frame(
            Attach(name=f"l{number}", handle=number, role=SENDER, source=Source(), target=Target(address="$cbs"))
        )
    begun: set[int] = set()
    for part in range(UNFINISHED_BYTES // PART_BYTES):
        handle = part % links
        first: dict[str, Any] = (
            {} if handle in begun else {"delivery_id": handle, "delivery_tag": b"%d" % handle, "message_format": 0}
        )
        begun.add(handle)
        yield frame(Transfer(handle=handle, more=True, **first), payload=bytes(PART_BYTES))


@pytest.mark.slow
@measured
@pytest.mark.parametrize("links", [1, 8])
def test_e5_unfinished_messages_of_many_peers_take_bounded_memory(tmp_path: Path, links: int) -> None:
    with Served(tmp_path / "contoso") as process, ExitStack() as stack:
        asyncio.run(prepare(process))
        visit(process)
        before = process.resident_bytes
        streams = [stack.enter_context(process.connect()) for _ in range(PEERS)]
        for data in (BEGUN, *unfinished(links)):
            streams = [stream for stream in streams if is_sent(stream, data)]
            assert process.resident_bytes - before < AT_ONCE_BYTES
        assert not streams, "each is closed before it has sent everything"
        asyncio.run(exchange(process))
        eventually(lambda: process.resident_bytes - before < COMES_BACK_BYTES, RETURNED_WITHIN_S)


def is_sent(stream: socket.socket, data: bytes) -> bool:
    """Send data; return ``False`` if the server has closed the connection."""
    with suppress(OSError):
        stream.sendall(data)
        return True
    return False
