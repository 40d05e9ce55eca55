"""``pairbus peek``: shows messages, and leaves them as they are."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from pairbus.cli.connection import FAILED, USAGE, Connection, ConnectionOption, read_connection, run
from pairbus.cli.entity_names import ReceivingArgument, entity_path, explaining, is_topic
from pairbus.cli.failure import fail
from pairbus.cli.message_output import Output, message_output
from pairbus.cli.work_bar import Advance, work_bar
from pairbus.client.errors import MessagingError
from pairbus.dialect.entity_path import split_entity_path

_AT_A_TIME: Final = 250

CountOption = Annotated[
    int | None, typer.Option("--count", min=1, help="how many at most", metavar="N", show_default=False)
]
DeadLettersOption = Annotated[bool, typer.Option("--dead-letters", help="those of the entity's dead-letter queue")]
LinesOption = Annotated[
    Path | None,
    typer.Option(
        "--lines",
        help="a file to add them to, one JSON object a line; send reads it",
        metavar="FILE",
        show_default=False,
    ),
]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="print one JSON object a line")]
BodyOption = Annotated[bool, typer.Option("--body", help="print the bodies alone, each with a line break after it")]
_AllOption = Annotated[bool, typer.Option("--all", help="all that there are")]
_FromOption = Annotated[
    int, typer.Option("--from-sequence", min=0, help="the sequence number to begin with", metavar="NUMBER")
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
    """Show messages of a queue or subscription, the next 10 if nothing else is said, and leave them as they are.

    Those that are locked, deferred or scheduled are shown as well; nothing is locked, and no delivery is counted.

    It ends with 0, also where there is no message, with 1 when something went wrong, with 2 when it was asked for
    something that cannot be, with 130 when it was stopped by Ctrl-C, and with 141 when the reader of its output closes
    it.

    Example: pairbus peek orders --connection @contoso.txt --count 5

    Example: pairbus peek events/Subscriptions/audit --connection @contoso.txt --dead-letters --all --lines dead.jsonl
    """
    if everything and count is not None:
        fail("--all and --count are two ways to say it: leave one of them out", USAGE)
    namespace = read_connection(connection)
    path = entity_path(entity, namespace, dead_letters=dead_letters)
    most = None if everything else count or 10
    with (
        message_output(path, lines, as_json=as_json, body_only=body) as output,
        work_bar("peeked", most, is_wanted=lines is not None) as advance,
    ):
        found = run(_peek(namespace, path, most, from_sequence, output, advance), explaining(path))
    if lines is not None:
        told = {"entity": path, "peeked": found}
        print(json.dumps(told) if as_json else f"{found:,} of '{path}' written to {lines}")


async def _peek(
    namespace: Connection, path: str, most: int | None, first: int, output: Output, advance: Advance
) -> int:
    async with namespace.factory() as factory:
        receiver = await factory.create_message_receiver(path)
        done = 0
        while most is None or done < most:
            wanted = _AT_A_TIME if most is None else min(_AT_A_TIME, most - done)
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


async def _refuse_topic(namespace: Connection, path: str) -> None:
    """A topic has no messages: those are in its subscriptions, so that nothing is no answer to what was meant."""
    found = split_entity_path(path)
    if found is None or found.subscription is not None or found.sub_queue is not None:
        return
    with suppress(MessagingError):  # only who may manage the namespace can ask
        async with namespace.manager() as manager:
            if await manager.topic_exists(path):
                fail(is_topic(path, "peek at"), FAILED)
