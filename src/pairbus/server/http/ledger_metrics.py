"""How the ledger is doing, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pairbus.ledger import LIVES, OPERATIONS, LedgerStatus


class LedgerMetrics(Collector):
    """The ledger's own numbers, read when someone asks."""

    def __init__(self, status: Callable[[], LedgerStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        rows = CounterMetricFamily("pairbus_ledger_rows", "Rows of the ledger that are on disk", labels=["table"])
        rows.add_metric([OPERATIONS], status.operations_written)
        rows.add_metric([LIVES], status.lives_written)
        yield rows
        yield CounterMetricFamily("pairbus_ledger_files", "Parquet files that are complete", value=status.files_closed)
        yield GaugeMetricFamily(
            "pairbus_ledger_events_waiting",
            "Events of messages that are not on disk yet",
            value=status.lives_waiting,
        )
        yield CounterMetricFamily(
            "pairbus_ledger_events_missed", "Events that there was no room for", value=status.lives_missed
        )
        yield GaugeMetricFamily(
            "pairbus_ledger_failing",
            "1 while the ledger cannot be written; the log says why",
            value=status.error is not None,
        )
