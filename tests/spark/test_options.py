"""What can be said to Spark about reading and writing: what holds without a word, what is refused, and how."""

from __future__ import annotations

import pickle
import re
import traceback
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict

from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.errors import SparkOptionError
from pairbus.spark.option import Option
from pairbus.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, ReadMode, Settle, SinkOptions, SourceOptions
from pairbus.spark.starting_offsets import Position

KEY: Final = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U="
PIECE: Final = KEY[:8].lower()
TEXT: Final = f"Endpoint=sb://contoso.example;SharedAccessKeyName=app;SharedAccessKey={KEY}"
CONNECTION: Final = {"connection": "env:CONTOSO"}
LEAST: Final = {**CONNECTION, "entities": "orders"}
OPTIONS: Final = (*SOURCE_OPTIONS, *SINK_OPTIONS)


def source(**options: str) -> SourceOptions:
    return SourceOptions.from_options({**LEAST, **options})


def sink(**options: str) -> SinkOptions:
    return SinkOptions.from_options({**CONNECTION, **options})


# What holds where nothing is said


def test_d1_the_defaults_of_reading() -> None:
    found = source()
    assert found == SourceOptions(
        connection=ConnectionReference.parse("env:CONTOSO"),
        connect_timeout=timedelta(seconds=10),
        entities=("orders",),
        mode=ReadMode.CONSUME,
        max_messages_per_trigger=10_000,
        partitions_per_queue=1,
        long_poll=timedelta(minutes=15),
        starting_offsets=found.starting_offsets,
        settle=Settle.COMMIT,
        page_size=500,
    )
    assert found.starting_offsets.are_earliest


def test_d1_the_defaults_of_writing() -> None:
    connection = ConnectionReference.parse("env:CONTOSO")
    assert sink() == SinkOptions(
        connection=connection,
        connect_timeout=timedelta(seconds=10),
        entity=None,
        message_id_prefix=None,
        batch_size=500,
    )


def test_d1_a_batch_browses_unless_told_otherwise() -> None:
    found = SourceOptions.from_options({**LEAST, "startingOffsets": '{"orders": 7}'}, is_stream=False)
    assert found.mode is ReadMode.BROWSE
    assert found.starting_offsets.of("orders") == 7


# What can be said


def test_everything_about_reading_can_be_said() -> None:
    given = CaseInsensitiveDict(
        {
            "connection": "file:/run/secrets/contoso",
            "entities": " orders , orders-*,news/subscriptions/*/$DeadLetterQueue,",
            "mode": "Browse",
            "maxMessagesPerTrigger": "1",
            "partitionsPerQueue": " 4 ",
            "longPoll": "30s",
            "startingOffsets": "latest",
            "pageSize": "5000",
        }
    )
    found = SourceOptions.from_options(given)
    assert str(found.connection) == "file:/run/secrets/contoso"
    assert found.entities == ("orders", "orders-*", "news/subscriptions/*/$DeadLetterQueue")
    assert (found.mode, found.settle) == (ReadMode.BROWSE, Settle.COMMIT)
    assert (found.max_messages_per_trigger, found.partitions_per_queue, found.page_size) == (1, 4, 5000)
    assert found.long_poll == timedelta(seconds=30)
    assert found.starting_offsets.of("orders") is Position.LATEST


def test_everything_about_writing_can_be_said() -> None:
    found = sink(entity="news/local", messageIdPrefix="nightly ", batchSize="1")
    assert (found.entity, found.message_id_prefix, found.batch_size) == ("news/local", "nightly", 1)


@pytest.mark.parametrize("spelled", ["maxMessagesPerTrigger", "maxmessagespertrigger", "MAXMESSAGESPERTRIGGER"])
def test_upper_and_lower_case_are_the_same(spelled: str) -> None:
    assert source(**{spelled: "7"}).max_messages_per_trigger == 7


def test_settling_can_be_left_to_the_sink() -> None:
    assert source(settle="sink").settle is Settle.SINK


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("15m", timedelta(minutes=15)),
        ("15 minutes", timedelta(minutes=15)),
        ("1 Minute", timedelta(minutes=1)),
        ("1000ms", timedelta(seconds=1)),
        ("1.5 s", timedelta(seconds=1.5)),
        ("1 second", timedelta(seconds=1)),
        ("2h", timedelta(hours=2)),
        ("1 day", timedelta(days=1)),
    ],
)
def test_a_time_has_a_unit(text: str, length: timedelta) -> None:
    assert source(longPoll=text).long_poll == length


@given(st.integers(0, 200_000_000), st.sampled_from([("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)]))
def test_a_time_is_a_second_to_a_day(count: int, unit: tuple[str, int]) -> None:
    name, length_ms = unit
    if 1000 <= count * length_ms <= 86_400_000:
        assert source(longPoll=f"{count}{name}").long_poll == timedelta(milliseconds=count * length_ms)
    else:
        with pytest.raises(SparkOptionError, match="a time from 1 second to 1 day"):
            source(longPoll=f"{count}{name}")


@pytest.mark.parametrize(
    ("text", "length_s"), [("5", 5), ("2.5", 2.5), ("0.1", 0.1), ("300ms", 0.3), ("1m", 60), ("86400", 86_400)]
)
def test_connect_timeout_is_in_seconds_unless_it_has_a_unit(text: str, length_s: float) -> None:
    assert source(connectTimeout=text).connect_timeout == timedelta(seconds=length_s)
    assert sink(connectTimeout=text).connect_timeout == timedelta(seconds=length_s)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "86401", "", "5 5"])
def test_connect_timeout_out_of_range_is_rejected(text: str) -> None:
    with pytest.raises(SparkOptionError, match=r"'connectTimeout' is .*; it is a number of seconds up to 1 day"):
        source(connectTimeout=text)


# What a path says


def test_load_names_entities() -> None:
    assert SourceOptions.from_options({**CONNECTION, "path": "orders,news/subscriptions/*"}).entities == (
        "orders",
        "news/subscriptions/*",
    )
    assert SourceOptions.from_options({**CONNECTION, "paths": '["orders","mail"]'}).entities == ("orders", "mail")


def test_save_and_start_name_the_entity() -> None:
    assert sink(path="orders").entity == "orders"


def test_what_spark_keeps_for_itself_is_no_mistake() -> None:
    assert sink(checkpointlocation="/tmp/x", queryname="q", path="orders").entity == "orders"  # noqa: S108


@pytest.mark.parametrize("paths", ["orders", "[1]", '{"orders": 1}', "", "[" * 100_000])
def test_paths_are_a_list(paths: str) -> None:
    with pytest.raises(SparkOptionError, match=r"'paths' is .*; it is a list of texts"):
        SourceOptions.from_options({**CONNECTION, "paths": paths})


def test_a_path_and_an_option_are_too_much() -> None:
    with pytest.raises(SparkOptionError, match="the option 'entities' is given twice"):
        source(path="mail")
    with pytest.raises(SparkOptionError, match="the option 'entity' is given twice"):
        sink(path="mail", entity="mail")


# What is refused


def test_the_least_that_has_to_be_said() -> None:
    for options, missing in (({}, "connection"), (CONNECTION, "entities"), ({**LEAST, "entities": " "}, "entities")):
        with pytest.raises(SparkOptionError, match=f"the option '{missing}' is missing; it is "):
            SourceOptions.from_options(options)
    with pytest.raises(SparkOptionError, match="the option 'connection' is missing"):
        SinkOptions.from_options({"entity": "orders"})


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("longpol", "longPoll"),
        ("maxMessagePerTrigger", "maxMessagesPerTrigger"),
        ("entity", "entities"),
        ("startingOffset", "startingOffsets"),
        ("connectionString", "connection"),
        ("PARTITIONS_PER_QUEUE", "partitionsPerQueue"),
    ],
)
def test_an_unknown_option_is_told_with_the_nearest_one(key: str, nearest: str) -> None:
    with pytest.raises(SparkOptionError, match=f"there is no option '{key}'; is '{nearest}' meant\\?"):
        source(**{key: "1"})


def test_an_option_that_is_like_no_other_is_told_with_all() -> None:
    with pytest.raises(
        SparkOptionError, match="no option 'xyz'; there are connection, connectTimeout, entity, messageIdPrefix"
    ):
        sink(xyz="1")
    with pytest.raises(SparkOptionError, match="there is no option 'checkpoint'"):
        source(checkpoint="1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "peek"}, "the option 'mode' is 'peek'; it is consume or browse"),
        ({"mode": ""}, "the option 'mode' is ''; it is consume or browse"),
        ({"settle": "never"}, "the option 'settle' is 'never'; it is commit or sink"),
        ({"maxMessagesPerTrigger": "0"}, "'maxMessagesPerTrigger' is '0'; it is a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "10000001"}, "it is a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "9" * 5000}, "it is a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "1e3"}, "it is a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "1_000"}, "it is a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "٣"}, "it is a number from 1 to 10,000,000"),
        ({"partitionsPerQueue": "-1"}, "the option 'partitionsPerQueue' is '-1'; it is a number from 1 to 1,000"),
        ({"partitionsPerQueue": "1001"}, "it is a number from 1 to 1,000"),
        ({"pageSize": "5001"}, "the option 'pageSize' is '5001'; it is a number from 1 to 5,000"),
        ({"longPoll": "15"}, "the option 'longPoll' is '15'; it is a time from 1 second to 1 day, such as 30s"),
        ({"longPoll": "999ms"}, "it is a time from 1 second to 1 day"),
        ({"longPoll": "25h"}, "it is a time from 1 second to 1 day"),
        ({"longPoll": "999999999d"}, "it is a time from 1 second to 1 day"),
        ({"longPoll": "-1m"}, "it is a time from 1 second to 1 day"),
        ({"longPoll": "1 month"}, "it is a time from 1 second to 1 day"),
        ({"startingOffsets": "sometimes"}, "startingOffsets is 'sometimes'; it is earliest"),
        ({"entities": ","}, "the option 'entities' is ','; it is queues and subscriptions"),
        ({"entities": "orders,/mail"}, "the option 'entities' names '/mail', which no entity is called"),
        ({"entities": "orders//mail"}, "names 'orders//mail'"),
        ({"entities": "orders/$management"}, "names 'orders/$management'"),
        ({"entities": "$deadletterqueue"}, "names '$deadletterqueue'"),
        ({"entities": "or@ders"}, "names 'or@ders'"),
        ({"entities": "or\nders"}, "names 'or\\nders'"),
    ],
    ids=lambda given: f"{given!r:.40}",
)
def test_what_cannot_be_read_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SparkOptionError, match=re.escape(message)) as caught:
        source(**options)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entity": ""}, "the option 'entity' is ''; it is the name of one queue or topic"),
        ({"entity": "orders,mail"}, "it is the name of one queue or topic"),
        ({"entity": "orders-*"}, "it is the name of one queue or topic"),
        ({"entity": "news/subscriptions/audit"}, "it is the name of one queue or topic"),
        ({"entity": "orders/$DeadLetterQueue"}, "it is the name of one queue or topic"),
        ({"entity": "/orders"}, "it is the name of one queue or topic"),
        ({"messageIdPrefix": ""}, "it is a text of 1 to 48 characters"),
        ({"messageIdPrefix": "x" * 49}, "it is a text of 1 to 48 characters"),
        ({"messageIdPrefix": "a\nb"}, "it is a text of 1 to 48 characters"),
        ({"batchSize": "0"}, "the option 'batchSize' is '0'; it is a number from 1 to 5,000"),
    ],
    ids=lambda given: f"{given!r:.40}",
)
def test_what_cannot_be_written_to_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SparkOptionError, match=re.escape(message)):
        sink(**options)


# What does not go together


@pytest.mark.parametrize("offsets", ["latest", '{"orders": 17}'])
def test_a_queue_is_consumed_from_its_head(offsets: str) -> None:
    with pytest.raises(SparkOptionError, match="'startingOffsets' needs the mode 'browse': a queue is consumed from"):
        source(startingOffsets=offsets)
    assert source(startingOffsets=offsets, mode="browse")
    assert source(startingOffsets="earliest")


def test_who_browses_settles_nothing() -> None:
    with pytest.raises(SparkOptionError, match="'settle' needs the mode 'consume'"):
        source(mode="browse", settle="commit")


def test_d1_a_batch_cannot_consume() -> None:
    with pytest.raises(SparkOptionError, match=r"spark\.read only looks at messages.*availableNow"):
        SourceOptions.from_options({**LEAST, "mode": "consume"}, is_stream=False)


def test_a_batch_cannot_wait_for_what_is_to_come() -> None:
    with pytest.raises(SparkOptionError, match="would find nothing"):
        SourceOptions.from_options({**LEAST, "startingOffsets": "latest"}, is_stream=False)


# What is said travels, and secrets do not


def test_options_travel_to_executors() -> None:
    for options in (source(mode="browse", startingOffsets='{"orders": 1}'), sink(entity="orders")):
        copied = pickle.loads(pickle.dumps(options))  # noqa: S301
        assert copied == options
        assert hash(copied) == hash(options)


def test_no_key_is_shown() -> None:
    for options in (source(connection=TEXT), sink(connection=TEXT)):
        assert PIECE not in repr(options).lower()
        assert options.connection.resolve() == TEXT


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
@pytest.mark.parametrize("text", [TEXT, f"SharedAccessKey={KEY}", f"[{TEXT}", f'{{"{TEXT}": 1}}', f"x,{TEXT}"])
def test_a_connection_string_in_the_wrong_place_is_not_repeated(option: Option, text: str) -> None:
    kind: Any = SourceOptions if option in SOURCE_OPTIONS else SinkOptions
    least = LEAST if kind is SourceOptions else CONNECTION
    for options in ({**least, option.name: text}, {**least, text: "x"}):
        try:
            shown = repr(kind.from_options(options))
        except SparkOptionError as error:
            shown = "".join(traceback.format_exception(error))
        assert PIECE not in shown.lower()


NAMES: Final = [option.name for option in OPTIONS]


@given(
    said=st.dictionaries(st.sampled_from([*NAMES, "path", "paths"]) | st.text(max_size=8), st.text(max_size=20)),
    is_stream=st.booleans(),
)
def test_whatever_is_said_has_an_answer(said: dict[str, str], is_stream: bool) -> None:
    for options in (said, {**said, **LEAST}, {**said, **CONNECTION}):
        with suppress(SparkOptionError):
            assert SourceOptions.from_options(options, is_stream=is_stream).entities
        with suppress(SparkOptionError):
            assert SinkOptions.from_options(options).batch_size


# The tables


@pytest.mark.parametrize(("table", "kind"), [(SOURCE_OPTIONS, SourceOptions), (SINK_OPTIONS, SinkOptions)])
def test_what_the_table_has_is_what_there_is(table: tuple[Option, ...], kind: type) -> None:
    assert [option.field for option in table] == [field.name for field in fields(kind)]
    assert len({option.name.lower() for option in table}) == len(table)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_can_be_looked_up(option: Option) -> None:
    assert re.fullmatch("[a-z]+([A-Z][a-z]+)*", option.name)
    assert option.form.text
    assert option.doc.endswith(".")
    if option.default is not None:
        assert not option.required
        assert option.read(None) == option.read(option.default)


# What Spark makes of it


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_d1_spark_hands_over_what_was_said(tmp_path: Path) -> None:
    """All the ways that Spark has to say something, with a source that tells what it got."""
    from pairbus.spark.session import ensured_session
    from tests.spark.telling_source import LOG, TellingSource

    log = tmp_path / "log"
    with ensured_session("local[1]") as spark:
        spark.dataSource.register(TellingSource)

        def told() -> set[str]:
            lines = set(log.read_text().splitlines())
            log.write_text("")
            return lines

        def reads(stream: Any) -> Any:
            return stream.format("telling").option("connection", TEXT).option(LOG, str(log)).option("longPoll", "1 day")

        log.write_text("")
        reads(spark.read).load("orders, mail").collect()
        browsed = SourceOptions.from_options(
            {"connection": TEXT, "longPoll": "1d", "path": "orders,mail"}, is_stream=False
        )
        assert told() == {repr(browsed)}
        reads(spark.read).option("ENTITIES", "mail").load().collect()
        assert "entities=('mail',)" in told().pop()
        reads(spark.read).load(["orders", "mail"]).collect()
        assert told() == {repr(browsed)}

        rows = spark.range(1)
        rows.write.format("telling").mode("append").option("connection", TEXT).option(LOG, str(log)).save("orders")
        written = SinkOptions.from_options({"connection": TEXT, "entity": "orders"})
        assert told() == {repr(written)}

        writer = reads(spark.readStream).load("orders,mail").writeStream.format("telling").queryName("q")
        writer = writer.option("connection", TEXT).option(LOG, str(log)).option("batchSize", 7)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = writer.start("out")
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        streamed = SourceOptions.from_options({"connection": TEXT, "longPoll": "1d", "path": "orders,mail"})
        stream_written = SinkOptions.from_options({"connection": TEXT, "entity": "out", "batchSize": "7"})
        assert told() == {repr(streamed), repr(stream_written)}
