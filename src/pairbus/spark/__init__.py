"""Spark data source for Service Bus entities: tables and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.spark.errors import show_reasons_last

if TYPE_CHECKING:
    from pairbus.spark.settlement import Outcome, SettlementCounts, settle

__all__ = ["Outcome", "SettlementCounts", "settle"]

show_reasons_last()


def __getattr__(name: str) -> Any:
    """Import PySpark only when it is needed: some modules of this package are used without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pairbus.spark import settlement  # noqa: PLC0415

    return getattr(settlement, name)
