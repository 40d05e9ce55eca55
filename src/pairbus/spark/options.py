"""Options of reading and writing messages, as given with ``.option(…)``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar

from pairbus.client.validation import shown
from pairbus.dialect.paths import split_entity_path, takes_messages
from pairbus.spark.connections import ConnectionReference
from pairbus.spark.errors import SparkOptionError

_MAX_SEQUENCE: Final = 2**63 - 1


class Position(Enum):
    """A named position in an entity."""

    EARLIEST = "earliest"
    LATEST = "latest"


Bound: TypeAlias = int | Position | datetime
"""A position in an entity: a sequence number, an end, or the first message enqueued at a time or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingOffsets:
    """The value of the option ``startingOffsets``. Entity names are case-insensitive."""

    otherwise: Position = Position.EARLIEST
    """For all entities that are not listed."""

    named: tuple[tuple[str, Bound], ...] = ()

    option: ClassVar[str] = "startingOffsets"
    positions: ClassVar[tuple[Position, ...]] = (Position.EARLIEST, Position.LATEST)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the option. Raise ``SparkOptionError``."""
        given = text.strip()
        position = cls._position(given)
        if position is not None:
            return cls(otherwise=position)
        names = ", ".join(position.value for position in cls.positions)
        form = f'{names}, or JSON such as {{"orders": 17, "news/subscriptions/audit": "latest"}}'
        return cls(named=tuple((name, cls._bound(name, value)) for name, value in read_object(cls.option, form, given)))

    @classmethod
    def _position(cls, text: str) -> Position | None:
        return next((position for position in cls.positions if position.value == text.lower()), None)

    @classmethod
    def _bound(cls, name: str, value: object) -> Bound:
        position = cls._position(value) if isinstance(value, str) else None
        if position is not None:
            return position
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_SEQUENCE:
            return value
        names = " or ".join(position.value for position in cls.positions)
        raise SparkOptionError(
            f"{cls.option} of {shown(name)} must be a sequence number >= 0, {names}, got {shown(value)}"
        )

    @property
    def are_earliest(self) -> bool:
        """True if all entities are read from their first message."""
        return self._all == {Position.EARLIEST}

    @property
    def have_latest(self) -> bool:
        """True if some entity is read from its end."""
        return Position.LATEST in self._all

    @property
    def _all(self) -> set[Bound]:
        return {self.otherwise, *(start for _, start in self.named)}

    def of(self, entity: str) -> Bound:
        return _of(self.named, entity, self.otherwise)

    def check(self, entities: Iterable[str]) -> None:
        """Raise ``SparkOptionError`` if an entity is listed that is not read."""
        _check_read(self.option, self.named, entities)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingOffsets(StartingOffsets):
    """The value of the option ``endingOffsets``: reading ends before these positions."""

    otherwise: Position = Position.LATEST

    option: ClassVar[str] = "endingOffsets"
    positions: ClassVar[tuple[Position, ...]] = (Position.LATEST,)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityTimes:
    """The value of the options ``startingOffsetsByTimestamp`` and ``endingOffsetsByTimestamp``."""

    option: str
    named: tuple[tuple[str, datetime], ...]

    @classmethod
    def parse(cls, option: str, text: str) -> Self:
        """Parse the option. Raise ``SparkOptionError``."""
        pairs = read_object(option, 'JSON such as {"orders": "2026-11-16T04:00:00Z"}', text)
        return cls(option=option, named=tuple((name, cls._time(option, name, value)) for name, value in pairs))

    @staticmethod
    def _time(option: str, name: str, value: object) -> datetime:
        try:
            if isinstance(value, str) or type(value) is int:
                return read_time(str(value))
        except ValueError:
            pass
        raise SparkOptionError(f"{option} of {shown(name)} must be {_TIME_FORM}, got {shown(value)}")

    def check(self, entities: Iterable[str]) -> None:
        """Raise ``SparkOptionError`` if an entity is listed that is not read."""
        _check_read(self.option, self.named, entities)


_TIME_FORM: Final = "a time such as 2026-11-16T04:00:00Z, or a number of milliseconds since 1970"


def read_time(text: str) -> datetime:
    """Parse a time with a zone, or milliseconds since 1970. Raise ``ValueError``."""
    if _NUMBER.fullmatch(text):
        try:
            return datetime.fromtimestamp(int(text) / 1_000, UTC)
        except (OverflowError, OSError):
            raise ValueError(text) from None
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(text)
    return found


T = TypeVar("T")


def _of(named: Iterable[tuple[str, T]], entity: str, otherwise: T) -> T:
    return next((value for name, value in named if name.lower() == entity.lower()), otherwise)


def _check_read(option: str, named: Iterable[tuple[str, object]], entities: Iterable[str]) -> None:
    read = {entity.lower() for entity in entities}
    for name, _ in named:
        if name.lower() not in read:
            raise SparkOptionError(f"{option} lists {shown(name)}, which is not among the entities to read")


def read_object(option: str, form: str, text: str) -> list[tuple[str, Any]]:
    """Return the pairs of a JSON object whose names are entities. Raise ``SparkOptionError``."""
    try:
        found = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, _Pairs):
        raise SparkOptionError(f"{option} must be {form}, got {shown(text)}")
    seen: set[str] = set()
    for name, _ in found:
        if name.lower() in seen:
            raise SparkOptionError(f"{option} lists {shown(name)} twice")
        seen.add(name.lower())
    return found


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its duplicate names."""


E = TypeVar("E", bound=Enum)

_PATH: Final = "path"
"""The option that ``load("orders")``, ``save("orders")`` and ``start("orders")`` set."""

_PATHS: Final = "paths"
"""The option that ``load(["orders", "news/subscriptions/audit"])`` sets: a JSON list."""

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of a stream writer itself; Spark passes them to the sink as well."""

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) *([a-z]+)")
_UNITS: Final = {
    "milliseconds": ("ms", "millisecond", "milliseconds"),
    "seconds": ("s", "sec", "second", "seconds"),
    "minutes": ("m", "min", "minute", "minutes"),
    "hours": ("h", "hour", "hours"),
    "days": ("d", "day", "days"),
}
_UNIT_OF: Final = {name: unit for unit, names in _UNITS.items() for name in names}


@dataclass(frozen=True, slots=True)
class OptionForm:
    """The format of an option's value."""

    text: str
    read: Callable[[str], Any]
    """Parses the text. Raises ``ValueError`` if it does not have this format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of the data source."""

    name: str
    """The name as users write it; names are case-insensitive."""

    form: OptionForm
    default: str | None = None
    """The default as a user would write it; ``None`` if there is none."""

    required: bool = False
    doc: str

    @property
    def field(self) -> str:
        """The name of the dataclass field."""
        return re.sub(r"[A-Z]", lambda letter: f"_{letter.group().lower()}", self.name)

    def read(self, text: str | None) -> Any:
        """Parse a value. Raise ``SparkOptionError``."""
        given = self.default if text is None else text
        if given is None:
            return None
        try:
            return self.form.read(given.strip())
        except SparkOptionError:
            raise
        except ValueError:
            raise SparkOptionError(f"the option '{self.name}' must be {self.form.text}, got {shown(given)}") from None


def number(minimum: int, maximum: int) -> OptionForm:
    def read(text: str) -> int:
        if not _NUMBER.fullmatch(text) or not minimum <= int(text) <= maximum:
            raise ValueError
        return int(text)

    return OptionForm(f"a number from {minimum:,} to {maximum:,}", read)


def duration(minimum: timedelta, maximum: timedelta, text: str, *, unit: str = "") -> OptionForm:
    """Return the format of a duration like Spark's intervals: a number and a unit, short or in full.

    A number without a unit is in ``unit``, if that is set.
    """

    def read(text: str) -> timedelta:
        found = _DURATION.fullmatch(text.lower()) or _DURATION.fullmatch(f"{text}{unit}")
        if found is None or found[2] not in _UNIT_OF:
            raise ValueError
        length = timedelta(**{_UNIT_OF[found[2]]: float(found[1])})
        if not minimum <= length <= maximum:
            raise ValueError
        return length

    return OptionForm(text, read)


def one_of(kind: type[E]) -> OptionForm:
    return OptionForm(" or ".join(str(one.value) for one in kind), lambda text: kind(text.lower()))


_TRUTHS: Final = {"true": True, "false": False}


def _read_truth(text: str) -> bool:
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


_TRUTH: Final = OptionForm("true or false", _read_truth)
_TIME: Final = OptionForm(_TIME_FORM, read_time)


def read_names(options: Mapping[str, str], table: Sequence[Option], path_means: str) -> dict[str, str]:
    """Return the given options by their names in the table; ``path_means`` is the option that a path stands for.

    Raise ``SparkOptionError`` for unknown options, and for missing ones.
    """
    names = {option.name.lower(): option.name for option in table}
    given: dict[str, str] = {}
    for key, text in options.items():
        if key.lower() in _SPARK_OPTIONS:
            continue
        name, value = _expand_path(key, text, path_means)
        if name.lower() not in names:
            raise SparkOptionError(_unknown(name, names))
        name = names[name.lower()]
        if name in given:
            raise SparkOptionError(f"the option '{name}' is given twice; a path sets it, too, so remove one of them")
        given[name] = value
    for option in table:
        if option.required and not given.get(option.name, "").strip():
            raise SparkOptionError(f"the option '{option.name}' is required; it must be {option.form.text}")
    return given


def read_values(given: Mapping[str, str], table: Sequence[Option]) -> dict[str, Any]:
    """Return the values of all options of the table, by field. Raise ``SparkOptionError``."""
    return {option.field: option.read(given.get(option.name)) for option in table}


def _expand_path(key: str, text: str, path_means: str) -> tuple[str, str]:
    if key.lower() == _PATH:
        return path_means, text
    if key.lower() == _PATHS:
        return path_means, ",".join(_strings(text))
    return key, text


def _strings(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise SparkOptionError(f"the option '{_PATHS}' must be a JSON list of strings, got {shown(text)}")
    return found


def _unknown(key: str, names: Mapping[str, str]) -> str:
    nearest = get_close_matches(key.lower(), names, n=1)
    advice = f"did you mean '{names[nearest[0]]}'?" if nearest else f"available: {', '.join(names.values())}"
    return f"unknown option {shown(key)}; {advice}"


_INVALID_IN_NAMES: Final = frozenset("@#\\")

_MAX_PREFIX: Final = 48
"""A message id has up to 128 characters; the rest of it identifies the row and the batch."""


class ReadMode(Enum):
    """The effect of reading on messages."""

    CONSUME = "consume"
    """Messages are received, and removed when their batch is committed."""
    BROWSE = "browse"
    """Messages are peeked, and stay."""


class SettleAt(Enum):
    """The part that removes the messages of a batch."""

    COMMIT = "commit"
    """The source, after Spark has committed the batch."""
    SINK = "sink"
    """The sink, with the lock tokens of the rows."""


class OnMissing(Enum):
    """Reaction of a consuming stream to an entity that does not exist."""

    FAIL = "fail"
    """The query fails."""
    WAIT = "wait"
    """It reads the others, and that one as soon as it exists."""


def _read_entities(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    if not names:
        raise ValueError
    for name in names:
        if not _is_readable(name):
            raise SparkOptionError(
                f"the option 'entities' has {shown(name)}, which is not a valid name; it must be {_ENTITIES.text}"
            )
    return names


def _read_columns(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    if not names or any(_is_secret(name) for name in names):
        raise ValueError
    return names


def _read_entity(text: str) -> str:
    if not takes_messages(text) or _is_secret(text) or "," in text:  # the option names one destination
        raise ValueError
    return text


def _is_readable(name: str) -> bool:
    """Return whether a name or pattern can refer to entities."""
    path = split_entity_path(name)
    if path is None or path.management or _is_secret(name):
        return False
    return name == name.strip("/") and _INVALID_IN_NAMES.isdisjoint(name) and name.isprintable()


def _is_secret(name: str) -> bool:
    """Return whether the text is a connection string in the wrong option."""
    return "=" in name and "sharedaccess" in name.lower()


def _read_prefix(text: str) -> str:
    if not 1 <= len(text) <= _MAX_PREFIX or not text.isprintable():
        raise ValueError
    return text


_ENTITIES: Final = OptionForm(
    "queues and subscriptions, by name or pattern, separated by commas:"
    " orders, orders-*, news/subscriptions/audit, news/subscriptions/*, orders/$DeadLetterQueue",
    _read_entities,
)

_CONNECTION: Final = Option(
    name="connection",
    form=OptionForm("env:NAME, file:/path, or a connection string", ConnectionReference.parse),
    required=True,
    doc="Location of the connection string: an environment variable, a file, or the option itself. The driver and each"
    " executor read the variable or file themselves, so no secret gets into a plan, a log or a checkpoint."
    " A connection string in the option itself is part of the plan, which Spark stores and distributes.",
)

_CONNECT_TIMEOUT: Final = Option(
    name="connectTimeout",
    form=duration(
        timedelta(seconds=0.1), timedelta(days=1), "a number of seconds up to 1 day, such as 5, 2.5 or 1m", unit="s"
    ),
    default="10",
    doc="Time after which a query fails to start if it cannot connect to the namespace. A connection that is lost"
    " later is reopened within the timeout of each operation.",
)

_OPERATION_TIMEOUT: Final = Option(
    name="operationTimeout",
    form=duration(
        timedelta(seconds=0.1), timedelta(days=1), "a number of seconds up to 1 day, such as 60, 2.5 or 1m", unit="s"
    ),
    doc="Timeout of an operation with all its retries, such as a peek, a send or a settlement; by default that of the"
    " connection string, or 1 minute. A consuming stream goes on trying to receive after it.",
)

_MAX_RETRIES: Final = Option(
    name="maxRetries",
    form=number(0, 1_000_000),
    doc="Maximum number of retries of an operation after transient errors; by default only its timeout limits them.",
)

SOURCE_OPTIONS: Final = (
    _CONNECTION,
    _CONNECT_TIMEOUT,
    Option(
        name="entities",
        form=_ENTITIES,
        required=True,
        doc="Entities to read; `load(…)` sets the same. In a pattern `*` matches any text within one segment of a path"
        " and `?` any single character; case is ignored. Patterns require a key with the Manage claim, and are resolved"
        " when the query starts.",
    ),
    Option(
        name="columns",
        form=OptionForm("names of columns, separated by commas", _read_columns),
        doc="Columns to read. Spark does not tell a data source in Python which columns a query selects, so that all"
        " are decoded unless this option, or `.schema(…)`, names those that are needed.",
    ),
    Option(
        name="includeHeaders",
        form=_TRUTH,
        default="false",
        doc="`true` to read the column `headers` besides the others: the application properties with their types.",
    ),
    Option(
        name="mode",
        form=one_of(ReadMode),
        default=ReadMode.CONSUME.value,
        doc="`consume` receives messages, and removes them when their batch is committed. `browse` peeks messages, each"
        " once, and removes nothing; a stream reads a scheduled message when it is enqueued. `spark.read` always"
        " browses.",
    ),
    Option(
        name="maxMessagesPerTrigger",
        form=number(1, 10_000_000),
        default="10000",
        doc="Maximum number of messages in a batch of a stream, over all entities.",
    ),
    Option(
        name="maxBytesPerTrigger",
        form=number(1, 1_000_000_000_000),
        doc="Maximum size of the messages in a batch of a stream, in bytes, over all entities. A batch has one message"
        " at least. A browsing stream, which does not know the sizes of messages before it reads them, estimates them"
        " from those that it has peeked.",
    ),
    Option(
        name="partitionsPerQueue",
        form=number(1, 1000),
        default="1",
        doc="Number of tasks that read the messages of one entity in a batch.",
    ),
    Option(
        name="minPartitions",
        form=number(1, 100_000),
        doc="Minimum number of tasks that read a batch or table, if it has so many messages: entities with many"
        " messages are split. If unset, small entities share a task once there are more than 16 tasks.",
    ),
    Option(
        name="longPoll",
        form=duration(timedelta(seconds=1), timedelta(days=1), "a time from 1 second to 1 day, such as 30s, 15m or 1h"),
        default="15m",
        doc="Timeout of one receive from an empty entity. Each receive is billed. A long timeout delays nothing: a"
        " message that arrives meanwhile is received at once.",
    ),
    Option(
        name="startingOffsets",
        form=OptionForm('earliest, latest, or JSON such as {"orders": 17}', StartingOffsets.parse),
        default="earliest",
        doc="Start of a browsing stream or table: the `earliest` message, after the `latest`, or a sequence number for"
        " each entity. Entities that are not listed start with the earliest message. In a partitioned entity a number"
        " applies to its own partition; the others start with their earliest message. A consuming stream always starts"
        " at the head of the queue.",
    ),
    Option(
        name="startingTimestamp",
        form=_TIME,
        doc="Start of a browsing stream or table, instead of `startingOffsets`: the first message enqueued at that time"
        " or later.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        form=OptionForm(
            'JSON such as {"orders": "2026-11-16T04:00:00Z"}',
            partial(EntityTimes.parse, "startingOffsetsByTimestamp"),
        ),
        doc="The same for each entity. Entities that are not listed start as `startingOffsets` or `startingTimestamp`"
        " say.",
    ),
    Option(
        name="endingOffsets",
        form=OptionForm('latest, or JSON such as {"orders": 17}', EndingOffsets.parse),
        default="latest",
        doc="End of a table: after the `latest` message, or before a sequence number for each entity. In a partitioned"
        " entity a number applies to its own partition; the others end with their latest message.",
    ),
    Option(
        name="endingTimestamp",
        form=_TIME,
        doc="End of a table: before the first message enqueued at that time or later.",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        form=OptionForm(
            'JSON such as {"orders": "2026-11-16T04:00:00Z"}',
            partial(EntityTimes.parse, "endingOffsetsByTimestamp"),
        ),
        doc="The same for each entity.",
    ),
    Option(
        name="failOnDataLoss",
        form=_TRUTH,
        default="false",
        doc="`true` to fail if messages that the query should read are gone: messages of a batch that another receiver"
        " has settled, or that expired, before their task read them, and the message with the number that"
        " `startingOffsets` names. By default they are left out, since messages leave a queue at any time.",
    ),
    Option(
        name="settle",
        form=one_of(SettleAt),
        default=SettleAt.COMMIT.value,
        doc="Part that removes the messages of a consuming stream: the source after the batch is committed, or the"
        " sink, message by message, with the column `lock_token`.",
    ),
    Option(
        name="onMissing",
        form=one_of(OnMissing),
        default=OnMissing.FAIL.value,
        doc="Reaction of a consuming stream to an entity that does not exist, or is deleted: `fail`, or `wait` until it"
        " is created, and read the others meanwhile. With `availableNow` the query fails in any case.",
    ),
    Option(
        name="sessions",
        form=number(1, 1_000),
        doc="Maximum number of sessions of each entity that a consuming stream locks at a time; for entities that"
        " require sessions. Each session of a batch is read by one task, in order; a task reads several if a batch has"
        " more sessions than tasks: 16, unless `minPartitions` is more. States of sessions are left alone.",
    ),
    Option(
        name="metricsInterval",
        form=duration(timedelta(seconds=1), timedelta(days=1), "a time from 1 second to 1 day, such as 30s or 1h"),
        doc="Interval at which a stream reads the depth of its entities, the number of deferred messages and the age of"
        " the oldest message for `lastProgress`. The depth requires a key with the Manage claim. Each read is billed:"
        " a request for each entity, and a peek for each 100 of its first 1,000 messages. If unset, nothing is read.",
    ),
    Option(
        name="pageSize",
        form=number(1, 5000),
        default="500",
        doc="Number of messages fetched by one peek.",
    ),
    _OPERATION_TIMEOUT,
    _MAX_RETRIES,
)

SINK_OPTIONS: Final = (
    _CONNECTION,
    _CONNECT_TIMEOUT,
    Option(
        name="entity",
        form=OptionForm("the name of one queue or topic", _read_entity),
        doc="Destination of all rows; `save(…)` and `start(…)` set the same. If unset, the column `entity` has the"
        " destination of each row.",
    ),
    Option(
        name="messageIdPrefix",
        form=OptionForm(f"a text of 1 to {_MAX_PREFIX} characters", _read_prefix),
        doc="Prefix of generated ids, for messages without one in the column `message_id`. It identifies a write: rows"
        " that are written again with the same prefix get the same ids, and are dropped where duplicate detection is"
        " enabled."
        " So use another prefix for every other write, such as its date. If unset, each write gets a unique one."
        " The batches of a stream are distinguished in any case.",
    ),
    Option(
        name="batchSize",
        form=number(1, 5000),
        default="500",
        doc="Maximum number of messages sent to one entity at a time.",
    ),
    _OPERATION_TIMEOUT,
    _MAX_RETRIES,
)


def schema_options(options: Mapping[str, str]) -> tuple[tuple[str, ...] | None, bool]:
    """Return the columns that the options of a read name, if any, and whether headers are added to them.

    Spark asks for the schema before all else, so only these options are parsed. Raise ``SparkOptionError``.
    """
    given = {name.lower(): text for name, text in options.items()}
    columns, headers = (
        next(one for one in SOURCE_OPTIONS if one.name == name).read(given.get(name.lower()))
        for name in ("columns", "includeHeaders")
    )
    return columns, headers


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a read."""

    connection: ConnectionReference
    """With the timeout and the retries of the operations."""

    connect_timeout: timedelta
    entities: tuple[str, ...]
    """Names and patterns, as given."""

    columns: tuple[str, ...] | None = None
    include_headers: bool = False
    mode: ReadMode
    max_messages_per_trigger: int
    max_bytes_per_trigger: int | None = None
    partitions_per_queue: int
    min_partitions: int | None = None
    long_poll: timedelta
    starting_offsets: StartingOffsets
    starting_timestamp: datetime | None = None
    starting_offsets_by_timestamp: EntityTimes | None = None
    ending_offsets: EndingOffsets = EndingOffsets()
    ending_timestamp: datetime | None = None
    ending_offsets_by_timestamp: EntityTimes | None = None
    fail_on_data_loss: bool = False
    settle: SettleAt
    on_missing: OnMissing
    sessions: int | None = None
    metrics_interval: timedelta | None = None
    page_size: int
    operation_timeout: timedelta | None = None
    max_retries: int | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, is_stream: bool = True) -> Self:
        """Parse the options of a stream or a batch. Raise ``SparkOptionError``."""
        given = read_names(options, SOURCE_OPTIONS, "entities")
        if not is_stream:
            given.setdefault("mode", ReadMode.BROWSE.value)
        found = cls(**_with_retries(read_values(given, SOURCE_OPTIONS)))
        found._check_together(given, is_stream=is_stream)
        return found

    def _check_together(self, given: Mapping[str, str], *, is_stream: bool) -> None:
        if self.mode is ReadMode.CONSUME and not is_stream:
            raise SparkOptionError(
                "spark.read only peeks messages: remove the option 'mode', or use spark.readStream, with"
                " .trigger(availableNow=True) for a stream that ends"
            )
        if self.mode is ReadMode.CONSUME and not self.starting_offsets.are_earliest:
            raise SparkOptionError(
                "the option 'startingOffsets' requires the mode 'browse': a queue is consumed from its head, and"
                " messages before another position would be left behind"
            )
        if self.mode is ReadMode.BROWSE and "settle" in given:
            raise SparkOptionError("the option 'settle' requires the mode 'consume': browsing removes nothing")
        if self.mode is ReadMode.BROWSE and "onMissing" in given:
            raise SparkOptionError("the option 'onMissing' requires the mode 'consume': a browsing query fails")
        if not is_stream and self.starting_offsets.have_latest:
            raise SparkOptionError("the option 'startingOffsets' is latest, so spark.read would return no messages")
        self._check_bounds(given, is_stream=is_stream)
        self._check_sessions()

    def _check_bounds(self, given: Mapping[str, str], *, is_stream: bool) -> None:
        for name in sorted(_STARTS & given.keys()):
            if self.mode is ReadMode.CONSUME:
                raise SparkOptionError(
                    f"the option '{name}' requires the mode 'browse': a queue is consumed from its head"
                )
        for name in sorted(_ENDS & given.keys()):
            if is_stream:
                raise SparkOptionError(
                    f"the option '{name}' requires spark.read: a stream ends with .trigger(availableNow=True)"
                )
        for offsets, time in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
            if offsets in given and time in given:
                raise SparkOptionError(f"the options '{offsets}' and '{time}' exclude each other; remove one of them")

    def _check_sessions(self) -> None:
        if self.sessions is None:
            return
        if self.mode is ReadMode.BROWSE:
            raise SparkOptionError("the option 'sessions' requires the mode 'consume': browsing locks nothing")
        if self.settle is SettleAt.SINK:
            raise SparkOptionError(
                "the option 'sessions' requires settle=commit: the stream holds the lock of a session"
            )

    def start_of(self, entity: str) -> Bound:
        """Return where reading an entity starts."""
        otherwise = self.starting_timestamp or self.starting_offsets.of(entity)
        times = self.starting_offsets_by_timestamp
        return otherwise if times is None else _of(times.named, entity, otherwise)

    def end_of(self, entity: str) -> Bound:
        """Return what reading an entity as a table ends before."""
        otherwise = self.ending_timestamp or self.ending_offsets.of(entity)
        times = self.ending_offsets_by_timestamp
        return otherwise if times is None else _of(times.named, entity, otherwise)

    def check_entities(self, entities: Iterable[str]) -> None:
        """Raise ``SparkOptionError`` if an option lists an entity that is not read."""
        read = [*entities]
        listing = (
            self.starting_offsets,
            self.starting_offsets_by_timestamp,
            self.ending_offsets,
            self.ending_offsets_by_timestamp,
        )
        for one in listing:
            if one is not None:
                one.check(read)


_STARTS: Final = frozenset({"startingTimestamp", "startingOffsetsByTimestamp"})
_ENDS: Final = frozenset({"endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a write."""

    connection: ConnectionReference
    """With the timeout and the retries of the operations."""

    connect_timeout: timedelta
    entity: str | None
    """Destination of all rows; ``None`` if each row has its own."""

    message_id_prefix: str | None
    batch_size: int
    operation_timeout: timedelta | None = None
    max_retries: int | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Parse the options. Raise ``SparkOptionError``."""
        return cls(**_with_retries(read_values(read_names(options, SINK_OPTIONS, "entity"), SINK_OPTIONS)))


def _with_retries(values: dict[str, Any]) -> dict[str, Any]:
    """Add the timeout and the retries to the connection, which every part of a query gets."""
    connection: ConnectionReference = values["connection"]
    retries = {name: values[name] for name in ("operation_timeout", "max_retries")}
    return {**values, "connection": replace(connection, **retries)}
