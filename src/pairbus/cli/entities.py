"""``pairbus entities``: lists, shows, makes, changes and deletes queues, topics and subscriptions."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import typer

from pairbus.broker import STANDARD, InvalidNameError
from pairbus.broker.validation import check_name, check_path
from pairbus.cli.command_group import MARKUP
from pairbus.cli.connection import (
    FAILED,
    STOPPED,
    USAGE,
    Connection,
    ConnectionOption,
    JsonOption,
    one_line,
    read_connection,
    run,
)
from pairbus.cli.entity_listing import Entity, all_entities, show_one, show_table
from pairbus.cli.entity_names import EntityArgument, entity_path, not_there
from pairbus.cli.entity_settings import KINDS, Description, in_options, read_settings, refuse_fixed, take_settings
from pairbus.cli.failure import fail
from pairbus.client.errors import (
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InvalidRequestError,
    MessagingError,
)
from pairbus.client.management.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.management.rules import DEFAULT_RULE, RuleDescription, SqlFilter
from pairbus.dialect.entity_path import EntityPath, split_entity_path

T = TypeVar("T")

entities = typer.Typer(
    name="entities",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="""List, show, make, change and delete queues, topics and subscriptions, here or in Azure.

    The key needs Manage. Each command ends with 0, with 1 when something went wrong, and with 2 when it was asked for
    something that cannot be.

    Example: pairbus entities list --connection @contoso.txt
    """,
)

_TopicOption = Annotated[bool, typer.Option("--topic", help="make a topic; else a queue")]
_FilterOption = Annotated[
    str | None,
    typer.Option(
        "--filter",
        help="of a subscription: an SQL filter; else it gets all messages",
        metavar="SQL",
        show_default=False,
    ),
]
_ExistOkOption = Annotated[bool, typer.Option("--exist-ok", help="be content with one that exists, as it is")]
_YesOption = Annotated[bool, typer.Option("--yes", help="do not ask")]


@entities.command("list")
def list_entities(connection: ConnectionOption, as_json: JsonOption = False) -> None:
    """List queues, topics and subscriptions, with their counts.

    Example: pairbus entities list --connection @contoso.txt --json
    """
    found = _with_manager(read_connection(connection), all_entities)
    if as_json:
        kinds = {"queue": "queues", "topic": "topics", "subscription": "subscriptions"}
        listed = {name: [one.document() for one in found if one.kind == kind] for kind, name in kinds.items()}
        print(json.dumps(listed, indent=2, ensure_ascii=False))
    else:
        show_table(found, in_colour=sys.stdout.isatty())


@entities.command("show")
def show_entity(connection: ConnectionOption, entity: EntityArgument, as_json: JsonOption = False) -> None:
    """Show the settings and counts of one, and the rules of a subscription.

    Example: pairbus entities show events/Subscriptions/audit --connection @contoso.txt
    """
    namespace = read_connection(connection)
    path = _path(entity, namespace)
    _show(_with_manager(namespace, lambda manager: _entity(manager, path)), as_json=as_json)


@entities.command("create")
def create_entity(
    connection: ConnectionOption,
    entity: EntityArgument,
    topic: _TopicOption = False,
    sql_filter: _FilterOption = None,
    exist_ok: _ExistOkOption = False,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Make a queue, with --topic a topic, or, with TOPIC/Subscriptions/NAME, a subscription.

    What is not said is left to the namespace. A time is a number and a unit, such as 30s, 15m or 14d.

    Example: pairbus entities create orders --connection @contoso.txt --lock-duration 30s --max-delivery-count 5

    Example: pairbus entities create events/Subscriptions/audit --connection @contoso.txt --filter "sys.label = 'paid'"
    """
    namespace = read_connection(connection)
    path = _path(entity, namespace)
    if path.subscription is not None and topic:
        fail(f"'{path}' is a subscription: leave out --topic", USAGE)
    if path.subscription is None and sql_filter is not None:
        fail("--filter belongs to a subscription: TOPIC/Subscriptions/NAME", USAGE)
    _check_new_name(path)
    description = _description(path, options, is_topic=topic)
    rule = None if sql_filter is None else _rule(sql_filter)

    async def making(manager: NamespaceManager) -> tuple[Entity, str]:
        try:
            await _create(manager, path, description, rule)
        except EntityAlreadyExistsError as error:
            found = await _entity(manager, path)
            _refuse_other_kind(found, type(description))
            if not exist_ok:
                fail(f"{one_line(error)}; --exist-ok is content with it", FAILED)
            return found, "is there already, and stays as it is"
        return await _entity(manager, path), "made"

    _tell(*_with_manager(namespace, making), as_json=as_json)


@entities.command("update")
def update_entity(
    connection: ConnectionOption, entity: EntityArgument, as_json: JsonOption = False, **options: Any
) -> None:
    """Change settings of one; what is not said stays as it is.

    Example: pairbus entities update orders --connection @contoso.txt --status senddisabled
    """
    namespace = read_connection(connection)
    path = _path(entity, namespace)
    refuse_fixed(options)

    async def changing(manager: NamespaceManager) -> Entity:
        found = (await _entity(manager, path)).description
        values = read_settings(type(found), options)
        if not values:
            fail("say what to change; --help lists the settings", USAGE)
        await _update(manager, path, _changed(found, values))
        return await _entity(manager, path)

    _tell(_with_manager(namespace, changing), "changed", as_json=as_json)


@entities.command("delete")
def delete_entity(
    connection: ConnectionOption, entity: EntityArgument, yes: _YesOption = False, as_json: JsonOption = False
) -> None:
    """Delete one with all its messages; a topic with its subscriptions.

    In a terminal it asks first; elsewhere it wants --yes.

    Example: pairbus entities delete orders --connection @contoso.txt --yes
    """
    namespace = read_connection(connection)
    path = _path(entity, namespace)
    found = _with_manager(namespace, lambda manager: _entity(manager, path))
    if not yes:
        _ask(found)
    _with_manager(namespace, lambda manager: _delete(manager, found))
    print(json.dumps({"path": found.path, "deleted": True}) if as_json else f"{found.kind} '{found.path}' deleted")


take_settings(create_entity, is_new=True)
take_settings(update_entity, is_new=False)


# What is asked for.


def _path(given: str, namespace: Connection) -> EntityPath:
    path = split_entity_path(entity_path(given, namespace))
    if path is None or path.sub_queue is not None:
        fail(f"'{given}' is not managed by itself; the queue or subscription that it belongs to is", USAGE)
    return path


def _check_new_name(path: EntityPath) -> None:
    """End the command if no entity can be created under this name, in any namespace."""
    try:
        if path.subscription is None:
            check_path(path.entity, STANDARD)
        else:
            check_name(path.subscription, STANDARD)
    except InvalidNameError as error:
        fail(one_line(error), USAGE)


def _description(path: EntityPath, options: dict[str, Any], *, is_topic: bool) -> Description:
    kind: type[Description] = TopicDescription if is_topic else QueueDescription
    if path.subscription is not None:
        kind = SubscriptionDescription
    values = read_settings(kind, options)
    try:
        return kind(path.subscription or path.entity, **values)
    except (TypeError, ValueError) as error:
        fail(in_options(one_line(error)), USAGE)


def _changed(description: Description, values: dict[str, Any]) -> Description:
    try:
        return replace(description, **values)
    except (TypeError, ValueError) as error:
        fail(in_options(one_line(error)), USAGE)


def _rule(sql_filter: str) -> RuleDescription:
    try:
        return RuleDescription(DEFAULT_RULE, filter=SqlFilter(sql_filter))
    except (TypeError, ValueError) as error:
        fail(f"--filter: {one_line(error)}", USAGE)


def _ask(entity: Entity) -> None:
    if not sys.stdin.isatty():
        fail(f"say --yes to delete the {entity.kind} '{entity.path}' with all its messages", USAGE)
    count = entity.info.active_message_count + entity.info.dead_letter_message_count
    messages = "1 message" if count == 1 else f"{count:,} messages"
    if not _is_wanted(f"Delete the {entity.kind} '{entity.path}' with its {messages}?"):
        fail("nothing was deleted", FAILED)


def _is_wanted(question: str) -> bool:
    """What a person answers; no answer is none."""
    try:
        return typer.confirm(question)
    except typer.Abort as error:  # which stands for Ctrl-C as well as for Ctrl-D
        print(file=sys.stderr)
        if isinstance(error.__context__, EOFError):
            return False
        fail("stopped: nothing was deleted", STOPPED)


def _refuse_other_kind(found: Entity, wanted: type[Description]) -> None:
    if not isinstance(found.description, wanted):
        fail(f"'{found.path}' is a {found.kind}, not a {KINDS[wanted]}", FAILED)


# What the namespace is asked.


def _with_manager(namespace: Connection, work: Callable[[NamespaceManager], Coroutine[Any, Any, T]]) -> T:
    async def working() -> T:
        async with namespace.manager() as manager:
            return await work(manager)

    return run(working(), _explained)


def _explained(error: MessagingError) -> str:
    told = in_options(error.message) if isinstance(error, InvalidRequestError) else error.message
    return one_line(error) if told == error.message else told


async def _entity(manager: NamespaceManager, path: EntityPath) -> Entity:
    """Whatever has that path."""
    description: Description
    if path.subscription is not None:
        try:
            description, info, rules = await asyncio.gather(
                manager.get_subscription(path.entity, path.subscription),
                manager.get_subscription_runtime_info(path.entity, path.subscription),
                manager.get_rules(path.entity, path.subscription),
            )
        except EntityNotFoundError:
            fail(not_there(str(path)), FAILED)
        return Entity(path=str(path), description=description, info=info, rules=tuple(rules))
    try:
        queue = await manager.get_queue(path.entity)
    except EntityNotFoundError:
        return await _topic(manager, path.entity)
    return Entity(path=queue.path, description=queue, info=await manager.get_queue_runtime_info(path.entity))


async def _topic(manager: NamespaceManager, path: str) -> Entity:
    try:
        topic = await manager.get_topic(path)
    except EntityNotFoundError:
        fail(not_there(path), FAILED)
    return Entity(path=topic.path, description=topic, info=await manager.get_topic_runtime_info(path))


async def _create(
    manager: NamespaceManager, path: EntityPath, description: Description, rule: RuleDescription | None
) -> None:
    match description:
        case QueueDescription():
            await manager.create_queue(description)
        case TopicDescription():
            await manager.create_topic(description)
        case SubscriptionDescription():
            try:
                await manager.create_subscription(path.entity, description, rule)
            except EntityNotFoundError:
                fail(
                    f"there is no topic '{path.entity}'; make it first: pairbus entities create {path.entity} --topic",
                    FAILED,
                )


async def _update(manager: NamespaceManager, path: EntityPath, description: Description) -> None:
    match description:
        case QueueDescription():
            await manager.update_queue(description)
        case TopicDescription():
            await manager.update_topic(description)
        case SubscriptionDescription():
            await manager.update_subscription(path.entity, description)


async def _delete(manager: NamespaceManager, entity: Entity) -> None:
    path = split_entity_path(entity.path)
    match entity.description:
        case QueueDescription():
            await manager.delete_queue(entity.path)
        case TopicDescription():
            await manager.delete_topic(entity.path)
        case SubscriptionDescription() if path is not None and path.subscription is not None:
            await manager.delete_subscription(path.entity, path.subscription)


# What is said.


def _tell(entity: Entity, done: str, *, as_json: bool) -> None:
    """In a line for a person, who knows what was asked for."""
    if as_json:
        _show(entity, as_json=True)
    else:
        print(f"{entity.kind} '{entity.path}' {done}")


def _show(entity: Entity, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(entity.document(), indent=2, ensure_ascii=False))
    else:
        show_one(entity)
