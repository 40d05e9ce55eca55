"""What is in the side buffer, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pairbus.server.side_buffer.tally import Tally


class SideBufferMetrics(Collector):
    """The buffer's own numbers, read when someone asks."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        tally = self._tally
        yield GaugeMetricFamily(
            "pairbus_side_buffer_messages", "Messages in the side buffer that are not merged yet", value=tally.held
        )
        yield CounterMetricFamily(
            "pairbus_side_buffer_taken", "Messages taken into the side buffer instead of the store", value=tally.taken
        )
        yield CounterMetricFamily(
            "pairbus_side_buffer_merged", "Messages brought from the side buffer into the store", value=tally.merged
        )
        yield CounterMetricFamily(
            "pairbus_side_buffer_set_aside",
            "Messages of the side buffer that could not be merged, and damaged places in it",
            value=tally.set_aside,
        )
