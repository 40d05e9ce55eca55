"""Options of reading and writing: defaults, errors, and how Spark passes them."""

from __future__ import annotations

import pickle
import re
import traceback
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict

from pairbus.spark.connections import ConnectionReference
from pairbus.spark.errors import SparkOptionError
from pairbus.spark.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    OnMissing,
    Option,
    Position,
    ReadMode,
    SettleAt,
    SinkOptions,
    SourceOptions,
)

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


# Defaults


def test_d1_read_defaults() -> None:
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
        settle=SettleAt.COMMIT,
        on_missing=OnMissing.FAIL,
        page_size=500,
    )
    assert found.starting_offsets.are_earliest


def test_d1_write_defaults() -> None:
    connection = ConnectionReference.parse("env:CONTOSO")
    assert sink() == SinkOptions(
        connection=connection,
        connect_timeout=timedelta(seconds=10),
        entity=None,
        message_id_prefix=None,
        batch_size=500,
    )


def test_d1_batch_browses_by_default() -> None:
    found = SourceOptions.from_options({**LEAST, "startingOffsets": '{"orders": 7}'}, is_stream=False)
    assert found.mode is ReadMode.BROWSE
    assert found.starting_offsets.of("orders") == 7


# Values


def test_all_read_options_are_parsed() -> None:
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
    assert (found.mode, found.settle) == (ReadMode.BROWSE, SettleAt.COMMIT)
    assert (found.max_messages_per_trigger, found.partitions_per_queue, found.page_size) == (1, 4, 5000)
    assert found.long_poll == timedelta(seconds=30)
    assert found.starting_offsets.of("orders") is Position.LATEST


def test_all_write_options_are_parsed() -> None:
    found = sink(entity="news/local", messageIdPrefix="nightly ", batchSize="1")
    assert (found.entity, found.message_id_prefix, found.batch_size) == ("news/local", "nightly", 1)


@pytest.mark.parametrize("spelled", ["maxMessagesPerTrigger", "maxmessagespertrigger", "MAXMESSAGESPERTRIGGER"])
def test_option_names_are_case_insensitive(spelled: str) -> None:
    assert source(**{spelled: "7"}).max_messages_per_trigger == 7


def test_settlement_by_the_sink_is_parsed() -> None:
    assert source(settle="sink").settle is SettleAt.SINK


def test_missing_entities_can_be_waited_for() -> None:
    assert source(onMissing="Wait").on_missing is OnMissing.WAIT


def test_e4_stream_that_browses_cannot_wait_for_missing_entities() -> None:
    with pytest.raises(SparkOptionError, match=r"onMissing.*consume"):
        source(mode="browse", onMissing="wait")


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
def test_duration_has_a_unit(text: str, length: timedelta) -> None:
    assert source(longPoll=text).long_poll == length


@given(st.integers(0, 200_000_000), st.sampled_from([("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)]))
def test_duration_is_one_second_to_one_day(count: int, unit: tuple[str, int]) -> None:
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
    with pytest.raises(SparkOptionError, match=r"'connectTimeout' must be a number of seconds up to 1 day, .* got "):
        source(connectTimeout=text)


# Paths


def test_load_sets_entities() -> None:
    assert SourceOptions.from_options({**CONNECTION, "path": "orders,news/subscriptions/*"}).entities == (
        "orders",
        "news/subscriptions/*",
    )
    assert SourceOptions.from_options({**CONNECTION, "paths": '["orders","mail"]'}).entities == ("orders", "mail")


def test_save_and_start_set_the_entity() -> None:
    assert sink(path="orders").entity == "orders"


def test_options_of_spark_are_ignored() -> None:
    assert sink(checkpointlocation="/tmp/x", queryname="q", path="orders").entity == "orders"  # noqa: S108


@pytest.mark.parametrize("paths", ["orders", "[1]", '{"orders": 1}', "", "[" * 100_000])
def test_paths_are_a_json_list(paths: str) -> None:
    with pytest.raises(SparkOptionError, match=r"'paths' must be a JSON list of strings, got "):
        SourceOptions.from_options({**CONNECTION, "paths": paths})


def test_path_and_option_together_are_rejected() -> None:
    with pytest.raises(SparkOptionError, match="the option 'entities' is given twice"):
        source(path="mail")
    with pytest.raises(SparkOptionError, match="the option 'entity' is given twice"):
        sink(path="mail", entity="mail")


# Errors


def test_missing_required_option_is_rejected() -> None:
    for options, missing in (({}, "connection"), (CONNECTION, "entities"), ({**LEAST, "entities": " "}, "entities")):
        with pytest.raises(SparkOptionError, match=f"the option '{missing}' is required; it must be "):
            SourceOptions.from_options(options)
    with pytest.raises(SparkOptionError, match="the option 'connection' is required"):
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
def test_unknown_option_is_rejected_with_the_nearest_name(key: str, nearest: str) -> None:
    with pytest.raises(SparkOptionError, match=f"unknown option '{key}'; did you mean '{nearest}'\\?"):
        source(**{key: "1"})


def test_unknown_option_is_rejected_with_all_names() -> None:
    with pytest.raises(
        SparkOptionError, match="unknown option 'xyz'; available: connection, connectTimeout, entity, messageIdPrefix"
    ):
        sink(xyz="1")
    with pytest.raises(SparkOptionError, match="unknown option 'checkpoint'"):
        source(checkpoint="1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "peek"}, "the option 'mode' must be consume or browse"),
        ({"mode": ""}, "the option 'mode' must be consume or browse"),
        ({"settle": "never"}, "the option 'settle' must be commit or sink"),
        ({"maxMessagesPerTrigger": "0"}, "'maxMessagesPerTrigger' must be a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "10000001"}, "must be a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "9" * 5000}, "must be a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "1e3"}, "must be a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "1_000"}, "must be a number from 1 to 10,000,000"),
        ({"maxMessagesPerTrigger": "٣"}, "must be a number from 1 to 10,000,000"),
        ({"partitionsPerQueue": "-1"}, "the option 'partitionsPerQueue' must be a number from 1 to 1,000"),
        ({"partitionsPerQueue": "1001"}, "must be a number from 1 to 1,000"),
        ({"pageSize": "5001"}, "the option 'pageSize' must be a number from 1 to 5,000"),
        ({"longPoll": "15"}, "the option 'longPoll' must be a time from 1 second to 1 day, such as 30s"),
        ({"longPoll": "999ms"}, "must be a time from 1 second to 1 day"),
        ({"longPoll": "25h"}, "must be a time from 1 second to 1 day"),
        ({"longPoll": "999999999d"}, "must be a time from 1 second to 1 day"),
        ({"longPoll": "-1m"}, "must be a time from 1 second to 1 day"),
        ({"longPoll": "1 month"}, "must be a time from 1 second to 1 day"),
        ({"startingOffsets": "sometimes"}, "startingOffsets must be earliest"),
        ({"entities": ","}, "the option 'entities' must be queues and subscriptions"),
        ({"entities": "orders,/mail"}, "the option 'entities' has '/mail', which is not a valid name"),
        ({"entities": "orders//mail"}, "has 'orders//mail'"),
        ({"entities": "orders/$management"}, "has 'orders/$management'"),
        ({"entities": "$deadletterqueue"}, "has '$deadletterqueue'"),
        ({"entities": "or@ders"}, "has 'or@ders'"),
        ({"entities": "or\nders"}, "has 'or\\nders'"),
    ],
    ids=lambda given: f"{given!r:.40}",
)
def test_invalid_read_option_is_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(SparkOptionError, match=re.escape(message)) as caught:
        source(**options)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entity": ""}, "the option 'entity' must be the name of one queue or topic"),
        ({"entity": "orders,mail"}, "must be the name of one queue or topic"),
        ({"entity": "orders-*"}, "must be the name of one queue or topic"),
        ({"entity": "news/subscriptions/audit"}, "must be the name of one queue or topic"),
        ({"entity": "orders/$DeadLetterQueue"}, "must be the name of one queue or topic"),
        ({"entity": "/orders"}, "must be the name of one queue or topic"),
        ({"messageIdPrefix": ""}, "must be a text of 1 to 48 characters"),
        ({"messageIdPrefix": "x" * 49}, "must be a text of 1 to 48 characters"),
        ({"messageIdPrefix": "a\nb"}, "must be a text of 1 to 48 characters"),
        ({"batchSize": "0"}, "the option 'batchSize' must be a number from 1 to 5,000"),
    ],
    ids=lambda given: f"{given!r:.40}",
)
def test_invalid_write_option_is_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(SparkOptionError, match=re.escape(message)):
        sink(**options)


# Conflicts


@pytest.mark.parametrize("offsets", ["latest", '{"orders": 17}'])
def test_starting_offsets_are_rejected_with_consume(offsets: str) -> None:
    with pytest.raises(
        SparkOptionError, match="'startingOffsets' requires the mode 'browse': a queue is consumed from"
    ):
        source(startingOffsets=offsets)
    assert source(startingOffsets=offsets, mode="browse")
    assert source(startingOffsets="earliest")


def test_settle_is_rejected_with_browse() -> None:
    with pytest.raises(SparkOptionError, match="'settle' requires the mode 'consume'"):
        source(mode="browse", settle="commit")


def test_d1_consume_is_rejected_for_a_batch() -> None:
    with pytest.raises(SparkOptionError, match=r"spark\.read only peeks messages.*availableNow"):
        SourceOptions.from_options({**LEAST, "mode": "consume"}, is_stream=False)


def test_latest_is_rejected_for_a_batch() -> None:
    with pytest.raises(SparkOptionError, match="would return no messages"):
        SourceOptions.from_options({**LEAST, "startingOffsets": "latest"}, is_stream=False)


# Pickling and secrets


def test_options_survive_pickling() -> None:
    for options in (source(mode="browse", startingOffsets='{"orders": 1}'), sink(entity="orders")):
        copied = pickle.loads(pickle.dumps(options))  # noqa: S301
        assert copied == options
        assert hash(copied) == hash(options)


def test_options_do_not_show_the_key() -> None:
    for options in (source(connection=TEXT), sink(connection=TEXT)):
        assert PIECE not in repr(options).lower()
        assert options.connection.resolve() == TEXT


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
@pytest.mark.parametrize("text", [TEXT, f"SharedAccessKey={KEY}", f"[{TEXT}", f'{{"{TEXT}": 1}}', f"x,{TEXT}"])
def test_misplaced_connection_string_is_not_shown(option: Option, text: str) -> None:
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
def test_any_options_are_parsed_or_rejected(said: dict[str, str], is_stream: bool) -> None:
    for options in (said, {**said, **LEAST}, {**said, **CONNECTION}):
        with suppress(SparkOptionError):
            assert SourceOptions.from_options(options, is_stream=is_stream).entities
        with suppress(SparkOptionError):
            assert SinkOptions.from_options(options).batch_size


# Options of a connector.


def read_options(**options: str) -> SourceOptions:
    return SourceOptions.from_options({**LEAST, **options}, is_stream=False)


@pytest.mark.parametrize("text", ["1763265600000", "2025-11-16T04:00:00Z", "2025-11-16T05:00:00+01:00"])
def test_d1_bounds_are_times(text: str) -> None:
    at = datetime(2025, 11, 16, 4, tzinfo=UTC)
    assert read_options(startingTimestamp=text).start_of("orders") == at
    assert read_options(endingTimestamp=text).end_of("orders") == at
    named = read_options(
        entities="orders,mail", startingOffsetsByTimestamp=f'{{"Orders": "{text}"}}', startingOffsets='{"mail": 7}'
    )
    assert (named.start_of("orders"), named.start_of("mail")) == (at, 7)
    assert read_options(endingOffsetsByTimestamp='{"orders": 1763265600000}').end_of("orders") == at


def test_d1_bounds_of_entities_that_are_not_listed() -> None:
    found = read_options(endingOffsets='{"orders": 7}')
    assert (found.end_of("ORDERS"), found.end_of("mail")) == (7, Position.LATEST)
    assert found.start_of("mail") is Position.EARLIEST


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingTimestamp": "yesterday"}, "'startingTimestamp' must be a time such as 2026-11-16T04:00:00Z, or"),
        ({"startingTimestamp": "2026-11-16T04:00:00"}, "'startingTimestamp' must be a time such as"),
        ({"endingTimestamp": "9" * 18}, "'endingTimestamp' must be a time such as"),
        ({"startingOffsetsByTimestamp": "1"}, "startingOffsetsByTimestamp must be JSON such as"),
        ({"endingOffsetsByTimestamp": '{"orders": true}'}, "of 'orders' must be a time such as .*, got True"),
        ({"endingOffsets": "earliest"}, "endingOffsets must be latest, or JSON such as"),
        ({"endingOffsets": '{"orders": -1}'}, "of 'orders' must be a sequence number >= 0, latest, got -1"),
        ({"startingOffsets": "{}", "startingTimestamp": "1"}, "'startingOffsets' and 'startingTimestamp' exclude each"),
        ({"endingOffsets": "{}", "endingTimestamp": "1"}, "'endingOffsets' and 'endingTimestamp' exclude each other"),
        ({"sessions": "2"}, "'sessions' requires the mode 'consume'"),
        ({"failOnDataLoss": "yes"}, "'failOnDataLoss' must be true or false, got 'yes'"),
        ({"columns": " , "}, "'columns' must be names of columns"),
        ({"minPartitions": "0"}, "'minPartitions' must be a number from 1"),
        ({"maxBytesPerTrigger": "0"}, "'maxBytesPerTrigger' must be a number from 1"),
        ({"operationTimeout": "0"}, "'operationTimeout' must be a number of seconds"),
        ({"maxRetries": "-1"}, "'maxRetries' must be a number from 0"),
    ],
)
def test_invalid_connector_option_is_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(SparkOptionError, match=message):
        read_options(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingTimestamp": "1"}, "'startingTimestamp' requires the mode 'browse'"),
        ({"mode": "browse", "endingTimestamp": "1"}, "'endingTimestamp' requires spark.read"),
        ({"sessions": "2", "settle": "sink"}, "'sessions' requires settle=commit"),
    ],
)
def test_option_of_another_kind_of_query_is_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(SparkOptionError, match=message):
        source(**options)


@pytest.mark.parametrize("name", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "endingOffsets"])
def test_bounds_of_entities_that_are_not_read_are_rejected(name: str) -> None:
    with pytest.raises(SparkOptionError, match=f"{name} lists 'mail', which is not among the entities to read"):
        read_options(**{name: '{"mail": 1}'}).check_entities(["orders"])


# The tables


@pytest.mark.parametrize(("table", "kind"), [(SOURCE_OPTIONS, SourceOptions), (SINK_OPTIONS, SinkOptions)])
def test_option_tables_match_the_dataclasses(table: tuple[Option, ...], kind: type) -> None:
    assert [option.field for option in table] == [field.name for field in fields(kind)]
    assert len({option.name.lower() for option in table}) == len(table)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_documented(option: Option) -> None:
    assert re.fullmatch("[a-z]+([A-Z][a-z]+)*", option.name)
    assert option.form.text
    assert option.doc.endswith(".")
    if option.default is not None:
        assert not option.required
        assert option.read(None) == option.read(option.default)


# Options passed by Spark


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_d1_spark_passes_options_unchanged(tmp_path: Path) -> None:
    """All ways to set an option in Spark, with a source that records what it got."""
    from pairbus.spark.session import ensured_session
    from tests.spark.recording_source import LOG, RecordingSource

    log = tmp_path / "log"
    with ensured_session("local[1]") as spark:
        spark.dataSource.register(RecordingSource)

        def reported() -> set[str]:
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
        assert reported() == {repr(browsed)}
        reads(spark.read).option("ENTITIES", "mail").load().collect()
        assert "entities=('mail',)" in reported().pop()
        reads(spark.read).load(["orders", "mail"]).collect()
        assert reported() == {repr(browsed)}

        rows = spark.range(1)
        rows.write.format("telling").mode("append").option("connection", TEXT).option(LOG, str(log)).save("orders")
        written = SinkOptions.from_options({"connection": TEXT, "entity": "orders"})
        assert reported() == {repr(written)}

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
        assert reported() == {repr(streamed), repr(stream_written)}
