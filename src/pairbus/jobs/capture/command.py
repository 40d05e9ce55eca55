"""A capture as a command: it runs until a signal stops it, or once, and ends with a code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pairbus.client.errors import MessagingError
from pairbus.dialect.connection_string import parse_connection_string
from pairbus.jobs.capture.capture import Capture
from pairbus.jobs.capture.captured_file import CapturedFile
from pairbus.jobs.capture.directory import CaptureDirectory
from pairbus.jobs.capture.errors import CaptureError, QueryFailedError
from pairbus.jobs.capture.lines import (
    ended_line,
    file_line,
    retry_line,
    spark_line,
    starting_line,
    stopping_line,
    waiting_line,
)
from pairbus.jobs.capture.order import CaptureOrder
from pairbus.jobs.capture.query import now_ms, start_query
from pairbus.jobs.capture.stock import Stock, are_gone
from pairbus.jobs.capture.stop_signals import stopped_by_signals
from pairbus.jobs.ending import FAILED, WAITING, Ending
from pairbus.jobs.lines import Teller, told_logs
from pairbus.jobs.reason import reason_of
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.errors import SparkOptionError
from pairbus.spark.offset import Portion
from pairbus.spark.session import LIGHT, ensured_session

DONE: Final = 0
"""All is captured that was there, or it was told to stop."""

_TICK_S: Final = 0.5
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_STEADY_S: Final = 60.0
"""A query that has run for so long did not fail because of what it was asked."""

_REMOVAL_S: Final = 15.0


def run_capture(order: CaptureOrder, teller: Teller) -> Ending:
    """Do what was ordered. The first signal has it finish what is under way, the second one ends it as it is."""
    with told_logs(teller):
        try:
            with stopped_by_signals() as stopped:
                return CaptureCommand(order, teller).run(stopped)
        except (MessagingError, CaptureError, SparkOptionError) as error:
            return Ending(code=FAILED, reason=" ".join(str(error).split()))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told in one line, and the command is over)
            return Ending(code=FAILED, reason=reason_of(error))


def _address_of(source: ConnectionReference) -> str:
    """Where a namespace is; keys come and go."""
    found = parse_connection_string(source.resolve())
    return f"{found.host}:{found.port}".lower()


class CaptureCommand:
    """Has a directory, a Spark session and a query, and closes windows in time while nothing comes."""

    def __init__(self, order: CaptureOrder, teller: Teller) -> None:
        self._order = order
        self._teller = teller
        self._files = 0

    def run(self, stopped: Event) -> Ending:
        """Capture until ``stopped``, or once. Raises what makes that impossible."""
        order = self._order
        directory = CaptureDirectory(order.to)
        try:
            self._teller.tell(starting_line(order))
            capture = Capture(directory, order.limits, self._note, _address_of(order.source))
            checkpoint = order.checkpoint or str(directory.checkpoint)
            stock = asyncio.run(Stock.take(order.source.resolve(), order.entities, keep=order.keep))
            waiting = (
                self._once(capture, stopped, checkpoint, stock)
                if order.once
                else self._run(capture, stopped, checkpoint)
            )
            capture.close_all(now_ms())
            self._teller.tell(ended_line(capture.messages, self._files))
        finally:
            directory.close()
        return self._ending(waiting)

    def _note(self, file: CapturedFile) -> None:
        self._files += 1
        self._teller.tell(file_line(file))

    def _ending(self, waiting: Mapping[str, int]) -> Ending:
        if not waiting:
            return Ending(code=DONE)
        for entity, messages in waiting.items():
            self._teller.tell(waiting_line(entity, messages))
        total = sum(waiting.values())
        return Ending(code=WAITING, reason=f"{total:,} messages wait that somebody has locked; capture once more")

    def _run(self, capture: Capture, stopped: Event, checkpoint: str) -> Mapping[str, int]:
        """Go on for ever, also when a query fails that has worked before."""
        with self._session() as spark:
            pause_s = _FIRST_PAUSE_S
            while not stopped.is_set():
                began_s, before = time.monotonic(), capture.messages
                error = self._attend(start_query(spark, self._order, capture, checkpoint), capture, stopped)
                if stopped.is_set():
                    break
                reason = "it has ended" if error is None else reason_of(error)
                has_worked = capture.messages > before or time.monotonic() - began_s >= _STEADY_S
                if not has_worked and pause_s == _FIRST_PAUSE_S:
                    raise QueryFailedError(reason)
                self._teller.tell(retry_line(reason))
                pause_s = 2 * _FIRST_PAUSE_S if has_worked else min(2 * pause_s, _LONGEST_PAUSE_S)
                stopped.wait(pause_s)
        return {}

    def _once(self, capture: Capture, stopped: Event, checkpoint: str, stock: Stock) -> Mapping[str, int]:
        """Capture what is there now; tells what is left of it. Without any messages Spark is not even started."""
        order, connection = self._order, self._order.source.resolve()
        if order.keep or asyncio.run(stock.waiting(connection, most=1)):
            with self._session() as spark:
                error = self._attend(start_query(spark, order, capture, checkpoint), capture, stopped)
            if error is not None and not stopped.is_set():
                raise QueryFailedError(reason_of(error))
        return {} if order.keep or stopped.is_set() else asyncio.run(stock.waiting(connection))

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        master = self._order.master
        self._teller.tell(spark_line(master))
        config = LIGHT if master.startswith("local") else {}
        with ensured_session(master, app_name="pairbus capture", config=config) as spark:
            yield spark

    def _attend(self, query: StreamingQuery, capture: Capture, stopped: Event) -> Exception | None:
        """Wait until a query ends, or is to end; gives the error that it has ended with."""
        try:
            while query.isActive and not stopped.wait(_TICK_S):
                capture.close_due(now_ms())
            if stopped.is_set():
                self._teller.tell(stopping_line())
                self._wait_for_removal(query, capture)
            return query.exception()
        finally:
            with suppress(PySparkException, Py4JError, OSError):  # Java may be gone
                query.stop()

    def _wait_for_removal(self, query: StreamingQuery, capture: Capture) -> None:
        """What the last batch held is removed when Spark asks for the next one: else others would get it, too."""
        if self._order.keep or not capture.messages:
            return
        ends_s = time.monotonic() + _REMOVAL_S
        with (
            capture.at_rest() as book,
            suppress(MessagingError, PySparkException, Py4JError),
        ):  # the next run removes it
            while query.isActive and time.monotonic() < ends_s and not self._are_gone(book.taken):
                time.sleep(_TICK_S)

    def _are_gone(self, portions: Mapping[str, Portion]) -> bool:
        return asyncio.run(are_gone(self._order.source.resolve(), portions))
