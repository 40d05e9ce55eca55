"""B3: what lies in the files of a side buffer, whole or not; and the tables and values that it is made of."""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64decode
from errno import ENOSPC
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker import Address, Message
from pairbus.server.settings import SettingsError
from pairbus.server.side_buffer.archive import Archive
from pairbus.server.side_buffer.aside import Aside, Leftover
from pairbus.server.side_buffer.complaints import Complaints
from pairbus.server.side_buffer.directory import FORMAT_FILE, BufferDirectory
from pairbus.server.side_buffer.lane import TURNS, Entry, Lane, LaneState, Turn
from pairbus.server.side_buffer.lanes import Lanes
from pairbus.server.side_buffer.merger import Pauses
from pairbus.server.side_buffer.parcel import Parcel, ParcelFormatError, mark_of, pack_parcel, unpack_parcel
from pairbus.server.side_buffer.segment import HEAD_BYTES, Damage, Segment
from pairbus.server.side_buffer.shelf import Placed, Shelf
from pairbus.server.side_buffer.sweeper import Sweeper
from pairbus.store import NewerFormatError, StoreFailedError, StoreInUseError

IDENTITY = bytes(range(8))
MARK = mark_of(IDENTITY)
MEGABYTE = 1024 * 1024


def content(number: int, entity: str = "orders") -> bytes:
    return pack_parcel(Parcel(entity, number, [Message(b"body %d" % number, str(number))]), MARK)


def found(shelf: Shelf) -> list[bytes | Damage]:
    return [each if isinstance(each, Damage) else each[1] for each in shelf.scan(MARK)]


# Parcels

texts = st.text(max_size=20)
messages = st.builds(
    Message,
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
def test_a_parcel_comes_out_as_it_went_in(
    entity: str, accepted_ms: int, several: list[Message], position: int | None
) -> None:
    parcel = Parcel(entity, accepted_ms, several, position)
    assert unpack_parcel(pack_parcel(parcel, MARK), MARK) == parcel


@given(st.binary(max_size=80) | st.binary(max_size=80).map(MARK.__add__))
def test_what_is_no_parcel_is_told_from_one(data: bytes) -> None:
    with pytest.raises(ParcelFormatError):
        unpack_parcel(data, MARK)


# Files


def test_b3_a_write_that_was_cut_off_anywhere_is_not_there(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 0)
    shelf.append([content(1)])
    shelf.append([content(2)])
    shelf.close()
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    first = HEAD_BYTES + len(content(1))
    for size in range(first, len(data)):
        path.write_bytes(data[:size])
        shelf = Shelf(tmp_path, 0)
        assert found(shelf) == [content(1)]
        assert path.stat().st_size == first, "the rest is cut off"
        shelf.close()


def test_b3_positions_do_not_come_again_behind_what_was_cut_off(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 0)
    shelf.append([content(1), content(2)])
    shelf.close()
    (path,) = tmp_path.iterdir()
    end = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    shelf = Shelf(tmp_path, 0)
    assert found(shelf) == [content(1)]
    (placed,) = shelf.append([content(3)])
    assert placed == Placed(end - 1, end - 1)
    assert found(shelf) == [content(1), content(3)]


def test_b3_damage_in_the_middle_costs_what_is_damaged_and_no_more(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 0)
    placed = shelf.append([content(number) for number in range(4)])
    shelf.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    begin, end = placed[1].position, placed[2].position
    for position in range(begin, end):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        shelf = Shelf(tmp_path, 0)
        expected = [content(0), Damage(begin, bytes(damaged[begin:end])), content(2), content(3)]
        assert found(shelf) == expected
        assert shelf.read(begin, MARK) == expected[1]
        assert shelf.read(end, MARK) == content(2)
        shelf.close()


def test_b3_damage_at_the_end_of_a_file_that_another_follows_is_no_torn_write(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 0, segment_bytes=1)
    shelf.append([content(1)])
    shelf.append([content(2)])
    shelf.close()
    first, _ = sorted(tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    shelf = Shelf(tmp_path, 0)
    (damage, second) = found(shelf)
    assert isinstance(damage, Damage)
    assert second == content(2)


def test_b3_damage_in_the_last_parcel_is_no_write_that_was_cut_off(tmp_path: Path) -> None:
    """It may have been confirmed: its bytes are kept, and what comes later goes behind it."""
    shelf = Shelf(tmp_path, 0)
    _, placed = shelf.append([content(1), content(2)])
    shelf.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for position in range(placed.position, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        shelf = Shelf(tmp_path, 0)
        expected = [content(1), Damage(placed.position, bytes(damaged[placed.position :]))]
        assert found(shelf) == expected
        shelf.append([content(3)])
        assert found(shelf) == [*expected, content(3)]
        shelf.close()


def test_b3_what_is_damaged_at_the_end_is_set_aside_once(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 0)
    shelf.append([content(1), content(2)])
    shelf.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for expected in (1, 0):
        archive = Archive(tmp_path, IDENTITY, {}, MEGABYTE)
        to_merge, set_aside = archive.find()
        assert (len(to_merge), set_aside) == (1, expected)
        archive.close()
    (line,) = map(json.loads, (tmp_path / "set-aside.jsonl").read_text().splitlines())
    assert b64decode(line["damaged"]) == path.read_bytes()[-_size(2) :]


def test_b3_no_body_passes_for_a_parcel(tmp_path: Path) -> None:
    """Behind damage the next parcel is looked for: in the body of a message it is not found."""
    other = mark_of(b"guessed!")
    inner = pack_parcel(Parcel("vault", 1, [Message(b"forged")]), other)
    segment = Segment.create(tmp_path, 0)
    forged = tmp_path / "forged"
    forged.mkdir()
    segment_of_forger = Segment.create(forged, 0)
    segment_of_forger.append([inner])
    segment_of_forger.close()
    body = next(forged.iterdir()).read_bytes()
    segment.append([pack_parcel(Parcel("orders", 1, [Message(body)]), MARK), content(2)])
    raw = bytearray(segment.path.read_bytes())
    raw[HEAD_BYTES + 20] ^= 1
    segment.path.write_bytes(raw)
    assert [each for each in segment.scan(MARK) if not isinstance(each, Damage)] == [
        (segment.end - _size(2), content(2))
    ]


def _size(number: int) -> int:
    return HEAD_BYTES + len(content(number))


def test_b3_an_append_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 0)
    shelf.append([content(1)])
    segment = shelf._segments[0]
    descriptor = segment._descriptor
    reading = os.open(segment.path, os.O_RDONLY)
    segment._descriptor = reading
    with pytest.raises(OSError, match="descriptor"):
        shelf.append([content(2)])
    segment._descriptor = descriptor
    shelf.append([content(3)])
    assert found(shelf) == [content(1), content(3)]
    os.close(reading)
    shelf.close()


def test_files_are_removed_one_by_one_and_positions_go_on(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 7, segment_bytes=1)
    first, second = (shelf.append([content(number)])[0] for number in (1, 2))
    assert first.base == 7
    shelf.remove(first.base)
    assert found(shelf) == [content(2)]
    shelf.remove(second.base)
    assert shelf.sizes == {}
    (third,) = shelf.append([content(3)])
    assert third.position == second.position + _size(2)


# What was set aside


def test_b3_what_is_set_aside_is_there_once_whenever_it_was_killed(tmp_path: Path) -> None:
    leftovers = [Leftover(5, "gone", Parcel("orders", 1, [Message(b"body", "one")])), Leftover(9, "damaged", b"??")]
    assert Aside(tmp_path).add(leftovers) == 2
    again = Aside(tmp_path)
    assert again.end == 10
    assert again.add([*leftovers, Leftover(12, "damaged", b"!")]) == 1
    lines = (tmp_path / "set-aside.jsonl").read_text().splitlines()
    assert [json.loads(line)["position"] for line in lines] == [5, 9, 12]


def test_b3_a_line_that_was_cut_off_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "set-aside.jsonl"
    Aside(tmp_path).add([Leftover(5, "gone", b"1"), Leftover(9, "gone", b"2")])
    path.write_bytes(path.read_bytes()[:-5])
    aside = Aside(tmp_path)
    assert aside.add([Leftover(5, "gone", b"1"), Leftover(9, "gone", b"2")]) == 1
    assert aside.add([Leftover(9, "gone", b"2")]) == 0
    assert json.loads(path.read_text().splitlines()[-1])["position"] == 9


def test_b3_at_the_start_only_what_is_not_in_the_store_is_to_be_merged(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 0)
    placed = shelf.append([content(1), content(2, "visits"), content(3), content(4, "visits")])
    shelf.close()
    archive = Archive(tmp_path, IDENTITY, {"orders": placed[0].position + 1}, MEGABYTE)
    to_merge, set_aside = archive.find()
    assert [(address.entity, entry.position) for address, entry in to_merge] == [
        ("visits", placed[1].position),
        ("orders", placed[2].position),
        ("visits", placed[3].position),
    ]
    assert not set_aside
    archive.close()


def test_b3_why_nothing_could_be_set_aside_is_not_hidden_by_what_fails_then(tmp_path: Path) -> None:
    aside = Aside(tmp_path)
    aside.path.symlink_to("/dev/full")  # it cannot be made shorter, either
    with pytest.raises(OSError, match="space") as raised:
        aside.add([Leftover(5, "gone", b"1")])
    assert raised.value.errno == ENOSPC
    aside.path.unlink()
    aside.path.write_text('{"position": 5, "rea')  # what was written of it
    assert aside.add([Leftover(5, "gone", b"1"), Leftover(9, "gone", b"2")]) == 2
    assert Aside(tmp_path).add([Leftover(5, "gone", b"1"), Leftover(9, "gone", b"2")]) == 0


def test_b3_a_damaged_place_is_told_from_a_parcel_that_was_moved_away_from_it(tmp_path: Path) -> None:
    parcel = Leftover(5, "gone", Parcel("orders", 1, [Message(b"body")]))
    assert Aside(tmp_path).add([Leftover(5, "damaged", b"?")]) == 1
    assert Aside(tmp_path).add([parcel]) == 1
    assert Aside(tmp_path).add([parcel, Leftover(5, "damaged", b"?")]) == 0


@pytest.mark.parametrize("is_left", [False, True], ids=["moved", "moved, and the first one is there, too"])
def test_b3_what_was_moved_keeps_its_place_and_is_there_once(tmp_path: Path, is_left: bool) -> None:
    archive = Archive(tmp_path, IDENTITY, {}, 8)  # each append has a file of its own

    async def scene() -> None:
        for number in range(3):
            await archive.append([content(number)], [1])
        (first, *_) = [entry for _, entry in archive.find()[0]]
        moved = await archive.move([first])
        moved |= {moved[first]: (await archive.move([moved[first]]))[moved[first]]}
        assert {entry.position for entry in moved.values()} == {first.position}
        if not is_left:
            await archive.remove(first.placed.base)

    asyncio.run(scene())
    archive.close()
    again = Archive(tmp_path, IDENTITY, {}, MEGABYTE)
    entries = [entry for _, entry in again.find()[0]]
    parcels = asyncio.run(again.read(entries))
    assert [parcel.accepted_ms for parcel in parcels if isinstance(parcel, Parcel)] == [0, 1, 2]
    again.close()
    merged = Archive(tmp_path, IDENTITY, {"orders": entries[0].position + 1}, MEGABYTE)
    assert [entry for _, entry in merged.find()[0]] == entries[1:]
    merged.close()


def test_b3_a_file_is_not_removed_while_something_is_being_written_to_it(tmp_path: Path) -> None:
    archive, lanes = Archive(tmp_path, IDENTITY, {}, MEGABYTE), Lanes()
    sweeper = Sweeper(archive, lanes, Complaints())

    async def scene() -> None:
        await archive.append([content(1)], [1])  # no lane needs it
        appending = asyncio.create_task(archive.append([content(2)], [1]))
        await asyncio.sleep(0)
        await sweeper.sweep()
        (entry,) = await appending
        lanes.add(Address.of("orders"), entry)
        await sweeper.sweep()
        (parcel,) = await archive.read([entry])
        assert isinstance(parcel, Parcel)
        assert parcel.accepted_ms == 2
        lanes.done_with([entry])
        await sweeper.sweep()

    asyncio.run(scene())
    assert not [*tmp_path.iterdir()]
    archive.close()


def test_b3_a_file_is_not_removed_that_something_came_into_while_another_one_was_removed(tmp_path: Path) -> None:
    archive, lanes = Archive(tmp_path, IDENTITY, {}, 8 * 2 * len(content(1))), Lanes()
    sweeper = Sweeper(archive, lanes, Complaints())

    async def scene() -> None:
        for number in range(3):  # no lane needs them; the second file has room for another one
            await archive.append([content(number)], [1])
        assert len(archive.sizes) == 2
        sweeping = asyncio.create_task(sweeper.sweep())
        await asyncio.sleep(0)  # the first one is being removed
        (entry,) = await archive.append([content(3)], [1])
        lanes.add(Address.of("orders"), entry)
        await sweeping
        (parcel,) = await archive.read([entry])
        assert isinstance(parcel, Parcel)
        assert parcel.accepted_ms == 3
        assert [*archive.sizes] == [entry.placed.base]

    asyncio.run(scene())
    archive.close()


# The directory


def test_a_directory_is_for_one_process_and_one_namespace(tmp_path: Path) -> None:
    path = tmp_path / "a" / "side"
    directory = BufferDirectory.open(path, "contoso")
    with pytest.raises(StoreInUseError):
        BufferDirectory.open(path, "contoso")
    directory.close()
    directory.close()
    with pytest.raises(SettingsError, match="contoso"):
        BufferDirectory.open(path, "fabrikam")
    again = BufferDirectory.open(path, "contoso")
    assert again.identity == directory.identity
    again.close()


def test_a_directory_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / FORMAT_FILE).write_text('{"format": 2, "identity": "00", "namespace": "contoso"}')
    with pytest.raises(NewerFormatError):
        BufferDirectory.open(tmp_path, "contoso")
    (tmp_path / FORMAT_FILE).write_text("[1]")
    with pytest.raises(SettingsError, match="whose"):
        BufferDirectory.open(tmp_path, "contoso")


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailedError):
        BufferDirectory.open(tmp_path / "file" / "side", "contoso")


# Lanes


@pytest.mark.parametrize("state", LaneState)
@pytest.mark.parametrize("turn", Turn)
def test_every_turn_of_a_lane_is_in_the_table_or_impossible(state: LaneState, turn: Turn) -> None:
    lane = Lane(Address.of("orders"))
    lane.state = state
    if (state, turn) in TURNS:
        lane.turn(turn)
        assert lane.state is TURNS[state, turn]
    else:
        assert state is LaneState.OPEN or (state, turn) == (LaneState.HOLDING, Turn.EMPTIED)
        with pytest.raises(KeyError):
            lane.turn(turn)


def test_a_batch_is_bounded_by_number_and_size_and_has_one_at_least() -> None:
    lane = Lane(Address.of("orders"))
    lane.entries.extend(Entry(position, Placed(0, position), 10, 1) for position in range(5))
    assert [entry.position for entry in lane.first(3, 1_000)] == [0, 1, 2]
    assert [entry.position for entry in lane.first(5, 25)] == [0, 1]
    assert [entry.position for entry in lane.first(5, 1)] == [0]
    taken = lane.take(2)
    lane.put_back(taken)
    assert [entry.position for entry in lane.entries] == [*range(5)]


def test_b3_it_never_rests_longer_than_a_minute() -> None:
    pauses, pause_s, seen = Pauses(), 0.0, []
    for _ in range(10):
        pause_s = pauses.after(pause_s)
        seen.append(pause_s)
    assert seen == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
