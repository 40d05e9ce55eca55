"""What can be said with ``.option(…)`` about reading messages and about writing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final, Self

from pairbus.client.validation import shown
from pairbus.dialect.entity_path import split_entity_path, takes_messages
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.errors import SparkOptionError
from pairbus.spark.option import Form, Option, duration, number, one_of, read_names, read_values
from pairbus.spark.starting_offsets import StartingOffsets

_NOT_IN_A_NAME: Final = frozenset("@#\\")

_LONGEST_PREFIX: Final = 48
"""A message id has up to 128 characters, and the rest of it says which row of which batch it is."""


class ReadMode(Enum):
    """What reading does to messages."""

    CONSUME = "consume"
    """Each is taken, and removed when the batch that held it is done."""
    BROWSE = "browse"
    """They are looked at, and stay."""


class Settle(Enum):
    """Who removes the messages of a batch."""

    COMMIT = "commit"
    """The source, when Spark has committed the batch."""
    SINK = "sink"
    """Whoever writes the batch, with the lock tokens that it holds."""


def _read_entities(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    if not names:
        raise ValueError
    for name in names:
        if not _is_readable(name):
            raise SparkOptionError(
                f"the option 'entities' names {shown(name)}, which no entity is called; they are {_ENTITIES.text}"
            )
    return names


def _read_entity(text: str) -> str:
    if not takes_messages(text) or _is_secret(text) or "," in text:  # rows go to one
        raise ValueError
    return text


def _is_readable(name: str) -> bool:
    """Whether a name or pattern can be that of entities."""
    path = split_entity_path(name)
    if path is None or path.management or _is_secret(name):
        return False
    return name == name.strip("/") and _NOT_IN_A_NAME.isdisjoint(name) and name.isprintable()


def _is_secret(name: str) -> bool:
    """A connection string in the wrong place."""
    return "=" in name and "sharedaccess" in name.lower()


def _read_prefix(text: str) -> str:
    if not 1 <= len(text) <= _LONGEST_PREFIX or not text.isprintable():
        raise ValueError
    return text


_ENTITIES: Final = Form(
    "queues and subscriptions, by name or pattern, divided by commas:"
    " orders, orders-*, news/subscriptions/audit, news/subscriptions/*, orders/$DeadLetterQueue",
    _read_entities,
)

_CONNECTION: Final = Option(
    name="connection",
    form=Form("env:NAME, file:/path, or a connection string", ConnectionReference.parse),
    required=True,
    doc="Where the connection string is: in an environment variable, in a file, or here. The driver and the executors"
    " read the variable or the file each for themselves, so that no secret gets into a plan, a log or a checkpoint."
    " A connection string that is written here is part of the plan, which Spark keeps and sends around.",
)

_CONNECT_TIMEOUT: Final = Option(
    name="connectTimeout",
    form=duration(
        timedelta(seconds=0.1), timedelta(days=1), "a number of seconds up to 1 day, such as 5, 2.5 or 1m", unit="s"
    ),
    default="10",
    doc="How long the start of a query tries to connect to the namespace before it fails. A connection that is lost"
    " later is opened again for as long as each operation may take.",
)

SOURCE_OPTIONS: Final = (
    _CONNECTION,
    _CONNECT_TIMEOUT,
    Option(
        name="entities",
        form=_ENTITIES,
        required=True,
        doc="What is read; `load(…)` says the same. In a pattern `*` is any text within one part of a path and `?` any"
        " one character; upper and lower case are the same. Patterns need a key with the claim Manage, and are looked"
        " up when the query starts.",
    ),
    Option(
        name="mode",
        form=one_of(ReadMode),
        default=ReadMode.CONSUME.value,
        doc="`consume` takes messages as a receiver does, and removes them when the batch that held them is done."
        " `browse` peeks at them, each once, and removes nothing; a stream reads a scheduled message when it is"
        " enqueued. `spark.read` always browses.",
    ),
    Option(
        name="maxMessagesPerTrigger",
        form=number(1, 10_000_000),
        default="10000",
        doc="How many messages a batch of a stream holds at most, of all entities together.",
    ),
    Option(
        name="partitionsPerQueue",
        form=number(1, 1000),
        default="1",
        doc="How many tasks read what a batch holds of one entity.",
    ),
    Option(
        name="longPoll",
        form=duration(timedelta(seconds=1), timedelta(days=1), "a time from 1 second to 1 day, such as 30s, 15m or 1h"),
        default="15m",
        doc="How long one receive waits at an empty entity. Each receive is paid for, and none is late for it: a"
        " message that comes meanwhile is received at once.",
    ),
    Option(
        name="startingOffsets",
        form=Form('earliest, latest, or JSON such as {"orders": 17}', StartingOffsets.parse),
        default="earliest",
        doc="Where a browsing stream or table begins: at the `earliest` message that there is, behind the `latest`, or"
        " at a sequence number for each entity. Entities that are not named begin with the earliest message. In a"
        " partitioned entity a number applies to its own partition; the others begin with their earliest message. A"
        " consuming stream always begins at the head of the queue.",
    ),
    Option(
        name="settle",
        form=one_of(Settle),
        default=Settle.COMMIT.value,
        doc="Who removes the messages of a stream that consumes: the source when the batch is committed, or the sink,"
        " message by message, with the column `lock_token`.",
    ),
    Option(
        name="pageSize",
        form=number(1, 5000),
        default="500",
        doc="How many messages are fetched at once while they are looked at.",
    ),
)

SINK_OPTIONS: Final = (
    _CONNECTION,
    _CONNECT_TIMEOUT,
    Option(
        name="entity",
        form=Form("the name of one queue or topic", _read_entity),
        doc="Where all rows are sent; `save(…)` and `start(…)` say the same. Without it the column `entity` says"
        " where each row is sent.",
    ),
    Option(
        name="messageIdPrefix",
        form=Form(f"a text of 1 to {_LONGEST_PREFIX} characters", _read_prefix),
        doc="How the ids of messages begin that have none in the column `message_id`. It names one write: what is"
        " written again with the same prefix and the same rows has the same ids, and is dropped where duplicates are"
        " detected."
        " So give every other write another one, such as the day that it is for. Without it each has one of its own."
        " The batches of a stream are told apart in any case.",
    ),
    Option(
        name="batchSize",
        form=number(1, 5000),
        default="500",
        doc="How many messages for one entity are sent together at most.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query says about reading."""

    connection: ConnectionReference
    connect_timeout: timedelta
    entities: tuple[str, ...]
    """Names and patterns, as they were given."""

    mode: ReadMode
    max_messages_per_trigger: int
    partitions_per_queue: int
    long_poll: timedelta
    starting_offsets: StartingOffsets
    settle: Settle
    page_size: int

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, is_stream: bool = True) -> Self:
        """Read Spark's options, of a stream or of a batch. Raises ``SparkOptionError``."""
        given = read_names(options, SOURCE_OPTIONS, "entities")
        if not is_stream:
            given.setdefault("mode", ReadMode.BROWSE.value)
        found = cls(**read_values(given, SOURCE_OPTIONS))
        found._check_together(given, is_stream=is_stream)
        return found

    def _check_together(self, given: Mapping[str, str], *, is_stream: bool) -> None:
        if self.mode is ReadMode.CONSUME and not is_stream:
            raise SparkOptionError(
                "spark.read only looks at messages: leave the option 'mode' out, or use spark.readStream, with"
                " .trigger(availableNow=True) for one that ends"
            )
        if self.mode is ReadMode.CONSUME and not self.starting_offsets.are_earliest:
            raise SparkOptionError(
                "the option 'startingOffsets' needs the mode 'browse': a queue is consumed from its head, and what lies"
                " before another place would be left behind"
            )
        if self.mode is ReadMode.BROWSE and "settle" in given:
            raise SparkOptionError("the option 'settle' needs the mode 'consume': browsing removes nothing")
        if not is_stream and self.starting_offsets.have_latest:
            raise SparkOptionError("the option 'startingOffsets' is latest, and spark.read would find nothing there")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a query says about writing."""

    connection: ConnectionReference
    connect_timeout: timedelta
    entity: str | None
    """Where all rows are sent; ``None`` if each row says that."""

    message_id_prefix: str | None
    batch_size: int

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Read Spark's options. Raises ``SparkOptionError``."""
        return cls(**read_values(read_names(options, SINK_OPTIONS, "entity"), SINK_OPTIONS))
