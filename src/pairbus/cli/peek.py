"""``pairbus peek``: show messages without locking or removing them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from pairbus.cli.arguments import ReceivingArgument, entity_path, error_explainer, topic_text
from pairbus.cli.connection import ConnectionOption, NamedNamespace, read_connection, run
from pairbus.cli.failure import FAILED, USAGE, fail
from pairbus.cli.message_output import Advance, Output, message_count, message_output, work_bar
from pairbus.client.errors import MessagingError
from pairbus.dialect.paths import split_entity_path

_AT_A_TIME: Final = 250

CountOption = Annotated[
    int | None, typer.Option("--count", min=1, help="the maximum number of messages", metavar="N", show_default=False)
]
DeadLettersOption = Annotated[bool, typer.Option("--dead-letters", help="use the dead-letter queue of the entity")]
LinesOption = Annotated[
    Path | None,
    typer.Option(
        "--lines",
        help="the file to append the messages to, one JSON object per line; send --lines reads it",
        metavar="FILE",
        show_default=False,
    ),
]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="print one JSON object per line")]
BodyOption = Annotated[bool, typer.Option("--body", help="print only the bodies, each followed by a line break")]
_AllOption = Annotated[bool, typer.Option("--all", help="show all messages")]
_FromOption = Annotated[
    int, typer.Option("--from-sequence", min=0, help="the sequence number to start from", metavar="NUMBER")
]


def peek(
    connection: ConnectionOption,
    entity: ReceivingArgument = None,
    count: CountOption = None,
    everything: _AllOption = False,
    from_sequence: _FromOption = 0,
    dead_letters: DeadLettersOption = False,
    lines: LinesOption = None,
    body: BodyOption = False,
    as_json: JsonLinesOption = False,
) -> None:
    """Show messages of a queue or subscription, 10 by default, without locking or removing them.

    Locked, deferred and scheduled messages are shown too. Peeking does not count as a delivery.

    Exits with 0 on success, even if there is no message, with 1 on an error, with 2 on invalid arguments, with 130 on
    Ctrl-C, and with 141 if the reader closes the output.

    Example: pairbus peek orders --connection @contoso.txt --count 5

    Example: pairbus peek events/Subscriptions/audit --connection @contoso.txt --dead-letters --all --lines dead.jsonl
    """
    if everything and count is not None:
        fail("--all and --count exclude each other: remove one of them", USAGE)
    namespace = read_connection(connection)
    path = entity_path(entity, namespace, dead_letters=dead_letters)
    limit = None if everything else count or 10
    with (
        message_output(path, lines, as_json=as_json, body_only=body) as output,
        work_bar("peeked", limit, is_shown=lines is not None) as advance,
    ):
        found = run(_peek(namespace, path, limit, from_sequence, output, advance), error_explainer(path))
    if lines is not None:
        document = {"entity": path, "peeked": found}
        print(json.dumps(document) if as_json else f"{message_count(found)} of '{path}' written to {lines}")


async def _peek(
    namespace: NamedNamespace, path: str, limit: int | None, first: int, output: Output, advance: Advance
) -> int:
    async with namespace.factory() as factory:
        receiver = await factory.create_message_receiver(path)
        done = 0
        while limit is None or done < limit:
            wanted = _AT_A_TIME if limit is None else min(_AT_A_TIME, limit - done)
            messages = await receiver.peek(wanted, first)
            if not messages:
                break
            async for _ in output(messages):
                done += 1
            first = messages[-1].sequence_number + 1
            advance(done, done)
    if not done:
        await _refuse_topic(namespace, path)
    return done


async def _refuse_topic(namespace: NamedNamespace, path: str) -> None:
    """End the command if the path is a topic, which has no messages: its subscriptions have."""
    found = split_entity_path(path)
    if found is None or found.subscription is not None or found.sub_queue is not None:
        return
    with suppress(MessagingError):  # the key may lack Manage
        async with namespace.manager() as manager:
            if await manager.topic_exists(path):
                fail(topic_text(path, "peek at"), FAILED)
