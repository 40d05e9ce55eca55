"""When messages were diverted, and when the last of them was home."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of
from pyspark.sql.functions import unix_millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversion:
    """The outage as the messages have seen it, by the primary's clock; ``None`` for what has not happened."""

    first_at: datetime | None
    last_at: datetime | None
    last_home_at: datetime | None


def diversion_of(diverted: DataFrame, homecomings: DataFrame, correction: timedelta) -> Diversion:
    """Look at messages that were diverted, and at those of them that came home."""
    away = unix_millis("diverted_at")
    (went,) = diverted.agg(least_of(away).alias("first"), greatest_of(away).alias("last")).collect()
    (came,) = homecomings.agg(greatest_of(unix_millis("home_at")).alias("last")).collect()
    return Diversion(
        first_at=_time(went["first"], correction),
        last_at=_time(went["last"], correction),
        last_home_at=_time(came["last"]),
    )


def _time(ms: int | None, correction: timedelta = timedelta()) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC) + correction
