"""``pairbus entities``: list, show, create, update and delete queues, topics and subscriptions."""

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
from pairbus.cli.arguments import EntityArgument, entity_path, not_found_text
from pairbus.cli.command_group import MARKUP
from pairbus.cli.connection import ConnectionOption, JsonOption, NamedNamespace, one_line, read_connection, run
from pairbus.cli.entity_listing import ListedEntity, all_entities, show_one, show_table
from pairbus.cli.entity_settings import KINDS, in_options, read_settings, refuse_fixed, take_settings
from pairbus.cli.failure import FAILED, STOPPED, USAGE, fail
from pairbus.client.errors import (
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InvalidRequestError,
    MessagingError,
)
from pairbus.client.management.atom import EntityDescription
from pairbus.client.management.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.management.rules import DEFAULT_RULE, RuleDescription, SqlFilter
from pairbus.dialect.paths import EntityPath, split_entity_path

T = TypeVar("T")

entities = typer.Typer(
    name="entities",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="""List, show, create, update and delete queues, topics and subscriptions, on pairbus or Azure.

    The key needs Manage. Each command exits with 0 on success, with 1 on an error, and with 2 on invalid arguments.

    Example: pairbus entities list --connection @contoso.txt
    """,
)

_TopicOption = Annotated[bool, typer.Option("--topic", help="create a topic instead of a queue")]
_FilterOption = Annotated[
    str | None,
    typer.Option(
        "--filter",
        help="the SQL filter of a subscription; without one it receives all messages",
        metavar="SQL",
        show_default=False,
    ),
]
_ExistOkOption = Annotated[
    bool, typer.Option("--exist-ok", help="succeed if the entity exists, and leave it unchanged")
]
_YesOption = Annotated[bool, typer.Option("--yes", help="delete without asking for confirmation")]


@entities.command("list")
def list_entities(connection: ConnectionOption, as_json: JsonOption = False) -> None:
    """List queues, topics and subscriptions with their message counts.

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
    """Show the settings and message counts of an entity, and the rules of a subscription.

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
    """Create a queue, a topic (with --topic), or a subscription (TOPIC/Subscriptions/NAME).

    Unset options use the server's defaults. A time is a number and a unit, such as 30s, 15m or 14d.

    Example: pairbus entities create orders --connection @contoso.txt --lock-duration 30s --max-delivery-count 5

    Example: pairbus entities create events/Subscriptions/audit --connection @contoso.txt --filter "sys.label = 'paid'"
    """
    namespace = read_connection(connection)
    path = _path(entity, namespace)
    if path.subscription is not None and topic:
        fail(f"'{path}' is a subscription: remove --topic", USAGE)
    if path.subscription is None and sql_filter is not None:
        fail("--filter applies to subscriptions only: name TOPIC/Subscriptions/NAME", USAGE)
    _check_new_name(path)
    description = _description(path, options, is_topic=topic)
    rule = None if sql_filter is None else _rule(sql_filter)

    async def create(manager: NamespaceManager) -> tuple[ListedEntity, str]:
        try:
            await _create(manager, path, description, rule)
        except EntityAlreadyExistsError as error:
            found = await _entity(manager, path)
            _refuse_other_kind(found, type(description))
            if not exist_ok:
                fail(f"{one_line(error)}; add --exist-ok to accept it as it is", FAILED)
            return found, "already exists, unchanged"
        return await _entity(manager, path), "created"

    _print_result(*_with_manager(namespace, create), as_json=as_json)


@entities.command("update")
def update_entity(
    connection: ConnectionOption, entity: EntityArgument, as_json: JsonOption = False, **options: Any
) -> None:
    """Update the settings of an entity; unset options stay unchanged.

    Example: pairbus entities update orders --connection @contoso.txt --status senddisabled
    """
    namespace = read_connection(connection)
    path = _path(entity, namespace)
    refuse_fixed(options)

    async def update(manager: NamespaceManager) -> ListedEntity:
        found = (await _entity(manager, path)).description
        values = read_settings(type(found), options)
        if not values:
            fail("no setting to update; --help lists them", USAGE)
        await _update(manager, path, _changed(found, values))
        return await _entity(manager, path)

    _print_result(_with_manager(namespace, update), "updated", as_json=as_json)


@entities.command("delete")
def delete_entity(
    connection: ConnectionOption, entity: EntityArgument, yes: _YesOption = False, as_json: JsonOption = False
) -> None:
    """Delete an entity with all its messages; a topic with its subscriptions.

    Asks for confirmation in a terminal; requires --yes when not interactive.

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


# Arguments.


def _path(given: str, namespace: NamedNamespace) -> EntityPath:
    path = split_entity_path(entity_path(given, namespace))
    if path is None or path.sub_queue is not None:
        fail(f"'{given}' is a dead-letter queue and cannot be managed; name its queue or subscription", USAGE)
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


def _description(path: EntityPath, options: dict[str, Any], *, is_topic: bool) -> EntityDescription:
    kind: type[EntityDescription] = TopicDescription if is_topic else QueueDescription
    if path.subscription is not None:
        kind = SubscriptionDescription
    values = read_settings(kind, options)
    try:
        return kind(path.subscription or path.entity, **values)
    except (TypeError, ValueError) as error:
        fail(in_options(one_line(error)), USAGE)


def _changed(description: EntityDescription, values: dict[str, Any]) -> EntityDescription:
    try:
        return replace(description, **values)
    except (TypeError, ValueError) as error:
        fail(in_options(one_line(error)), USAGE)


def _rule(sql_filter: str) -> RuleDescription:
    try:
        return RuleDescription(DEFAULT_RULE, filter=SqlFilter(sql_filter))
    except (TypeError, ValueError) as error:
        fail(f"--filter: {one_line(error)}", USAGE)


def _ask(entity: ListedEntity) -> None:
    if not sys.stdin.isatty():
        fail(f"add --yes to delete the {entity.kind} '{entity.path}' with all its messages", USAGE)
    count = entity.info.active_message_count + entity.info.dead_letter_message_count
    messages = "1 message" if count == 1 else f"{count:,} messages"
    if not _is_confirmed(f"Delete the {entity.kind} '{entity.path}' with its {messages}?"):
        fail("nothing was deleted", FAILED)


def _is_confirmed(question: str) -> bool:
    """Ask a question and return the answer; the end of the input counts as no."""
    try:
        return typer.confirm(question)
    except typer.Abort as error:  # raised for Ctrl-C as well as for Ctrl-D
        print(file=sys.stderr)
        if isinstance(error.__context__, EOFError):
            return False
        fail("stopped: nothing was deleted", STOPPED)


def _refuse_other_kind(found: ListedEntity, wanted: type[EntityDescription]) -> None:
    if not isinstance(found.description, wanted):
        fail(f"'{found.path}' is a {found.kind}, not a {KINDS[wanted]}", FAILED)


# Calls to the namespace.


def _with_manager(namespace: NamedNamespace, work: Callable[[NamespaceManager], Coroutine[Any, Any, T]]) -> T:
    async def working() -> T:
        async with namespace.manager() as manager:
            return await work(manager)

    return run(working(), _explained)


def _explained(error: MessagingError) -> str:
    """Describe an error; if the namespace has refused the value of an option, the arguments are invalid."""
    if isinstance(error, InvalidRequestError) and (text := in_options(error.message)) != error.message:
        fail(text, USAGE)
    return one_line(error)


async def _entity(manager: NamespaceManager, path: EntityPath) -> ListedEntity:
    """Return the queue, topic or subscription with that path; end the command if there is none."""
    description: EntityDescription
    if path.subscription is not None:
        try:
            description, info, rules = await asyncio.gather(
                manager.get_subscription(path.entity, path.subscription),
                manager.get_subscription_runtime_info(path.entity, path.subscription),
                manager.get_rules(path.entity, path.subscription),
            )
        except EntityNotFoundError:
            fail(not_found_text(str(path)), FAILED)
        return ListedEntity(path=str(path), description=description, info=info, rules=tuple(rules))
    try:
        queue = await manager.get_queue(path.entity)
    except EntityNotFoundError:
        return await _topic(manager, path.entity)
    return ListedEntity(path=queue.path, description=queue, info=await manager.get_queue_runtime_info(path.entity))


async def _topic(manager: NamespaceManager, path: str) -> ListedEntity:
    try:
        topic = await manager.get_topic(path)
    except EntityNotFoundError:
        fail(not_found_text(path), FAILED)
    return ListedEntity(path=topic.path, description=topic, info=await manager.get_topic_runtime_info(path))


async def _create(
    manager: NamespaceManager, path: EntityPath, description: EntityDescription, rule: RuleDescription | None
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
                    f"there is no topic '{path.entity}'; create it with: pairbus entities create {path.entity} --topic",
                    FAILED,
                )


async def _update(manager: NamespaceManager, path: EntityPath, description: EntityDescription) -> None:
    match description:
        case QueueDescription():
            await manager.update_queue(description)
        case TopicDescription():
            await manager.update_topic(description)
        case SubscriptionDescription():
            await manager.update_subscription(path.entity, description)


async def _delete(manager: NamespaceManager, entity: ListedEntity) -> None:
    path = split_entity_path(entity.path)
    match entity.description:
        case QueueDescription():
            await manager.delete_queue(entity.path)
        case TopicDescription():
            await manager.delete_topic(entity.path)
        case SubscriptionDescription() if path is not None and path.subscription is not None:
            await manager.delete_subscription(path.entity, path.subscription)


# Output.


def _print_result(entity: ListedEntity, done: str, *, as_json: bool) -> None:
    """Print the entity as JSON, or one line that says what was done."""
    if as_json:
        _show(entity, as_json=True)
    else:
        print(f"{entity.kind} '{entity.path}' {done}")


def _show(entity: ListedEntity, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(entity.document(), indent=2, ensure_ascii=False))
    else:
        show_one(entity)
