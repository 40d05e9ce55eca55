"""Arguments that several commands share: durations, times, and names of entities."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import typer

from pairbus.cli.connection import CONNECTION_VARIABLE, NamedNamespace, one_line, read_connection
from pairbus.cli.failure import USAGE, fail
from pairbus.client.errors import EntityNotFoundError, InvalidRequestError, MessagingCommunicationError, MessagingError
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.validation import check_path, shown
from pairbus.dialect.paths import SubQueue, split_entity_path
from pairbus.pairing.backlog import in_groups
from pairbus.spark.added_settings import add_packages, add_settings
from pairbus.spark.options import duration

HERE: Final = "local[*]"
"""The Spark master in this process."""

NEVER: Final = "never"
_LONGEST: Final = timedelta(days=36_500)
_FORM: Final = duration(timedelta(), _LONGEST, "a number and a unit, such as 500ms, 30s, 15m, 1h or 14d")


_UNITS: Final = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}


def duration_text(length: timedelta) -> str:
    """Return a duration as a user types it: 14d, 90s, never."""
    if length == timedelta.max:
        return NEVER
    for unit, size in _UNITS.items():
        if length and not length % size:
            return f"{length // size}{unit}"
    return f"{length.total_seconds():g}s"


def read_duration(option: str, text: str, *, least: timedelta = timedelta()) -> timedelta:
    """Return the duration that an option was given; end the command if it is invalid."""
    try:
        length: timedelta = _FORM.read(text.strip())
    except ValueError:
        fail(f"{option} must be {_FORM.text}, got {shown(text)}", USAGE)
    if length < least:
        fail(f"{option} must be at least {least.total_seconds():g} s, got {shown(text)}", USAGE)
    return length


def read_lifetime(option: str, text: str) -> timedelta:
    """Return the duration that an option was given, ``timedelta.max`` for "never"; end the command if it is invalid."""
    return timedelta.max if text.strip().lower() == NEVER else read_duration(option, text)


def read_utc(option: str, text: str | None) -> datetime | None:
    """Return the time that an option was given, in UTC as in ledgers; end the command if it is invalid."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text.strip())
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (OverflowError, ValueError):
        fail(f"{option} must be a time in UTC such as 2026-03-01 or 2026-03-01T12:00, got {shown(text)}", USAGE)


def read_moment(option: str, text: str, now: datetime) -> datetime:
    """Return a time that was given as such or as a duration from now; without a zone it is local time."""
    with suppress(ValueError):
        length: timedelta = _FORM.read(text.strip())
        return now + length
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (OverflowError, ValueError):
        fail(f"{option} must be a time such as 2030-01-02T03:04:05Z, or {_FORM.text}, got {shown(text)}", USAGE)


_LIST_ADVICE: Final = "run pairbus entities list to see the entities"
_PATIENCE_S: Final = 1.0
"""The time limit of a completion: the user has pressed a key and is waiting."""


def entity_path(given: str | None, connection: NamedNamespace, *, dead_letters: bool = False) -> str:
    """Return the path to send to or receive from; end the command if it is missing or invalid."""
    path = connection.entity_path if given is None else given
    if path is None:
        fail("name a queue, topic or subscription: the connection string has no EntityPath", USAGE)
    try:
        check_path("the entity", path)
    except ValueError as error:
        fail(str(error), USAGE)
    found = split_entity_path(path)
    if found is None or found.management:
        fail(f"'{path}' is not an entity path; name a QUEUE, a TOPIC or TOPIC/Subscriptions/NAME", USAGE)
    if not dead_letters:
        return str(found)
    return str(replace(found, sub_queue=found.sub_queue or SubQueue.DEAD_LETTER))


def error_explainer(path: str) -> Callable[[MessagingError], str]:
    """Return a function that describes an error in terms of the path and the options of the command line."""
    return partial(_explained, path)


def _explained(path: str, error: MessagingError) -> str:
    if isinstance(error, EntityNotFoundError):
        return not_found_text(path)
    if isinstance(error, InvalidRequestError):
        if "requires sessions" in error.message:
            return f"'{path}' requires sessions: name one with --session ID, or accept the next one with --next-session"
        if "is a topic" in error.message:
            return topic_text(path, "receive from")
    if isinstance(error, MessagingCommunicationError) and not error.hint:
        return f"{one_line(error)}; check that the namespace is available, then try again"
    return one_line(error)


def topic_text(path: str, verb: str) -> str:
    return f"'{path}' is a topic: {verb} one of its subscriptions, {path}/Subscriptions/NAME"


def not_found_text(path: str) -> str:
    """Describe an entity that does not exist; explain how to name a subscription if the path may mean one."""
    found = split_entity_path(path)
    if found is not None and found.subscription is not None:
        return f"there is no subscription '{replace(found, sub_queue=None)}'; {_LIST_ADVICE}"
    name = path if found is None else found.entity
    topic, slash, rest = name.rpartition("/")
    advice = f"; for a subscription, write {topic}/Subscriptions/{rest}" if slash else ""
    return f"there is no queue or topic '{name}'{advice}; {_LIST_ADVICE}"


# Completion.


def complete_receiving(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of queues and subscriptions."""
    return _complete(context, incomplete, topics=False, subscriptions=True)


def complete_sending(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of queues and topics."""
    return _complete(context, incomplete, topics=True, subscriptions=False)


def complete_any(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of all entities."""
    return _complete(context, incomplete, topics=True, subscriptions=True)


def _complete(context: typer.Context, incomplete: str, *, topics: bool, subscriptions: bool) -> list[str]:
    """Return the names with this prefix; none if the namespace cannot be asked or does not answer in time."""
    given: Any = context.params.get("connection") or os.environ.get(CONNECTION_VARIABLE)
    if not given:
        return []
    discarded = io.StringIO()  # errors are reported when the command is run
    with suppress(MessagingError, OSError, TimeoutError, typer.Exit), redirect_stderr(discarded):
        connection = read_connection(given)
        names = asyncio.run(asyncio.wait_for(_names(connection, topics, subscriptions), _PATIENCE_S))
        return sorted(name for name in names if name.startswith(incomplete))
    return []


async def _names(connection: NamedNamespace, topics: bool, subscriptions: bool) -> list[str]:
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
        help="a queue or a topic; by default the EntityPath of the connection string",
    ),
]
ReceivingArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="ENTITY",
        show_default=False,
        autocompletion=complete_receiving,
        help="a queue, or TOPIC/Subscriptions/NAME; by default the EntityPath of the connection string",
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


def master_option(panel: str | None = None) -> Any:
    """Return the option for the Spark master, in a panel of the help."""
    return typer.Option("--master", help="the Spark master", metavar="MASTER", rich_help_panel=panel)


MasterOption: TypeAlias = Annotated[str, master_option()]


def _add_conf(settings: list[str] | None) -> list[str] | None:
    try:
        add_settings(settings or ())
    except ValueError as error:
        fail(f"--conf: {error}", USAGE)
    return settings


def _add_packages(packages: str | None) -> str | None:
    try:
        add_packages(packages or "")
    except ValueError as error:
        fail(f"--packages: {error}", USAGE)
    return packages


def conf_option(panel: str | None = None) -> Any:
    """Return the option for settings of Spark, in a panel of the help."""
    return typer.Option(
        "--conf",
        help="a setting of Spark, such as those of an object store; may be repeated",
        metavar="KEY=VALUE",
        show_default=False,
        callback=_add_conf,
        rich_help_panel=panel,
    )


def packages_option(panel: str | None = None) -> Any:
    """Return the option for Maven packages that Spark loads, in a panel of the help."""
    return typer.Option(
        "--packages",
        help="Maven packages that Spark loads, separated by commas, such as the file system of an object store",
        metavar="GROUP:NAME:VERSION",
        show_default=False,
        callback=_add_packages,
        rich_help_panel=panel,
    )


ConfOption: TypeAlias = Annotated[list[str] | None, conf_option()]
PackagesOption: TypeAlias = Annotated[str | None, packages_option()]
