"""Forecasts of the cost of pairing (D3), calculated by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.jobs.cost.forecast import Engine, Forecast, Workload, WorkloadError, forecast, shown
from pairbus.jobs.cost.month import AmountError, BillingMeter, beyond_allowances
from pairbus.jobs.cost.rate_card import load_rate_card

STANDARD = load_rate_card("standard")
SMALLEST = Decimal("0.000000001")
ON_SPARK = Workload(messages_per_day=1_000_000, outage_hours=Decimal(12), entities=5, senders=4)
BUSY = replace(ON_SPARK, engine=Engine.IN_PROCESS)


def operations(found: Forecast, name: str) -> int:
    (line,) = (line for line in found.lines if line.name == name)
    return line.operations


def test_c14_ten_idle_backlog_queues_cost_28_800_polls_a_month() -> None:
    found = forecast(Workload(messages_per_day=0), STANDARD)
    assert operations(found, "idle polls") == 28_800
    assert operations(found, "pings") == 0
    assert found.paired.usage.units == 28_800 + 7_200 + 20  # peeks, and a sender and a syphon that look up ten queues
    assert found.unpaired.usage.units == 0


def test_d3_diverted_message_is_charged_four_times() -> None:
    # 30 million messages in 720 hours, 12 of them an outage: 500,000 are diverted.
    found = forecast(BUSY, STANDARD)
    assert [(line.name, line.operations) for line in found.lines] == [
        ("send", 29_500_000),
        ("receive", 29_500_000),
        ("send to backlog", 500_000),
        ("receive from backlog", 500_000),
        ("send to primary", 500_000),
        ("receive from primary", 500_000),
        ("syphon peeks", 7_200),  # once an hour and queue
        ("pings", 14_400),  # 5 entities, 4 factories, 720 minutes
        ("idle polls", 28_800),
        ("backlog queue lookups", 50),  # 10 queues, by 4 senders and a syphon
    ]


def test_d3_bill_with_and_without_pairing() -> None:
    # Without: 60,000,000 operations, 12,500,000 included, the rest at 0.80 a million: 38. The base charge: 10.
    # With: 59,000,000 + 2,000,000 + 14,400 + 28,800 + 7,200 + 50 = 61,050,450; 48,550,450 at 0.80 a million: 38.84036.
    # The syphon fetches 500,000 x 1,000 bytes: half a gigabyte at 0.15: 0.075. The base charge is for both: 10.
    found = forecast(BUSY, STANDARD)
    assert found.unpaired.total == Decimal(48)
    assert found.paired.amount(BillingMeter.OPERATIONS) == Decimal("38.84036")
    assert found.paired.amount(BillingMeter.BANDWIDTH) == Decimal("0.075")
    assert found.paired.total == Decimal("48.91536")
    assert found.difference == Decimal("0.91536")


def test_d3_both_engines_cost_the_same() -> None:
    on_spark, in_process = forecast(ON_SPARK, STANDARD), forecast(BUSY, STANDARD)
    assert operations(on_spark, "syphon peeks") == 7_200  # once an hour and queue
    assert on_spark.paired == in_process.paired
    assert on_spark.unpaired == in_process.unpaired
    assert Workload(messages_per_day=1).engine is Engine.SPARK  # the default of `pairbus syphon`, too


def test_d3_forecast_beyond_allowances_bills_every_operation() -> None:
    # 28,800 polls, 7,200 peeks, and a sender and a syphon that look up ten queues, at 0.80 a million: 0.028816.
    # A sender and a receiver have a connection each; with pairing the sender has two, and so has the syphon.
    found = forecast(Workload(messages_per_day=0), beyond_allowances(STANDARD))
    connection = Decimal("0.03") * 720 / 730
    assert found.unpaired.total == (2 * connection).quantize(SMALLEST)
    assert found.paired.amount(BillingMeter.OPERATIONS) == Decimal("0.028816")
    assert found.paired.total == Decimal("0.028816") + (5 * connection).quantize(SMALLEST)


def test_d3_second_premium_namespace_costs_as_much_as_the_first() -> None:
    # 720 hours at 0.9275 are 667.80.
    found = forecast(Workload(messages_per_day=1_000), load_rate_card("premium"))
    assert (found.unpaired.total, found.paired.total) == (Decimal("667.80"), Decimal("1335.60"))


def test_large_message_is_billed_per_64_kb() -> None:
    found = forecast(replace(BUSY, message_bytes=100_000), load_rate_card("basic"))
    assert found.paired.usage.units == 2 * 61_000_000 + 14_400 + 28_800 + 7_200 + 50


def test_connections_are_counted_in_both_namespaces() -> None:
    # Without: 2,000 + 1 all month. With: 2 x 2,000 + 1 + 2 for the syphon. Each times 720 / 730, the first 1,000 free.
    found = forecast(Workload(messages_per_day=0, senders=2_000), STANDARD)
    assert found.unpaired.amount(BillingMeter.CONNECTIONS) == Decimal("29.207671233")
    assert found.paired.amount(BillingMeter.CONNECTIONS) == Decimal("88.444931507")


def test_d3_effect_of_each_setting() -> None:
    found = forecast(BUSY, STANDARD)
    assert [(knob.name, knob.now, knob.then, knob.units, knob.amount) for knob in found.knobs] == [
        ("backlog queues", "10", "20", 28_800 + 7_200 + 50, Decimal("0.02884")),
        ("syphon hosts", "1", "2", 28_800 + 7_200 + 10, Decimal("0.028808")),
        ("long poll", "15 min", "30 min", -14_400 - 3_600, Decimal("-0.0144")),
        ("ping interval", "1 min", "2 min", -7_200, Decimal("-0.00576")),
        ("senders", "4", "8", 14_400 + 40, Decimal("0.011552")),
        ("outage hours", "12", "24", 1_000_000 + 14_400, Decimal("0.88652")),
        ("engine", "in-process", "spark", 0, Decimal(0)),
    ]


def test_outage_of_zero_hours_becomes_one_hour() -> None:
    knob = forecast(replace(BUSY, outage_hours=Decimal(0)), STANDARD).knobs[-2]
    assert (knob.now, knob.then) == ("0", "1")
    assert knob.units > 0


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.decimals(0, 720, places=2),
    st.sampled_from(["standard", "premium", "basic"]),
)
def test_pairing_never_costs_less_than_none(messages: int, size: int, hours: Decimal, name: str) -> None:
    workload = Workload(messages_per_day=messages, message_bytes=size, outage_hours=hours)
    found = forecast(workload, load_rate_card(name))
    assert found.difference >= 0
    assert found.paired.total == sum(one.amount for one in found.paired.readings)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("messages_per_day", -1),
        ("message_bytes", -1),
        ("entities", 0),
        ("backlog_queues", 0),
        ("syphon_hosts", 0),
        ("senders", 0),
        ("receivers", -1),
        ("outage_hours", Decimal(721)),
        ("outage_hours", Decimal("nan")),
        ("messages_per_day", 10**30),
        ("message_bytes", 10**30),
        ("senders", 10**30),
        ("ping_interval", timedelta(0)),
        ("long_poll", timedelta(seconds=-1)),
    ],
)
def test_invalid_workload_is_rejected_by_name(setting: str, value: object) -> None:
    with pytest.raises(WorkloadError, match=setting):
        Workload(**({"messages_per_day": 1} | {setting: value}))  # type: ignore[arg-type]


def test_implausible_amount_is_rejected() -> None:
    enormous = Workload(messages_per_day=10**12, message_bytes=10**12, outage_hours=Decimal(720))
    with pytest.raises(AmountError, match="is not plausible"):
        forecast(enormous, STANDARD)


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (timedelta(hours=2), "2 h"),
        (timedelta(minutes=90), "90 min"),
        (timedelta(seconds=90), "90 s"),
        (timedelta(milliseconds=1500), "1.5 s"),
    ],
)
def test_durations_are_shown_in_their_largest_unit(time: timedelta, text: str) -> None:
    assert shown(time) == text


def test_forecast_does_not_import_spark() -> None:
    program = (
        "import sys; import pairbus.jobs.cost.forecast, pairbus.jobs.cost.report, pairbus.jobs.cost.report; "
        "sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
