"""An application that ends without having closed its syphon on Spark.

Run as ``python -m tests.jobs.test_syphon_abandoned`` it is that application.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from typing import Final

import pytest

from pairbus.client.factory import MessagingFactory
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.pairing.syphon import SyphonContext, SyphonSettings
from pairbus.testing import running_namespace
from tests.docs.snippets import ROOT
from tests.jobs.processes import kill_session, members
from tests.jobs.sent_messages import SentMessages, Strings, backlog_queues, make_backlog, make_queues
from tests.waiting import eventually_async

START_S: Final = 240.0
END_S: Final = 120.0
PRIMARY: Final = "SYPHON_PRIMARY"
SECONDARY: Final = "SYPHON_SECONDARY"
MESSAGES: Final = 3
HOME: Final = "home\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_application_that_does_not_close_its_syphon_exits() -> None:
    with running_namespace("contoso") as primary, running_namespace("fabrikam") as secondary:
        asyncio.run(load(Strings(primary=primary.connection_string, secondary=secondary.connection_string)))
        variables = {PRIMARY: primary.connection_string, SECONDARY: secondary.connection_string}
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **variables, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == HOME
            assert process.wait(END_S) == 0
            asyncio.run(eventually_async(lambda: not members(process.pid), END_S))
        finally:
            kill_session(process.pid)
            process.communicate()


async def load(strings: Strings) -> None:
    queues = await make_backlog(strings.secondary, 1)
    destinations = await make_queues(strings.primary, "orders", 1)
    async with strings.factories() as (_, secondary):
        await SentMessages(destinations, queues).load(secondary, MESSAGES)


async def application() -> None:
    """Bring a backlog home, and forget about it."""
    context = SyphonContext(
        primary=MessagingFactory.from_connection_string(os.environ[PRIMARY]),
        secondary=MessagingFactory.from_connection_string(os.environ[SECONDARY]),
        backlog_queues=backlog_queues(1),
        settings=SyphonSettings(long_poll=timedelta(minutes=15)),
        is_held=lambda _: False,
        publish=lambda _: None,
    )
    syphon = SparkSyphon(context, SparkSyphonSettings(master="local[1]"))
    await syphon.start()
    await eventually_async(lambda: syphon.status.syphoned == MESSAGES, START_S)
    print(HOME, end="", flush=True)


if __name__ == "__main__":
    asyncio.run(application())
