"""Which messages were received after one that had been sent later.

The order of sending is that of acceptance: by the primary, or by the backlog. Of two that the same namespace has
accepted, its ordinals say which was first; of two that it has not, the time does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import coalesce, col, greatest, lit, unix_millis, when
from pyspark.sql.functions import max as greatest_of

_HIGHEST: Final = ("direct_ordinal", "direct_at", "home_ordinal", "home_at")
"""The latest so far: of what the primary has accepted from senders, and of what has come home."""

STRETCHES: Final = 256


def overtaken(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Those of ``rows`` that were received after a later one with the same ``by``.

    Rows have ``received_at``, ``received_ordinal``, ``is_home``, and ``sent_ordinal`` and ``sent_at``, which are of
    their acceptance. The clock of a namespace does not go back.
    """
    return _latest(rows, by).where(_is_late())


def overtaken_in_stretches(rows: DataFrame, by: Sequence[str], span: timedelta) -> DataFrame:
    """The same where many rows have the same ``by``: stretches of time are looked at side by side.

    What was the latest before each stretch is found first, from the latest in each of those before it.
    """
    width_ms = max(1, -(-span // timedelta(milliseconds=STRETCHES)))
    placed = rows.withColumn("stretch", (unix_millis("received_at") / width_ms).cast("long"))
    tops = _with_sent(placed).groupBy(*by, "stretch").agg(*(greatest_of(name).alias(name) for name in _HIGHEST))
    earlier = Window.partitionBy(*by).orderBy("stretch").rowsBetween(Window.unboundedPreceding, -1)
    before = tops.select(
        *by, "stretch", *(greatest_of(name).over(earlier).alias(f"before_{name}") for name in _HIGHEST)
    )
    within = _latest(placed, [*by, "stretch"]).join(before, [*by, "stretch"])
    latest = {f"latest_{name}": greatest(f"latest_{name}", f"before_{name}") for name in _HIGHEST}
    return within.withColumns(latest).where(_is_late())


def _with_sent(rows: DataFrame) -> DataFrame:
    return rows.withColumns({name: when(_is_of(name), col(f"sent_{name.split('_')[1]}")) for name in _HIGHEST})


def _is_of(name: str) -> Column:
    return col("is_home") if name.startswith("home") else ~col("is_home")


def _latest(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    so_far = (
        Window.partitionBy(*by).orderBy("received_at", "received_ordinal").rowsBetween(Window.unboundedPreceding, -1)
    )
    sent = _with_sent(rows)
    return sent.select("*", *(greatest_of(name).over(so_far).alias(f"latest_{name}") for name in _HIGHEST))


def _is_late() -> Column:
    at_home = (col("latest_home_ordinal") > col("sent_ordinal"), col("latest_direct_at") > col("sent_at"))
    direct = (col("latest_direct_ordinal") > col("sent_ordinal"), col("latest_home_at") > col("sent_at"))
    return when(col("is_home"), _either(*at_home)).otherwise(_either(*direct))


def _either(first: Column, second: Column) -> Column:
    return coalesce(first, lit(False)) | coalesce(second, lit(False))
