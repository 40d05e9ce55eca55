"""From when to when a ledger is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from pyspark.sql import Column
from pyspark.sql.functions import col, lit

OLDEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Nothing in a ledger is older; and from the oldest time that there is, nothing could be taken off."""

_INSTANT: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time range, with its start and without its end; either may be open."""

    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        for name, time in (("start", self.start), ("end", self.end)):
            if time is not None and time.tzinfo is None:
                raise ValueError(f"the {name} of the time range, {time}, needs a time zone")
        if self.start is not None and self.end is not None and self.start > self.end:
            raise ValueError(f"the time range ends ({self.end}) before it starts ({self.start})")

    @property
    def first_hour(self) -> tuple[date, int] | None:
        """The partition of the start."""
        return None if self.start is None else _hour_of(self.start)

    @property
    def last_hour(self) -> tuple[date, int] | None:
        """The partition of the last instant."""
        return None if self.end is None else _hour_of(max(self.end, OLDEST) - _INSTANT)

    def has_hour(self, day: date, hour: int) -> bool:
        """Whether a partition may hold rows of this range."""
        first, last = self.first_hour, self.last_hour
        return (first is None or (day, hour) >= first) and (last is None or (day, hour) <= last)

    def partitions(self) -> Column:
        """The same as a condition on the columns day and hour, by which Spark leaves out directories."""
        condition = lit(True)
        if self.first_hour is not None:
            day, hour = self.first_hour
            condition &= (col("day") > day) | ((col("day") == day) & (col("hour") >= hour))
        if self.last_hour is not None:
            day, hour = self.last_hour
            condition &= (col("day") < day) | ((col("day") == day) & (col("hour") <= hour))
        return condition

    def rows(self) -> Column:
        """The range itself, as a condition on the column at."""
        condition = lit(True)
        if self.start is not None:
            condition &= col("at") >= self.start
        if self.end is not None:
            condition &= col("at") < self.end
        return condition


def _hour_of(time: datetime) -> tuple[date, int]:
    there = time.astimezone(UTC)
    return there.date(), there.hour
