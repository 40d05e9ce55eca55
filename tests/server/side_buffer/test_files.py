"""B3: the files of a side buffer, and the tables and values that it is made of."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker import Address, NewMessage
from pairbus.server.settings import SettingsError
from pairbus.server.side_buffer.archive import (
    BatchFormatError,
    BufferArchive,
    BufferedBatch,
    BufferEntry,
    NewBatch,
    mark_of,
    pack_batch,
    quarantined_batch,
    unpack_batch,
)
from pairbus.server.side_buffer.compactor import RateLimitedLog, SegmentCompactor
from pairbus.server.side_buffer.entity_buffers import (
    TRANSITIONS,
    EntityBuffer,
    EntityBuffers,
    EntityBufferState,
    Transition,
)
from pairbus.server.side_buffer.replayer import MERGE_BACKOFF
from pairbus.store import NewerFormatError, StoreFailedError
from pairbus.store.buffer_directory import FORMAT_FILE
from pairbus.store.segment_log import HEADER_BYTES, LogPosition, SegmentLog
from tests.server.side_buffer.stage import MEGABYTE, BufferedStage, play

IDENTITY = bytes(range(8))
MARK = mark_of(IDENTITY)


def content(number: int, entity: str = "orders") -> bytes:
    return pack_batch(BufferedBatch(entity, number, [NewMessage(b"body %d" % number, str(number))]), MARK)


def _size(number: int) -> int:
    return HEADER_BYTES + len(content(number))


# Batches

texts = st.text(max_size=20)
messages = st.builds(
    NewMessage,
    st.binary(max_size=50),
    texts,
    st.none() | texts,
    st.none() | texts,
    st.none() | st.integers(0, 2**62),
    st.none() | st.integers(0, 2**62),
    st.integers(0, 2**31),
    st.booleans(),
    st.booleans(),
)


@given(texts, st.integers(0, 2**62), st.lists(messages, max_size=5), st.none() | st.integers(0, 2**62))
def test_packed_batch_is_unpacked_unchanged(
    entity: str, accepted_ms: int, several: list[NewMessage], position: int | None
) -> None:
    batch = BufferedBatch(entity, accepted_ms, several, position)
    assert unpack_batch(pack_batch(batch, MARK), MARK) == batch


@given(st.binary(max_size=80) | st.binary(max_size=80).map(MARK.__add__))
def test_other_bytes_are_no_batch(data: bytes) -> None:
    with pytest.raises(BatchFormatError):
        unpack_batch(data, MARK)


# Recovery


def test_b3_damage_at_the_end_is_quarantined_once(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, MARK)
    log.append([content(1), content(2)])
    log.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for expected in (1, 0):
        archive = BufferArchive(tmp_path, IDENTITY, {}, MEGABYTE)
        to_merge, quarantined = archive.recover()
        assert (len(to_merge), quarantined) == (1, expected)
        archive.close().result()
    (line,) = map(json.loads, (tmp_path / "set-aside.jsonl").read_text().splitlines())
    assert b64decode(line["damaged"]) == path.read_bytes()[-_size(2) :]


def test_b3_append_is_counted_although_its_caller_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, append = Event(), SegmentLog.append

    def append_slowly(log: SegmentLog, contents: Sequence[bytes]) -> list[LogPosition]:
        assert release.wait(60)
        return append(log, contents)

    async def scene() -> None:
        archive = BufferArchive(tmp_path, IDENTITY, {}, MEGABYTE)
        monkeypatch.setattr(SegmentLog, "append", append_slowly)
        appending = asyncio.create_task(archive.append([NewBatch(content(1), 1)]))
        await asyncio.sleep(0)
        appending.cancel()
        await asyncio.wait([appending])
        assert (archive.idle_segments(), archive.used_bytes) == ([], 0)
        release.set()
        assert await archive.read([]) == []  # the thread does one task after the other
        assert archive.used_bytes == _size(1)
        assert len(archive.idle_segments()) == 1
        archive.close().result()

    asyncio.run(scene())


def test_b3_segment_is_not_idle_before_its_append_has_returned(tmp_path: Path) -> None:
    """An idle segment without known batches is deleted."""

    async def scene() -> None:
        archive = BufferArchive(tmp_path, IDENTITY, {}, MEGABYTE)
        appending = asyncio.create_task(archive.append([NewBatch(content(1), 1)]))
        while not archive.idle_segments():
            assert not appending.done()
            await asyncio.sleep(0)
        assert appending.done()
        archive.close().result()

    asyncio.run(scene())


def test_b3_quarantined_batch_is_readable_by_an_operator() -> None:
    record = quarantined_batch(5, "gone", BufferedBatch("orders", 1, [NewMessage(b"body", "one", session_id="a")]))
    assert json.loads(record.line()) == {
        "position": 5,
        "reason": "gone",
        "entity": "orders",
        "accepted_ms": 1,
        "messages": [{"message_id": "one", "session_id": "a", "body": "Ym9keQ=="}],
    }


def test_b3_recovery_returns_only_batches_that_are_not_in_the_store(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, MARK)
    stored = log.append([content(1), content(2, "visits"), content(3), content(4, "visits")])
    log.close()
    archive = BufferArchive(tmp_path, IDENTITY, {"orders": stored[0].position + 1}, MEGABYTE)
    to_merge, quarantined = archive.recover()
    assert [(address.entity, entry.position) for address, entry in to_merge] == [
        ("visits", stored[1].position),
        ("orders", stored[2].position),
        ("visits", stored[3].position),
    ]
    assert not quarantined
    archive.close().result()


@pytest.mark.parametrize("is_left", [False, True], ids=["moved", "moved, and the original exists, too"])
def test_b3_moved_batch_keeps_its_place_and_counts_once(tmp_path: Path, is_left: bool) -> None:
    archive = BufferArchive(tmp_path, IDENTITY, {}, 8)  # each append starts a segment

    async def scene() -> None:
        for number in range(3):
            await archive.append([NewBatch(content(number), 1)])
        (first, *_) = [entry for _, entry in archive.recover()[0]]
        moved = await archive.move([first])
        moved |= {moved[first]: (await archive.move([moved[first]]))[moved[first]]}
        assert {entry.position for entry in moved.values()} == {first.position}
        if not is_left:
            await archive.delete(first.stored.base)

    asyncio.run(scene())
    archive.close().result()
    reopened = BufferArchive(tmp_path, IDENTITY, {}, MEGABYTE)
    entries = [entry for _, entry in reopened.recover()[0]]
    batches = asyncio.run(reopened.read(entries))
    assert [batch.accepted_ms for batch in batches if isinstance(batch, BufferedBatch)] == [0, 1, 2]
    reopened.close()
    merged = BufferArchive(tmp_path, IDENTITY, {"orders": entries[0].position + 1}, MEGABYTE)
    assert [entry for _, entry in merged.recover()[0]] == entries[1:]
    merged.close()


# Deletion of segments


def test_b3_segment_is_not_deleted_during_an_append(tmp_path: Path) -> None:
    archive, buffers = BufferArchive(tmp_path, IDENTITY, {}, MEGABYTE), EntityBuffers()
    compactor = SegmentCompactor(archive, buffers, RateLimitedLog())

    async def scene() -> None:
        await archive.append([NewBatch(content(1), 1)])  # no entity needs it
        appending = asyncio.create_task(archive.append([NewBatch(content(2), 1)]))
        await asyncio.sleep(0)
        await compactor.delete_unneeded()
        (entry,) = await appending
        buffers.add(Address.of("orders"), entry)
        await compactor.delete_unneeded()
        (batch,) = await archive.read([entry])
        assert isinstance(batch, BufferedBatch)
        assert batch.accepted_ms == 2
        buffers.discard([entry])
        await compactor.delete_unneeded()

    asyncio.run(scene())
    assert not [*tmp_path.iterdir()]
    archive.close().result()


def test_b3_segment_appended_to_while_another_is_deleted_is_kept(tmp_path: Path) -> None:
    archive, buffers = BufferArchive(tmp_path, IDENTITY, {}, 8 * 2 * len(content(1))), EntityBuffers()
    compactor = SegmentCompactor(archive, buffers, RateLimitedLog())

    async def scene() -> None:
        for number in range(3):  # no entity needs them; the second segment has room for another one
            await archive.append([NewBatch(content(number), 1)])
        assert len(archive.sizes) == 2
        deleting = asyncio.create_task(compactor.delete_unneeded())
        await asyncio.sleep(0)  # the first segment is being deleted
        (entry,) = await archive.append([NewBatch(content(3), 1)])
        buffers.add(Address.of("orders"), entry)
        await deleting
        (batch,) = await archive.read([entry])
        assert isinstance(batch, BufferedBatch)
        assert batch.accepted_ms == 3
        assert [*archive.sizes] == [entry.stored.base]

    asyncio.run(scene())
    archive.close().result()


# The directory


@pytest.mark.parametrize(
    ("format_file", "text"),
    [
        ('{"format": 1, "identity": "00", "namespace": "fabrikam"}', "side_buffer: .*fabrikam.*contoso"),
        ("[1]", "side_buffer: .*does not name its owner"),
    ],
)
def test_directory_of_another_namespace_is_an_error_of_the_settings(
    tmp_path: Path, format_file: str, text: str
) -> None:
    async def scene(stage: BufferedStage) -> None:
        other = tmp_path / "other"
        other.mkdir()
        (other / FORMAT_FILE).write_text(format_file)
        with pytest.raises(SettingsError, match=text):
            stage.open_buffer(other)

    play(scene, tmp_path / "side")


def test_directory_that_cannot_be_used_is_an_error_of_the_store(tmp_path: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        newer = tmp_path / "newer"
        newer.mkdir()
        (newer / FORMAT_FILE).write_text('{"format": 2, "identity": "00", "namespace": "contoso"}')
        with pytest.raises(NewerFormatError):
            stage.open_buffer(newer)
        with pytest.raises(StoreFailedError):
            stage.open_buffer(newer / FORMAT_FILE / "side")

    play(scene, tmp_path / "side")


# The buffers of entities


@pytest.mark.parametrize("state", EntityBufferState)
@pytest.mark.parametrize("transition", Transition)
def test_every_transition_is_in_the_table_or_impossible(state: EntityBufferState, transition: Transition) -> None:
    buffer = EntityBuffer(Address.of("orders"))
    buffer.state = state
    if (state, transition) in TRANSITIONS:
        buffer.move_to(transition)
        assert buffer.state is TRANSITIONS[state, transition]
    else:
        impossible = EntityBufferState.HOLDING, Transition.EMPTIED
        assert state is EntityBufferState.OPEN or (state, transition) == impossible
        with pytest.raises(KeyError):
            buffer.move_to(transition)


def test_first_entries_are_bounded_by_count_and_size_with_at_least_one() -> None:
    buffer = EntityBuffer(Address.of("orders"))
    buffer.entries.extend(BufferEntry(position, LogPosition(0, position), 10, 1) for position in range(5))
    assert [entry.position for entry in buffer.first(3, 1_000)] == [0, 1, 2]
    assert [entry.position for entry in buffer.first(5, 25)] == [0, 1]
    assert [entry.position for entry in buffer.first(5, 1)] == [0]
    taken = buffer.take(2)
    buffer.put_back(taken)
    assert [entry.position for entry in buffer.entries] == [*range(5)]


def test_b3_pause_is_never_longer_than_a_minute() -> None:
    pause_s, seen = 0.0, []
    for _ in range(10):
        pause_s = MERGE_BACKOFF.after(pause_s)
        seen.append(pause_s)
    assert seen == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
