"""Sets of sequence numbers: ranges, and one mark for each partition of an entity."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple, Self

from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver

_ITEM: Final = r"-?\d+(?:\.\.-?\d+|:[A-Za-z0-9_-]+)?"
_TEXT: Final = re.compile(rf"{_ITEM}(?:,{_ITEM})*|")
_NUMBERS: Final = re.compile(r"(-?\d+)(?:\.\.(-?\d+)|:([A-Za-z0-9_-]+))?")

_MIN_TEXT: Final = 100
"""Minimum length of the text of ranges that are written as a bitmap: shorter texts stay readable."""


class Range(NamedTuple):
    """Consecutive numbers, both ends included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class SequenceRanges:
    """An immutable set of numbers; its ranges are sorted and neither overlap nor touch, so equal sets compare equal."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges: Final[tuple[Range, ...]] = tuple(_merge_ranges(ranges))

    @classmethod
    def of(cls, numbers: Iterable[int]) -> SequenceRanges:
        return cls((number, number) for number in numbers)

    @classmethod
    def parse(cls, text: str) -> SequenceRanges:
        """Parse the result of ``str``, such as ``1..20,23``. Raise ``ValueError`` for anything else."""
        if not isinstance(text, str) or _TEXT.fullmatch(text) is None:
            raise ValueError(f"expected sequence numbers such as 1..20,23, got {text!r:.100}")
        found: list[tuple[int, int]] = []
        for first, last, bitmap in _NUMBERS.findall(text):
            found += _bitmap_ranges(int(first), bitmap) if bitmap else [(int(first), int(last or first))]
        if any(first > last for first, last in found):
            raise ValueError(f"a range of {text!r:.100} ends before it starts")
        return cls(found)

    def __str__(self) -> str:
        """Return the ranges; many short ones with short gaps are a bitmap, such as ``1:VVVV``: base64, bit by bit."""
        return ",".join(_shorter(ranges) for ranges in _dense(self.ranges))

    def __repr__(self) -> str:
        return f"<SequenceRanges {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequenceRanges) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __reduce__(self) -> tuple[type[SequenceRanges], tuple[tuple[Range, ...]]]:
        return SequenceRanges, (self.ranges,)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __len__(self) -> int:
        return sum(run.size for run in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        index = bisect_right(self.ranges, number, key=lambda run: run.first)
        return index > 0 and number <= self.ranges[index - 1].last

    def __or__(self, other: SequenceRanges) -> SequenceRanges:
        return SequenceRanges((*self.ranges, *other.ranges))

    def __sub__(self, other: SequenceRanges) -> SequenceRanges:
        return SequenceRanges(_difference(self.ranges, other.ranges))

    def __and__(self, other: SequenceRanges) -> SequenceRanges:
        return self - (self - other)

    def since(self, number: int) -> SequenceRanges:
        """Return the numbers >= ``number``."""
        return SequenceRanges((max(first, number), last) for first, last in self.ranges if last >= number)

    def split(self, parts: int) -> list[SequenceRanges]:
        """Return ``parts`` sets of about the same size, in order, or fewer if there are fewer numbers."""
        count = len(self)
        bounds = sorted({count * part // parts for part in range(parts + 1)})
        return [self._between(start, end) for start, end in pairwise(bounds)]

    def _between(self, start: int, end: int) -> SequenceRanges:
        """Return the numbers from index ``start`` up to, but not including, index ``end``."""
        found: list[tuple[int, int]] = []
        position = 0
        for run in self.ranges:
            first, last = max(start - position, 0), min(end - position, run.size) - 1
            if first <= last:
                found.append((run.first + first, run.first + last))
            position += run.size
        return SequenceRanges(found)


def _range_text(run: Range) -> str:
    return f"{run.first}..{run.last}" if run.first < run.last else f"{run.first}"


def _dense(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Split ranges where a bitmap of the gap, with six numbers in a character, is longer than the range after it."""
    group: list[Range] = []
    for run in ranges:
        if group and (run.last - group[-1].last) // 6 > len(_range_text(run)):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _shorter(ranges: list[Range]) -> str:
    text = ",".join(map(_range_text, ranges))
    if len(text) < _MIN_TEXT:
        return text
    first = ranges[0].first
    bits = 0
    for run in ranges:
        bits |= ((1 << run.size) - 1) << (run.first - first)
    octets = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    bitmap = f"{first}:{urlsafe_b64encode(octets).decode().rstrip('=')}"
    return min(text, bitmap, key=len)


def _bitmap_ranges(first: int, bitmap: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a bitmap. Raise ``ValueError`` if it is none."""
    octets = urlsafe_b64decode(bitmap + "=" * (-len(bitmap) % 4))
    bits = f"{int.from_bytes(octets, 'little'):b}"[::-1]
    return ((first + run.start(), first + run.end() - 1) for run in _ONES.finditer(bits))


_ONES: Final = re.compile("1+")


def _merge_ranges(ranges: Iterable[tuple[int, int]]) -> Iterator[Range]:
    current: Range | None = None
    for first, last in sorted(ranges):
        if current is not None and first <= current.last + 1:
            current = Range(current.first, max(current.last, last))
            continue
        if current is not None:
            yield current
        current = Range(first, last)
    if current is not None:
        yield current


def _difference(ranges: Iterable[Range], others: tuple[Range, ...]) -> Iterator[tuple[int, int]]:
    """Yield the difference of ranges; both are sorted, so each of the others is visited once."""
    index = 0
    for first, last in ranges:
        start = first
        while index < len(others) and others[index].last < start:
            index += 1
        at = index
        while at < len(others) and others[at].first <= last:
            if start < others[at].first:
                yield start, others[at].first - 1
            start = max(start, others[at].last + 1)
            at += 1
        if start <= last:
            yield start, last


NO_NUMBERS: Final = SequenceRanges()

_PARTITION_SHIFT: Final = 48
"""The upper 16 bits of a sequence number are the partition that issued it. Each partition has its own counter, so a
newer message of a lower partition has a smaller number than an older one of a higher partition."""


def partition_of(number: int) -> int:
    """Return the partition that issued a sequence number; 0 for all numbers of an entity without partitions."""
    return number >> _PARTITION_SHIFT


def start_of(partition: int) -> int:
    """Return the number before the first one that a partition issues."""
    return partition << _PARTITION_SHIFT


@dataclass(frozen=True, slots=True)
class SequenceMarks:
    """One mark for each partition that was reached. Contains every number up to the mark of its partition."""

    last: Mapping[int, int] = field(default_factory=dict)
    """The last number, by partition. A partition without messages has none."""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Mark the largest number of each partition."""
        ordered = sorted(number for number in numbers if number > start_of(partition_of(number)))
        return cls({partition_of(number): number for number in ordered})

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number <= self.end(partition_of(number))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.last.values()))

    def __bool__(self) -> bool:
        return bool(self.last)

    @property
    def is_partitioned(self) -> bool:
        """True if there are marks of several partitions."""
        return len(self.last) > 1

    def end(self, partition: int) -> int:
        """Return the mark of a partition, or the number before its first one."""
        return self.last.get(partition, start_of(partition))

    def advanced(self, numbers: Iterable[int]) -> SequenceMarks:
        """Return these marks, advanced to larger numbers."""
        return SequenceMarks.of((*self, *numbers))

    def since(self, start: SequenceMarks) -> SequenceRanges:
        """Return the numbers after the marks of ``start``, up to these."""
        after = ((start.end(partition) + 1, last) for partition, last in self.last.items())
        return SequenceRanges((first, last) for first, last in after if first <= last)

    @property
    def ranges(self) -> SequenceRanges:
        """All numbers up to the marks."""
        return self.since(SequenceMarks())


_PAGE: Final = 500
_FIRST_PAGE: Final = 100
"""Number of messages with which a search starts."""


# Search for sequence numbers of an entity by peeking few messages.
#
# A peek returns messages in the order of their numbers, and continues from one partition to the next.


async def first_message(receiver: MessageReceiver, least: int) -> ReceivedMessage | None:
    """Return the first message with a number >= ``least``, in any state."""
    found = await receiver.peek(1, least)
    return found[0] if found else None


async def first_number(receiver: MessageReceiver, least: int) -> int | None:
    """Return the number of the first message >= ``least``, in any state."""
    found = await first_message(receiver, least)
    return None if found is None else found.sequence_number


def _any(_message: ReceivedMessage) -> bool:
    return True


async def last_number(
    receiver: MessageReceiver,
    least: int = 0,
    fits: Callable[[ReceivedMessage], bool] = _any,
    *,
    skips_scheduled: bool = False,
) -> int:
    """Return the number of the last fitting message after ``least`` in its partition, or ``least`` if there is none.

    ``fits`` must hold for all messages up to some number, and for none after it. The service does not report the last
    number of an entity, but one peek shows whether there is a message after a number: so the search starts with a page,
    beyond which most entities have nothing, doubles its steps, and then bisects. ``skips_scheduled`` searches only the
    messages that do not wait for their scheduled time.
    """
    partition = partition_of(least)
    first = first_enqueued if skips_scheduled else first_message

    async def next_fitting(number: int) -> int | None:
        found = await first(receiver, number)
        return found.sequence_number if found is not None and belongs(found) else None

    def belongs(message: ReceivedMessage) -> bool:
        return partition_of(message.sequence_number) == partition and fits(message)

    page = await receiver.peek(_FIRST_PAGE, least + 1)
    last = least
    for message in page:
        if skips_scheduled and message.state is MessageState.SCHEDULED:
            continue
        if not belongs(message):
            return last
        last = message.sequence_number
    # A short page is not always the end: the size of a response is limited, too.
    step = 1 if len(page) < _FIRST_PAGE else _FIRST_PAGE
    while page and (found := await next_fitting(last + step)) is not None:
        last, step = found, 2 * step
    beyond = last + step
    while beyond - last > 1:
        middle = (last + beyond) // 2
        found = await next_fitting(middle)
        if found is None:
            beyond = middle
        else:
            last = found
    return last


async def last_numbers(receiver: MessageReceiver) -> SequenceMarks:
    """Return the number of the last message of each partition that has any."""
    found: list[int] = []
    first = await first_number(receiver, 1)
    while first is not None:
        found.append(await last_number(receiver, first))
        first = await first_number(receiver, start_of(partition_of(first) + 1) + 1)
    return SequenceMarks.of(found)


async def first_enqueued(receiver: MessageReceiver, least: int) -> ReceivedMessage | None:
    """Return the first message with a number >= ``least`` that does not wait for its scheduled time."""
    count = 1
    while page := await receiver.peek(count, least):
        for message in page:
            if message.state is not MessageState.SCHEDULED:
                return message
        least, count = page[-1].sequence_number + 1, _PAGE
    return None


async def last_numbers_before(receiver: MessageReceiver, moment: datetime) -> SequenceMarks:
    """Return the last number of each partition that was enqueued before a time.

    Scheduled messages are passed over: they get another number when they are enqueued.
    """

    def is_before(message: ReceivedMessage) -> bool:
        return message.enqueued_time < moment

    found: list[int] = []
    first = await first_number(receiver, 1)
    while first is not None:
        start = start_of(partition_of(first))
        found.append(await last_number(receiver, start, is_before, skips_scheduled=True))
        first = await first_number(receiver, start_of(partition_of(first) + 1) + 1)
    return SequenceMarks.of(found)


async def last_numbers_of(factory: MessagingFactory, path: str) -> SequenceMarks:
    """Return the last numbers of an entity, with a temporary receiver."""
    receiver = await factory.create_message_receiver(path)
    try:
        return await last_numbers(receiver)
    finally:
        await receiver.close()
