"""Damaged files: refused, quarantined or harmless, but never believed, and never fatal to the process."""

from __future__ import annotations

import json
import random
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from pairbus.store import LmdbStore, apply, verify
from tests.store.child import start
from tests.store.damaging_child import REFUSED, SET_ASIDE, UNHARMED

PAGE_BYTES = 4_096
META_BYTES = 152
HEADER_BYTES = 16
NODE_BYTES = 8
PROCESSES = 2

Case = list[int]
"""The length of the file, then pairs of position and octet."""


@dataclass(frozen=True)
class Sound:
    """A file with all features: both trees with pages of all kinds, and free pages."""

    path: Path
    data: bytes

    def case(self, *changes: int) -> Case:
        return [len(self.data), *changes]

    def flip(self, position: int, mask: int) -> Case:
        return self.case(position, self.data[position] ^ mask)


@pytest.fixture(scope="module")
def sound() -> Iterator[Sound]:
    # Thousands of copies are written and synced: in memory, if possible.
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield make_sound(Path(directory) / "sound.mdb")


def make_sound(path: Path) -> Sound:
    chance = random.Random(1)  # noqa: S311
    store = LmdbStore(path, step_bytes=1 << 16)
    expected: dict[bytes, bytes] = {}
    sizes = [0, 3, *[20] * 6, *[60] * 8, *[200] * 6, 700, 2_100, 4_500, 9_000]
    for turn in range(7):
        batch: dict[bytes, bytes | None] = {}
        for _ in range(40):
            key = b"%03d" % chance.randrange(300) + b"k" * chance.choice([0, 5, 30])
            batch[key] = chance.randbytes(chance.choice(sizes))
        for key in chance.sample(sorted(expected), len(expected) // 9):
            batch[key] = None
        if turn == 3:
            batch |= {b"%03d" % number + b"n" * 500: b"long key" for number in range(0, 300, 3)}
        apply(store, batch)
        expected = {key: value for key, value in (expected | batch).items() if value is not None}
    store.close()
    path.with_suffix(".json").write_text(json.dumps({key.hex(): value.hex() for key, value in expected.items()}))
    meta = verify(path)
    assert meta.main.depth >= 3
    assert min(meta.main.branch_pages, meta.main.overflow_pages, meta.free.entries) > 1
    data = path.read_bytes()[: (meta.last_page + 1) * PAGE_BYTES]
    path.write_bytes(data)
    return Sound(path, data)


def outcomes(sound: Sound, cases: list[Case]) -> Counter[str]:
    """Run the cases in some processes, and count their outcomes."""
    shares = [cases[number::PROCESSES] for number in range(PROCESSES)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        counts = pool.map(lambda number: share_outcomes(sound, number, shares[number]), range(PROCESSES))
        return sum(counts, Counter[str]())


def share_outcomes(sound: Sound, number: int, cases: list[Case]) -> Counter[str]:
    with start("damaging_child", sound.path, sound.path.with_name(f"copy {number}.mdb")) as child:
        said, _ = child.communicate("".join(f"{json.dumps(case)}\n" for case in cases))
    counts = Counter(line.partition(" ")[2] for line in said.splitlines()[: len(cases)])
    if counts.total() != len(cases) or counts.keys() - {REFUSED, SET_ASIDE, UNHARMED}:
        at = max(0, sum(line.endswith((REFUSED, SET_ASIDE, UNHARMED)) for line in said.splitlines()))
        case = cases[min(at, len(cases) - 1)]
        pytest.fail(f"the case {case} ended with {child.returncode}:\n{said[-2_000:]}")
    return counts


def test_undamaged_file_passes(sound: Sound) -> None:
    assert outcomes(sound, [sound.case(), sound.case()]) == {UNHARMED: 2}


def test_file_that_ends_early_is_refused_unless_only_free_pages_are_gone(sound: Sound) -> None:
    chance = random.Random(2)  # noqa: S311
    boundaries = range(0, len(sound.data), PAGE_BYTES)
    lengths = {max(0, boundary + shift) for boundary in boundaries for shift in (-1, 0, 1)}
    lengths |= {chance.randrange(len(sound.data)) for _ in range(100)}
    counts = outcomes(sound, [[length] for length in sorted(lengths)])
    assert counts[REFUSED] > len(lengths) * 0.9
    assert not counts[SET_ASIDE]


def test_relevant_bit_flips_in_meta_pages_are_detected(sound: Sound) -> None:
    chance = random.Random(3)  # noqa: S311
    cases = []
    for position in range(META_BYTES):
        masks = {1 << bit for bit in range(8)} if position >= META_BYTES - 16 else {0xFF, chance.randrange(1, 256)}
        cases += [sound.flip(page + position, mask) for page in (0, PAGE_BYTES) for mask in masks]
    counts = outcomes(sound, cases)
    assert counts[REFUSED] > len(cases) * 0.6
    assert not counts[SET_ASIDE]


def test_changed_transaction_number_does_not_restore_an_older_state(sound: Sound) -> None:
    cases = []
    for page in (0, PAGE_BYTES):
        at = page + META_BYTES - 8
        (number,) = struct.unpack_from("<Q", sound.data, at)
        for wrong in (*range(number + 5), number + 256, 1 << 40, 2**64 - 2, 2**64 - 1):
            if wrong != number:
                octets = struct.pack("<Q", wrong)
                cases.append(sound.case(*(item for shift in range(8) for item in (at + shift, octets[shift]))))
    assert outcomes(sound, cases) == {REFUSED: len(cases)}


@pytest.mark.slow
def test_flips_in_the_headers_of_pages_and_nodes(sound: Sound) -> None:
    chance = random.Random(4)  # noqa: S311
    cases = []
    for page in range(2 * PAGE_BYTES, len(sound.data), PAGE_BYTES):
        positions = [page + shift for shift in range(HEADER_BYTES)]
        for at in chance.sample(node_positions(sound.data, page), 2):
            positions += [page + at + shift for shift in range(NODE_BYTES)]
        positions += [page + HEADER_BYTES + shift for shift in range(4)]
        cases += [sound.flip(position, chance.randrange(1, 256)) for position in positions]
    counts = outcomes(sound, chance.sample(cases, min(len(cases), 1_600)))
    assert min(counts[REFUSED], counts[SET_ASIDE], counts[UNHARMED]) > 10


def node_positions(data: bytes, page: int) -> list[int]:
    """Return the positions of a page's nodes, or some positions if it has none."""
    lower = int.from_bytes(data[page + 12 : page + 14], "little")
    count = (lower - HEADER_BYTES) // 2
    if data[page + 10] in {1, 2} and 2 <= count < 1_000:
        return list(struct.unpack_from(f"<{count}H", data, page + HEADER_BYTES))
    return [100, 200]


def random_flips(sound: Sound, seed: int) -> Iterator[Case]:
    chance = random.Random(seed)  # noqa: S311
    while True:
        yield sound.flip(chance.randrange(len(sound.data)), chance.randrange(1, 256))


@pytest.mark.slow
def test_random_flips(sound: Sound) -> None:
    counts = outcomes(sound, list(islice(random_flips(sound, 5), 800)))
    assert min(counts[REFUSED], counts[SET_ASIDE], counts[UNHARMED]) > 10


@pytest.mark.slow
def test_many_random_flips(sound: Sound) -> None:
    outcomes(sound, list(islice(random_flips(sound, 6), 3_000)))


def sector_damage(sound: Sound, chance: random.Random) -> Case:
    """Return a sector of zeros, of noise, or of another place in the file."""
    sectors = len(sound.data) // 512
    start = chance.randrange(sectors) * 512
    other = chance.randrange(sectors) * 512
    octets = chance.choice([bytes(512), chance.randbytes(512), sound.data[other : other + 512]])
    return sound.case(*(item for shift in range(512) for item in (start + shift, octets[shift])))


def page_damage(sound: Sound, chance: random.Random) -> Case:
    """Return a page of zeros, or one that was written to the place of another."""
    pages = len(sound.data) // PAGE_BYTES
    start = chance.randrange(pages) * PAGE_BYTES
    other = chance.randrange(pages) * PAGE_BYTES
    octets = chance.choice([bytes(PAGE_BYTES), sound.data[other : other + PAGE_BYTES]])
    return sound.case(*(item for shift in range(PAGE_BYTES) for item in (start + shift, octets[shift])))


@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_lost_and_misplaced_sectors_and_pages(sound: Sound, count: int) -> None:
    chance = random.Random(count)  # noqa: S311
    cases = [sector_damage(sound, chance) for _ in range(count)]
    cases += [page_damage(sound, chance) for _ in range(count // 10)]
    outcomes(sound, cases)
