"""Bills from ledgers (D3), calculated by hand for each rate card; lines add up to the total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pairbus.jobs.cost.bill import charges, statement
from pairbus.jobs.cost.month import BillingMeter, beyond_allowances
from pairbus.jobs.cost.rate_card import CountedBy, Failures, RateCard, load_rate_card
from pairbus.jobs.cost.statement import GroupBy, Statement, StatementLine
from pairbus.jobs.ledger.tables import FEW_ROWS, HANDFUL, read_operations
from pairbus.ledger.events import OperationKind, Stage
from tests.jobs.ledger.written import Row, operation, write

MONTH = "2026-04"


def ledger(spark: SparkSession, directory: Path, rows: Sequence[Row]) -> DataFrame:
    write(directory, rows)
    return read_operations(spark, directory)


def many(time: str, count: int, **values: Any) -> dict[str, Any]:
    """Return rows for this many operations of one small message each, within a second."""
    counts = {"operations": count, "messages": count, "bytes": 1_000 * count, "units": count, "request_units": count}
    return operation(time, **(counts | values))


def outage(count: int, size: int = 1_000) -> list[dict[str, Any]]:
    """Return the operations of a pair for diverted messages, from both ledgers."""
    away, home = {"namespace": "fabrikam", "entity": "contoso/x-servicebus-transfer/0"}, {"namespace": "contoso"}
    data = {"bytes": size * count}
    return [
        many(f"{MONTH}-02T10:00", count, kind="send", stage="backlog", **away, **data),
        many(f"{MONTH}-02T11:00", count, kind="receive", stage="syphon", **away, **data),
        many(f"{MONTH}-02T11:00", count, kind="settle", stage="syphon", **away, bytes=0),
        many(f"{MONTH}-02T11:00:01", count, kind="send", stage="syphon", **home, **data),
        many(f"{MONTH}-02T11:30", count, kind="receive", stage="returned", **home, **data),
    ]


def line(found: Statement, *labels: str) -> StatementLine:
    return next(one for one in found.lines if one.labels == labels)


def step(found: Statement, name: str) -> StatementLine:
    return next(one for one in found.steps if one.labels == (name,))


def reading(found: Statement, meter: BillingMeter) -> tuple[Decimal, Decimal]:
    (month,) = found.months.values()
    (one,) = (one for one in month.readings if one.meter is meter)
    return one.quantity, one.amount


def add_up(lines: Sequence[StatementLine]) -> Decimal:
    return sum((one.amount for one in lines), Decimal(0))


@pytest.mark.slow
def test_d3_bill_of_the_standard_tier(spark: SparkSession, tmp_path: Path) -> None:
    # Operations, in units of 64 KB:
    #   direct: 60,000,000 sends, 60,000,000 receives                        120,000,000
    #   diverted: 1,000,000 messages, four times                               4,000,000
    #   120 pings and 960 polls of empty backlog queues                            1,080
    #   one message of 100 KB                                                          2
    #   10 requests to the management API                                             10
    #   settling and refused sends                                                     0
    #                                                                        124,001,092
    # 12.5 million are included, the next 87.5 million cost 0.80 a million:       70.00
    # and the remaining 24,001,092 cost 0.50 a million:                           12.000546
    # Connections: 20 + 5 in one hour, 10 in another: 35 / 730 = 0.047945…, included.
    # Bandwidth: what the syphon fetched, a million times 2,000 bytes: 2 GB at 0.15: 0.30
    # The base charge, for both namespaces:                                       10
    #                                                                     92.300546
    backup = "contoso/x-servicebus-transfer/0"
    rows = [
        many(f"{MONTH}-01T00:00", 60_000_000),
        many(f"{MONTH}-01T01:00", 60_000_000, kind="receive"),
        many(f"{MONTH}-01T01:00", 60_000_000, kind="settle", bytes=0),
        *outage(1_000_000, size=2_000),
        many(f"{MONTH}-02T10:00", 120, stage="ping", bytes=0),
        many(f"{MONTH}-03T00:00", 960, kind="empty receive", stage="idle", entity=backup, messages=0, bytes=0),
        operation(f"{MONTH}-03T00:00", bytes=100_000, units=2, request_units=2),
        many(f"{MONTH}-03T00:00", 10, kind="management", stage="management", entity="", messages=0, bytes=0),
        many(f"{MONTH}-03T00:00", 77, result="com.microsoft:server-busy"),
        operation(f"{MONTH}-04T05:00", kind="connection", entity="", operations=0, messages=0, units=0, connections=20),
        operation(
            f"{MONTH}-04T05:59:59", namespace="fabrikam", kind="connection", operations=0, units=0, connections=5
        ),
        operation(f"{MONTH}-04T05:30", kind="connection", entity="", operations=0, units=0, connections=7),
        operation(f"{MONTH}-04T06:00", kind="connection", entity="", operations=0, units=0, connections=10),
    ]
    found = statement(ledger(spark, tmp_path, rows), load_rate_card("standard"))
    assert reading(found, BillingMeter.OPERATIONS) == (Decimal(124_001_092), Decimal("82.000546"))
    assert reading(found, BillingMeter.CONNECTIONS) == (Decimal("0.047945"), Decimal(0))
    assert reading(found, BillingMeter.BANDWIDTH) == (Decimal(2), Decimal("0.30"))
    assert reading(found, BillingMeter.BASE_CHARGE) == (Decimal(1), Decimal(10))
    assert found.total == Decimal("92.300546")
    assert [*found.months] == [date(2026, 4, 1)]
    # An operation costs 82.000546 / 124,001,092 on average, which is 0.00000066128889…
    assert add_up(found.lines) == found.total
    assert line(found, "direct", "settle").amount == 0
    assert line(found, "direct", "send").failed == 77
    assert line(found, "direct", "send").operations == 60_000_000 + 1 + 77
    assert line(found, "direct", "send").messages == line(found, "direct", "send").units - 1 == 60_000_001
    assert line(found, "", "base charge").amount == 10
    names = ["send to backlog", "receive from backlog", "send to primary", "receive from primary"]
    four = [step(found, name) for name in names]
    assert [one.labels[0] for one in found.steps[:4]] == names
    assert [one.messages for one in four] == [1_000_000] * 4
    assert [one.amount.quantize(Decimal("0.00001")) for one in four] == [
        Decimal("0.66129"), Decimal("0.66129") + Decimal("0.30"), Decimal("0.66129"), Decimal("0.66129"),
    ]  # fmt: skip
    assert found.diverted_messages == 1_000_000
    assert found.per_diverted_message == Decimal("0.000002945")  # (4 x 0.66128889 + 0.30) / 1,000,000
    assert (step(found, "pings").operations, step(found, "idle polls").operations) == (120, 960)
    assert step(found, "idle polls").amount.quantize(Decimal("0.0000001")) == Decimal("0.0006348")
    assert step(found, "settlement and other operations").amount == 0


@pytest.mark.slow
def test_d3_bill_of_the_premium_tier(spark: SparkSession, tmp_path: Path) -> None:
    # contoso was there from 0:00 on the 1st to 11:59 on the 2nd: 36 hours; fabrikam from 10:00 to 11:59: 2 hours.
    # 38 hours of a messaging unit at 0.9275 are 35.245; operations are included.
    # Bandwidth: 1,000,000 times 2,000 bytes at 0.15 a gigabyte: 0.30. Together 35.545.
    rows = [many(f"{MONTH}-01T00:00", 60_000_000), *outage(1_000_000, size=2_000)]
    operations = ledger(spark, tmp_path, rows)
    found = statement(operations, load_rate_card("premium"), GroupBy.ENTITY)
    assert reading(found, BillingMeter.OPERATIONS) == (Decimal(64_000_000), Decimal(0))
    assert reading(found, BillingMeter.MESSAGING_UNITS) == (Decimal(38), Decimal("35.245"))
    assert found.total == add_up(found.lines) == Decimal("35.545")
    assert line(found, "contoso", "(messaging unit)").amount == Decimal("33.39")  # 36 hours
    assert line(found, "fabrikam", "(messaging unit)").amount == Decimal("1.855")  # 2 hours
    assert line(found, "fabrikam", "contoso/x-servicebus-transfer/0").amount == Decimal("0.30")
    assert line(found, "contoso", "orders").amount == 0


@pytest.mark.slow
def test_d3_bill_of_the_basic_tier(spark: SparkSession, tmp_path: Path) -> None:
    # 2,000,000 sends and receives of contoso's, four times 1,000 diverted messages of 100 KB, each two units.
    # 2,008,000 at 0.05 a million are 0.1004; the syphon fetched 100,000,000 bytes: 0.1 GB at 0.15 are 0.015.
    rows = [
        many(f"{MONTH}-01T00:00", 1_000_000),
        many(f"{MONTH}-01T02:00", 1_000_000, kind="receive"),
        *(row | {"units": 2_000} for row in outage(1_000, size=100_000)),
    ]
    found = statement(ledger(spark, tmp_path, rows), load_rate_card("basic"), GroupBy.HOUR)
    assert reading(found, BillingMeter.OPERATIONS) == (Decimal(2_008_000), Decimal("0.1004"))
    assert found.total == add_up(found.lines) == Decimal("0.1154")
    assert [(one.labels, one.amount) for one in found.lines] == [
        (("2026-04-01T00:00Z",), Decimal("0.05")),
        (("2026-04-01T02:00Z",), Decimal("0.05")),
        (("2026-04-02T10:00Z",), Decimal("0.0001")),
        (("2026-04-02T11:00Z",), Decimal("0.0003") + Decimal("0.015")),
    ]
    assert found.per_diverted_message == Decimal("0.0000154")  # 0.0154 / 1,000


@pytest.mark.slow
def test_connections_are_billed_by_hourly_peak(spark: SparkSession, tmp_path: Path) -> None:
    # 364,999 of one namespace and one of the other in each of ten hours: 3,650,000 / 730 = 5,000.
    # 1,000 are included, and the other 4,000 cost 0.03 each.
    rows = [
        operation(f"{MONTH}-01T{hour:02}:30", namespace=namespace, kind="connection", operations=0, connections=count)
        for hour in range(10)
        for namespace, count in (("contoso", 364_999), ("fabrikam", 1))
    ]
    found = statement(ledger(spark, tmp_path, rows), load_rate_card("standard"))
    assert reading(found, BillingMeter.CONNECTIONS) == (Decimal(5_000), Decimal(120))
    assert line(found, "", "connection").amount == Decimal(120)
    assert found.total == add_up(found.lines) == Decimal(130)


@pytest.mark.slow
def test_lines_without_entity_are_labelled_by_kind(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        many(f"{MONTH}-01T00:00", 5),
        many(f"{MONTH}-01T00:00", 7, kind="management", stage="management", entity="", messages=0, bytes=0),
        operation(f"{MONTH}-01T00:00", kind="connection", entity="", operations=0, messages=0, units=0, connections=2),
    ]
    found = statement(ledger(spark, tmp_path, rows), load_rate_card("standard"), GroupBy.ENTITY)
    assert [(one.labels, one.operations, one.amount) for one in found.lines] == [
        (("(all)", "(base charge)"), 0, Decimal(10)),
        (("contoso", "(connection)"), 0, Decimal(0)),
        (("contoso", "(management)"), 7, Decimal(0)),
        (("contoso", "orders"), 5, Decimal(0)),
    ]


@pytest.mark.slow
def test_d3_cost_of_an_outage_beyond_allowances(spark: SparkSession, tmp_path: Path) -> None:
    # Of 1,000 diverted messages, four charges at 0.80 a million: 0.0032; the syphon has peeked each of them:
    # 0.0008. Twice 1,000 x 2,000 bytes have left the region, at 0.15 for 10^9: 0.0006. Two pings: 0.0000016.
    # Besides, 250 direct sends: 0.0002, and a connection in one hour: 0.03 / 730.
    away = {"namespace": "fabrikam", "entity": "contoso/x-servicebus-transfer/0"}
    rows = [
        *outage(1_000, size=2_000),
        many(f"{MONTH}-02T11:00", 1_000, kind="peek", stage="syphon", **away, bytes=2_000_000),
        many(f"{MONTH}-02T10:30", 2, stage="ping", bytes=0),
        many(f"{MONTH}-02T10:30", 250),
        operation(f"{MONTH}-02T10:00", kind="connection", entity="", operations=0, units=0, connections=1),
    ]
    found = statement(ledger(spark, tmp_path, rows), beyond_allowances(load_rate_card("standard")))
    assert step(found, "syphon peeks").amount == Decimal("0.0011")
    assert found.four_charges == Decimal("0.0035")
    assert found.pairing_total.amount == add_up(found.steps) == Decimal("0.0046016")
    assert found.total == add_up(found.lines) == Decimal("0.0048016") + Decimal("0.000041096")
    assert reading(found, BillingMeter.OPERATIONS)[0] == 5_252


@pytest.mark.slow
def test_each_month_has_separate_tiers_and_base_charge(spark: SparkSession, tmp_path: Path) -> None:
    # 13.5 million in March: one million above the allowance. 12 million in April: nothing.
    rows = [
        many("2026-03-31T23:59:59", 13_500_000),
        many("2026-04-01T00:00", 12_000_000),
    ]
    found = statement(ledger(spark, tmp_path, rows), load_rate_card("standard"), GroupBy.HOUR)
    assert [month.total for month in found.months.values()] == [Decimal("10.80"), Decimal(10)]
    assert [(one.labels[0], one.amount) for one in found.lines] == [
        ("(base charge)", Decimal(20)),  # it has no hour
        ("2026-03-31T23:00Z", Decimal("0.80")),
        ("2026-04-01T00:00Z", Decimal(0)),
    ]


@pytest.mark.slow
def test_rate_card_determines_counted_operations(spark: SparkSession, tmp_path: Path) -> None:
    card = load_rate_card("basic")
    rows = [
        operation(f"{MONTH}-01T00:00", operations=1, messages=100, units=100, request_units=2),
        many(f"{MONTH}-01T00:00", 5, result="com.microsoft:timeout"),
        many(f"{MONTH}-01T00:00", 7, kind="settle"),
    ]
    operations = ledger(spark, tmp_path, rows)

    def units(**changes: Any) -> Decimal:
        changed = replace(card, operations=replace(card.operations, **changes))
        return reading(statement(operations, changed), BillingMeter.OPERATIONS)[0]

    assert units() == 100
    assert units(counted_by=CountedBy.REQUEST) == 2
    assert units(failures=Failures.BILLED) == 105
    assert units(billable=frozenset({OperationKind.SETTLE})) == 7


@pytest.mark.slow
def test_injected_faults_are_not_on_the_bill(spark: SparkSession, tmp_path: Path) -> None:
    card = load_rate_card("standard")
    rows = [many(f"{MONTH}-01T00:00", 5)]
    fault = operation(f"{MONTH}-02T00:00", kind="fault", entity="", result="cannot-send engaged id=1", who="ops")
    without, within = ledger(spark, tmp_path / "without", rows), ledger(spark, tmp_path / "with", [*rows, fault])
    for by in GroupBy:
        assert statement(within, card, by) == statement(without, card, by)


def awkward(card: RateCard) -> RateCard:
    """Return a card with prices that are not evenly divisible."""
    tiers = tuple(replace(tier, price=tier.price + Decimal("0.1234567")) for tier in card.operations.tiers)
    return replace(
        card, operations=replace(card.operations, tiers=tiers, per=Decimal(7)), month=Decimal("3.3333333333")
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("standard", 1), ("premium", 2), ("basic", 3)])
def test_lines_add_up_to_the_total_for_any_usage(spark: SparkSession, tmp_path: Path, name: str, seed: int) -> None:
    random = Random(seed)  # noqa: S311
    rows = [
        many(
            f"2026-{random.choice((3, 4)):02}-{random.choice((1, 28)):02}T{random.choice((0, 7, 23)):02}:00",
            random.choice((0, 1, 3, 10_007, 9_999_991)),
            kind=random.choice([*OperationKind]).value,
            stage=random.choice([*Stage]).value,
            entity=random.choice(("a", "b", "ä/ö")),
            namespace=random.choice(("contoso", "fabrikam")),
            result=random.choice(("ok", "ok", "amqp:not-found")),
            connections=random.choice((0, 1, 3_001)),
        )
        for _ in range(200)
    ]
    card = awkward(load_rate_card(name))
    operations = ledger(spark, tmp_path, rows)
    charged = charges(operations, card)
    amounts = [row["amount"] for row in charged.collect()]
    for by in GroupBy:
        found = statement(operations, card, by)
        assert found.total > 0
        assert add_up(found.lines) == sum(amounts) == found.total
    assert min(amounts) >= 0


@pytest.mark.slow
def test_many_rows_are_billed_like_few(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Spark generates code for many rows, and adapts its plan to them."""
    operations, card = ledger(spark, tmp_path, outage(1_000)), load_rate_card("standard")
    of_few = statement(operations, card, GroupBy.STAGE)
    for name in HANDFUL.keys() - FEW_ROWS.keys():
        request.addfinalizer(partial(spark.conf.set, name, HANDFUL[name]))
        spark.conf.unset(name)
    assert statement(operations, card, GroupBy.STAGE) == of_few


@pytest.mark.slow
def test_months_do_not_depend_on_session_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    operations = ledger(spark, tmp_path, [many("2026-03-31T23:30", 1), many("2026-04-01T00:30", 1)])
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")  # offset by half an hour
    try:
        found = statement(operations, load_rate_card("standard"), GroupBy.HOUR)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [*found.months] == [date(2026, 3, 1), date(2026, 4, 1)]
    assert [one.labels[0] for one in found.lines] == [
        "(base charge)", "2026-03-31T23:00Z", "2026-04-01T00:00Z",
    ]  # fmt: skip


@pytest.mark.slow
def test_empty_ledger_costs_nothing(spark: SparkSession, tmp_path: Path) -> None:
    operations = read_operations(spark, write(tmp_path, [many(f"{MONTH}-01T00:00", 1)])[0].parents[3])
    found = statement(operations.where("false"), load_rate_card("standard"))
    assert found.total == 0
    assert not found.lines
    assert not found.months
    assert found.per_diverted_message is None


@pytest.mark.slow
def test_charges_are_rows_of_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    operations = ledger(spark, tmp_path, [many(f"{MONTH}-01T00:10", 20_000_000)])
    rows = charges(operations, load_rate_card("standard")).where("kind = 'send'").collect()
    assert [row.asDict() for row in rows] == [
        {
            "namespace": "contoso",
            "entity": "orders",
            "hour": rows[0]["hour"],
            "stage": "direct",
            "kind": "send",
            "operations": 20_000_000,
            "failed": 0,
            "messages": 20_000_000,
            "bytes": 20_000_000_000,
            "units": 20_000_000,
            "amount": Decimal("6.000000000"),  # 7.5 million at 0.80
        }
    ]
    assert rows[0]["hour"].astimezone(UTC) == datetime(2026, 4, 1, tzinfo=UTC)
