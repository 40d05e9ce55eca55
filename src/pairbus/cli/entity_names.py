"""The names of entities, as a person types them, with what a shell can complete of them."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import typer

from pairbus.cli.connection import CONNECTION_VARIABLE, USAGE, Connection, one_line, read_connection
from pairbus.cli.failure import fail
from pairbus.client.errors import EntityNotFoundError, InvalidRequestError, MessagingError
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.validation import check_path
from pairbus.dialect.entity_path import SubQueue, split_entity_path
from pairbus.pairing.backlog import in_groups

_LOOK: Final = "pairbus entities list shows what there is"
_PATIENCE_S: Final = 1.0
"""Somebody has pressed a key, and waits."""


def entity_path(given: str | None, connection: Connection, *, dead_letters: bool = False) -> str:
    """Where to send to or receive from; ends the command if that is nowhere."""
    path = connection.entity_path if given is None else given
    if path is None:
        fail("say which queue, topic or subscription: the connection string has no EntityPath", USAGE)
    try:
        check_path("the entity", path)
    except ValueError as error:
        fail(str(error), USAGE)
    found = split_entity_path(path)
    if found is None or found.management:
        fail(f"'{path}' is no entity; those are QUEUE, TOPIC and TOPIC/Subscriptions/NAME", USAGE)
    if not dead_letters:
        return str(found)
    return str(replace(found, sub_queue=found.sub_queue or SubQueue.DEAD_LETTER))


def explaining(path: str) -> Callable[[MessagingError], str]:
    """Tells why nothing came of it, in the words of whoever has typed the path."""
    return partial(_explained, path)


def _explained(path: str, error: MessagingError) -> str:
    if isinstance(error, EntityNotFoundError):
        return not_there(path)
    if isinstance(error, InvalidRequestError):
        if "requires sessions" in error.message:
            return f"'{path}' requires sessions: say which with --session ID, or take the next with --next-session"
        if "is a topic" in error.message:
            return is_topic(path, "receive from")
    return one_line(error)


def is_topic(path: str, verb: str) -> str:
    return f"'{path}' is a topic: {verb} one of its subscriptions, {path}/Subscriptions/NAME"


def not_there(path: str) -> str:
    """With how subscriptions are named, where one may be meant."""
    found = split_entity_path(path)
    if found is not None and found.subscription is not None:
        return f"there is no subscription '{replace(found, sub_queue=None)}'; {_LOOK}"
    name = path if found is None else found.entity
    topic, slash, rest = name.rpartition("/")
    meant = f"; if a subscription is meant, that is {topic}/Subscriptions/{rest}" if slash else ""
    return f"there is neither a queue nor a topic '{name}'{meant}; {_LOOK}"


# Completion.


def complete_receiving(context: typer.Context, incomplete: str) -> list[str]:
    """Queues and subscriptions."""
    return _complete(context, incomplete, topics=False, subscriptions=True)


def complete_sending(context: typer.Context, incomplete: str) -> list[str]:
    """Queues and topics."""
    return _complete(context, incomplete, topics=True, subscriptions=False)


def complete_any(context: typer.Context, incomplete: str) -> list[str]:
    """Whatever there is."""
    return _complete(context, incomplete, topics=True, subscriptions=True)


def _complete(context: typer.Context, incomplete: str, *, topics: bool, subscriptions: bool) -> list[str]:
    """What begins so; nothing if the namespace does not tell in time, whatever the reason is."""
    given: Any = context.params.get("connection") or os.environ.get(CONNECTION_VARIABLE)
    if not given:
        return []
    nowhere = io.StringIO()  # what is wrong is told when the command is run
    with suppress(MessagingError, OSError, TimeoutError, typer.Exit), redirect_stderr(nowhere):
        connection = read_connection(given)
        names = asyncio.run(asyncio.wait_for(_names(connection, topics, subscriptions), _PATIENCE_S))
        return sorted(name for name in names if name.startswith(incomplete))
    return []


async def _names(connection: Connection, topics: bool, subscriptions: bool) -> list[str]:
    async with connection.manager() as manager:
        queues, all_topics = await asyncio.gather(manager.get_queues(), manager.get_topics())
        names = [queue.path for queue in queues]
        paths = [topic.path for topic in all_topics]
        if topics:
            names += paths
        if subscriptions:
            names += await subscription_paths(manager, paths)
        return names


async def subscription_paths(manager: NamespaceManager, topics: list[str]) -> list[str]:
    async def of_topic(topic: str) -> list[str]:
        return [f"{topic}/Subscriptions/{one.name}" for one in await manager.get_subscriptions(topic)]

    return [path for paths in await in_groups(of_topic, topics) for path in paths]


SendingArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="ENTITY",
        show_default=False,
        autocompletion=complete_sending,
        help="a queue or a topic; else the one that the connection string names",
    ),
]
ReceivingArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="ENTITY",
        show_default=False,
        autocompletion=complete_receiving,
        help="a queue, or TOPIC/Subscriptions/NAME; else the one that the connection string names",
    ),
]
EntityArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        show_default=False,
        autocompletion=complete_any,
        help="a queue, a topic, or TOPIC/Subscriptions/NAME",
    ),
]
