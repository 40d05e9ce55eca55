"""Options of reading and writing messages, as given with ``.option(…)``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, Self, TypeAlias, TypeVar

from pairbus.client.validation import shown
from pairbus.dialect.paths import split_entity_path, takes_messages
from pairbus.spark.connections import ConnectionReference
from pairbus.spark.errors import SparkOptionError

_MAX_SEQUENCE: Final = 2**63 - 1
_FORM: Final = 'earliest, latest, or JSON such as {"orders": 17, "news/subscriptions/audit": "latest"}'


class Position(Enum):
    """A named position in an entity."""

    EARLIEST = "earliest"
    LATEST = "latest"


Start: TypeAlias = int | Position
"""The sequence number of the first message to read, or a position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingOffsets:
    """The value of the option ``startingOffsets``. Entity names are case-insensitive."""

    otherwise: Position = Position.EARLIEST
    """For all entities that are not listed."""

    named: tuple[tuple[str, Start], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the option. Raise ``SparkOptionError``."""
        given = text.strip()
        position = _POSITIONS.get(given.lower())
        if position is not None:
            return cls(otherwise=position)
        return cls(named=tuple((name, _start(name, start)) for name, start in _object(given)))

    @property
    def are_earliest(self) -> bool:
        """True if all entities are read from their first message."""
        return self._all == {Position.EARLIEST}

    @property
    def have_latest(self) -> bool:
        """True if some entity is read from its end."""
        return Position.LATEST in self._all

    @property
    def _all(self) -> set[Start]:
        return {self.otherwise, *(start for _, start in self.named)}

    def of(self, entity: str) -> Start:
        return next((start for name, start in self.named if name.lower() == entity.lower()), self.otherwise)

    def check(self, entities: Iterable[str]) -> None:
        """Raise ``SparkOptionError`` if an entity is listed that is not read."""
        read = {entity.lower() for entity in entities}
        for name, _ in self.named:
            if name.lower() not in read:
                raise SparkOptionError(f"startingOffsets lists {shown(name)}, which is not among the entities to read")


_POSITIONS: Final = {position.value: position for position in Position}


def _object(text: str) -> list[tuple[str, Any]]:
    try:
        found = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        raise SparkOptionError(f"startingOffsets must be {_FORM}, got {shown(text)}") from None
    if not isinstance(found, _Pairs):
        raise SparkOptionError(f"startingOffsets must be {_FORM}, got {shown(text)}")
    _check_once(name for name, _ in found)
    return found


def _check_once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SparkOptionError(f"startingOffsets lists {shown(name)} twice")
        seen.add(name.lower())


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its duplicate names."""


def _start(name: str, start: object) -> Start:
    if isinstance(start, str) and start.lower() in _POSITIONS:
        return _POSITIONS[start.lower()]
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= _MAX_SEQUENCE:
        return start
    raise SparkOptionError(
        f"startingOffsets of {shown(name)} must be a sequence number >= 0, earliest or latest, got {shown(start)}"
    )


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
        name="partitionsPerQueue",
        form=number(1, 1000),
        default="1",
        doc="Number of tasks that read the messages of one entity in a batch.",
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
        name="pageSize",
        form=number(1, 5000),
        default="500",
        doc="Number of messages fetched by one peek.",
    ),
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a read."""

    connection: ConnectionReference
    connect_timeout: timedelta
    entities: tuple[str, ...]
    """Names and patterns, as given."""

    mode: ReadMode
    max_messages_per_trigger: int
    partitions_per_queue: int
    long_poll: timedelta
    starting_offsets: StartingOffsets
    settle: SettleAt
    on_missing: OnMissing
    page_size: int

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, is_stream: bool = True) -> Self:
        """Parse the options of a stream or a batch. Raise ``SparkOptionError``."""
        given = read_names(options, SOURCE_OPTIONS, "entities")
        if not is_stream:
            given.setdefault("mode", ReadMode.BROWSE.value)
        found = cls(**read_values(given, SOURCE_OPTIONS))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a write."""

    connection: ConnectionReference
    connect_timeout: timedelta
    entity: str | None
    """Destination of all rows; ``None`` if each row has its own."""

    message_id_prefix: str | None
    batch_size: int

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Parse the options. Raise ``SparkOptionError``."""
        return cls(**read_values(read_names(options, SINK_OPTIONS, "entity"), SINK_OPTIONS))
