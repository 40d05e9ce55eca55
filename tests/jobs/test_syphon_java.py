"""Syphons whose Java dies, and several of them in one process (D2, C17)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pairbus import MessagingFactory
from pairbus.jobs.syphon.settings import ConnectionFiles, SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.pairing.syphon import SyphonContext, SyphonSettings
from pairbus.spark.connections import ConnectionReference
from pairbus.spark.session import ensured_session, is_alive
from pairbus.testing import running_namespace
from tests.jobs.sent_messages import SentMessages, Strings, make_backlog, make_queues
from tests.waiting import eventually_async


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 500))


def context(home: MessagingFactory, away: MessagingFactory, queues: tuple[str, ...]) -> SyphonContext:
    return SyphonContext(
        primary=home,
        secondary=away,
        backlog_queues=queues,
        settings=SyphonSettings(long_poll=timedelta(seconds=2)),
        is_held=lambda _: False,
        publish=lambda _: None,
    )


def java_process() -> int:
    gateway = SparkContext._gateway
    assert gateway is not None
    pid: int = gateway.proc.pid
    return pid


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d2_syphon_outlives_its_java_and_leaves_nothing_behind() -> None:
    with running_namespace("contoso") as primary, running_namespace("fabrikam") as secondary:
        strings = Strings(primary=primary.connection_string, secondary=secondary.connection_string)

        async def scenario() -> None:
            destinations = await make_queues(strings.primary, "orders", 2)
            queues = await make_backlog(strings.secondary, 2)
            sent_messages = SentMessages(destinations, queues)
            async with strings.factories() as (home, away):
                syphon = SparkSyphon(context(home, away, queues), SparkSyphonSettings(master="local[2]"))
                await syphon.start()
                await sent_messages.load(away, 50)
                await eventually_async(lambda: syphon.status.syphoned >= 50)
                os.kill(java_process(), signal.SIGKILL)
                await sent_messages.load(away, 50)

                async def is_home() -> bool:
                    return not (await sent_messages.arrivals(home)).lost

                await eventually_async(is_home)
                await eventually_async(lambda: syphon.status.syphoned >= 100)
                (await sent_messages.arrivals(home)).assert_complete()
                before = syphon.uncounted_batches
                await sent_messages.load(away, 4_000)
                await eventually_async(lambda: not syphon._is_idle.is_set())  # a batch is under way
                os.kill(java_process(), signal.SIGKILL)
                await syphon.finish()
                assert syphon.uncounted_batches == before + 1
                await syphon.close()
                assert syphon._supervision is not None
                assert syphon._supervision.done()
                assert syphon._files._directory is None

        play(scenario())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d2_last_of_several_syphons_ends_the_session() -> None:
    with running_namespace("contoso") as primary, running_namespace("fabrikam") as secondary:
        strings = Strings(primary=primary.connection_string, secondary=secondary.connection_string)

        async def scenario() -> None:
            destinations = await make_queues(strings.primary, "orders", 1)
            queues = await make_backlog(strings.secondary, 2, timedelta(minutes=1))
            sent_messages = SentMessages(destinations, queues[1:])
            async with strings.factories() as (home, away):
                settings = SparkSyphonSettings(master="local[2]")
                first = SparkSyphon(context(home, away, queues[:1]), settings)
                second = SparkSyphon(context(home, away, queues[1:]), settings)
                await first.start()
                await second.start()
                session = SparkSession.active()
                await first.close()
                assert is_alive(session)
                await sent_messages.load(away, 20)
                await eventually_async(lambda: second.status.syphoned == 20)
                await second.close()
                assert not is_alive(session)

        play(scenario())


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_session_of_another_owner_is_not_stopped() -> None:
    with ensured_session("local[1]") as outer:
        with ensured_session("local[1]") as inner:
            assert inner is outer
        assert is_alive(outer)
    assert not is_alive(outer)


def test_connection_strings_for_other_processes_are_readable_and_go_with_this_one() -> None:
    text = "Endpoint=sb://localhost:1;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    files = ConnectionFiles()
    reference = files.reference(MessagingFactory.from_connection_string(text), "primary")
    assert "secret" not in reference
    assert "c2VjcmV0" not in reference
    assert ConnectionReference.parse(reference).resolve() == text
    assert files.reference(MessagingFactory.from_connection_string(text), "primary") == reference
    path = Path(reference.removeprefix("file:"))
    assert path.exists()
    files.close()
    assert not path.exists()
