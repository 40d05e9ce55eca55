"""Helpers for tests of the client with a real namespace: separate entities, and checks for leaks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, Final
from uuid import uuid4

from pairbus.broker import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.client.factory import MessagingFactory
from pairbus.client.settings import MessagingFactorySettings
from pairbus.testing import RunningNamespace

DEADLINE_S: Final = 60.0


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Run to the end, and see that no task and no transport is left; what is not closed warns when it is collected."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scenario
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks are left behind: {left}"

    gc.freeze()  # objects created before are irrelevant, and take long to collect
    try:
        asyncio.run(bounded())
        gc.collect()
    finally:
        gc.unfreeze()


def make_queue(namespace: RunningNamespace, **description: Any) -> str:
    """Create a queue for one test; return its path."""
    path = f"queue-{uuid4().hex}"
    namespace.call(lambda host: host.use_namespace().create_queue(path, QueueDescription(**description), host.now_ms()))
    return path


def make_topic(namespace: RunningNamespace, *subscriptions: str, **description: Any) -> str:
    """Create a topic with subscriptions for one test; return its path."""
    path = f"topic-{uuid4().hex}"
    namespace.call(lambda host: host.use_namespace().create_topic(path, TopicDescription(), host.now_ms()))
    for name in subscriptions:
        settings = SubscriptionDescription(**description)
        namespace.call(
            lambda host, name=name, settings=settings: host.use_namespace().create_subscription(  # type: ignore[misc]
                path, name, settings, host.now_ms()
            )
        )
    return path


def factory_of(namespace: RunningNamespace, **settings: Any) -> MessagingFactory:
    return MessagingFactory.from_connection_string(namespace.connection_string, MessagingFactorySettings(**settings))
