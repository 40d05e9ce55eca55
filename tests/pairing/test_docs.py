"""The pages on pairing match the code: tables, figures, names, and log lines."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer.main

from pairbus import MessagingError, MessagingFactory, NamespaceManager, client, pairing
from pairbus.cli.main import app
from pairbus.dialect.transfer import RESERVED
from pairbus.pairing import (
    FAILURE_RULES,
    BacklogQueueStatus,
    DeliveryGuarantee,
    DestinationGuarantee,
    EntityState,
    NamespacePair,
    PairedEntityStatus,
    PairEvent,
    PairStatus,
    SendAvailabilityPairedNamespaceOptions,
    Syphon,
    SyphonContext,
    SyphonSettings,
    SyphonStatus,
)
from pairbus.pairing.backlog import backlog_description
from pairbus.pairing.policy import TRANSITIONS, Signal
from pairbus.pairing.syphon.delivery import DELIVERY_RULES
from pairbus.pairing.syphon.message import DeadLetterReason
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of

REFERENCE = ROOT / "docs" / "reference" / "pairing.md"
EXPLANATION = ROOT / "docs" / "explanation" / "paired-namespaces.md"
HOW_TO = ROOT / "docs" / "how-to"

SIGNALS = {
    "a message is confirmed": Signal.SENT,
    "an attempt fails that counts": Signal.FAILED,
    "the interval is over": Signal.EXPIRED,
    "a ping is answered": Signal.ANSWERED,
    "`engage`": Signal.ENGAGED,
    "`release`": Signal.RELEASED,
}

OPTIONS = rows_of(REFERENCE, "option", "default", "range", "description")
SYPHON_SETTINGS = rows_of(REFERENCE, "of `SyphonSettings`", "default", "range", "description")


# The explanation.


def test_state_table_matches_the_policy() -> None:
    rows = rows_of(EXPLANATION, "state", *SIGNALS)
    documented = {
        (EntityState[code(state)], signal): EntityState[code(cell)]
        for state, *cells in rows
        for signal, cell in zip(SIGNALS.values(), cells, strict=True)
    }
    assert documented == TRANSITIONS


def test_state_diagram_matches_the_policy() -> None:
    picture = EXPLANATION.read_text(encoding="utf-8").split("stateDiagram-v2")[1].split("```")[0]
    drawn = {(before, after) for before, after in re.findall(r"(\w+) --> (\w+):", picture)}
    changes = {
        (before.name, after.name)
        for (before, signal), after in TRANSITIONS.items()
        if before is not after and (signal is not Signal.RELEASED or before is EntityState.HELD_OVER)
    }
    assert drawn == changes


def test_c7_table_of_failure_rules_matches_the_code() -> None:
    rows = rows_of(EXPLANATION, "error", "verdict", "why")
    assert {error_of(row[0]): row[1] for row in rows} == {kind: one.value for kind, one in FAILURE_RULES.items()}


def test_c15_table_of_delivery_rules_matches_the_code() -> None:
    rows = rows_of(EXPLANATION, "error", "decision")
    assert {error_of(row[0]): row[1] for row in rows} == {kind: one.value for kind, one in DELIVERY_RULES.items()}


def error_of(cell: str) -> type[MessagingError]:
    kind: type[MessagingError] = getattr(client, code(cell))
    return kind


def test_c14_figures_of_an_idle_syphon_follow_from_the_defaults() -> None:
    queues = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters["backlog_queue_count"].default
    a_day = queues * (timedelta(days=1) // SyphonSettings().long_poll)
    sentence = f"With {queues} queues that is {a_day // 24} receives an hour, {a_day} a day, {30 * a_day:,} in 30 days"
    assert sentence in " ".join(EXPLANATION.read_text(encoding="utf-8").split())


# The reference.


def test_every_public_name_is_listed_once() -> None:
    listed = [name for row in rows_of(REFERENCE, "name", "what it is") for name in codes(row[0])]
    assert sorted(listed) == sorted(pairing.__all__)


def test_c3_every_option_is_listed_with_its_default() -> None:
    parameters = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters
    assert [(code(row[0]), row[1]) for row in OPTIONS] == [
        (name, written(parameter.default)) for name, parameter in parameters.items()
    ]


def test_c14_every_syphon_setting_is_listed_with_its_default() -> None:
    assert [(code(row[0]), row[1]) for row in SYPHON_SETTINGS] == [
        (field.name, written(field.default)) for field in fields(SyphonSettings)
    ]


def written(default: Any) -> str:
    """Return a default as the pages write it."""
    if default is inspect.Parameter.empty:
        return ""
    if default is FAILURE_RULES:
        return "`FAILURE_RULES`"
    if isinstance(default, timedelta):
        return f"{default // timedelta(minutes=1)} min" if default >= timedelta(minutes=1) else f"{default.seconds} s"
    return f"`{default}`"


def options_with(**given: Any) -> object:
    address = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true;"
    manager = NamespaceManager.from_connection_string(address)
    return SendAvailabilityPairedNamespaceOptions(manager, MessagingFactory.from_connection_string(address), **given)


RANGES = [
    (make, code(row[0]), row[2])
    for make, rows in ((options_with, OPTIONS), (SyphonSettings, SYPHON_SETTINGS))
    for row in rows
    if row[2]
]


@pytest.mark.parametrize(("make", "name", "span"), RANGES, ids=lambda one: one if isinstance(one, str) else "")
def test_c4_documented_range_is_enforced(make: Any, name: str, span: str) -> None:
    minimum, maximum = ends_of(span)
    step = timedelta(microseconds=1) if isinstance(minimum, timedelta) else 1
    make(**{name: minimum})
    with pytest.raises(ValueError, match=name):
        make(**{name: minimum - step})
    if maximum is not None:
        make(**{name: maximum})
        with pytest.raises(ValueError, match=name):
            make(**{name: maximum + step})


UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "min": timedelta(minutes=1),
    "day": timedelta(days=1),
}


def ends_of(span: str) -> tuple[Any, Any]:
    """Parse a range such as ``1 to 10``, ``1 s to 30 min`` or ``from 1``; return its ends."""
    if span.startswith("from "):
        return value_of(span.removeprefix("from ")), None
    minimum, maximum = span.split(" to ")
    return value_of(minimum), value_of(maximum)


def value_of(text: str) -> Any:
    number, _, unit = text.replace(",", "").partition(" ")
    return int(number) * UNITS[unit] if unit else int(number)


def test_every_method_of_a_pair_is_listed_with_its_arguments() -> None:
    documented = {code(row[0]) for row in rows_of(REFERENCE, "method", "what it does")}
    for_senders = {"route", "start", "abort", "close"}
    methods = {name: one for name, one in inspect.getmembers(NamespacePair, inspect.isfunction) if name[0] != "_"}
    assert documented == {
        f"{name}({', '.join([*inspect.signature(one).parameters][1:])})"
        for name, one in methods.items()
        if name not in for_senders
    }


@pytest.mark.parametrize(
    "kind",
    [PairStatus, PairedEntityStatus, BacklogQueueStatus, SyphonStatus, DestinationGuarantee, SyphonContext],
)
def test_c19_every_status_field_is_listed(kind: type[Any]) -> None:
    rows = rows_of(REFERENCE, f"of `{kind.__name__}`", "description")
    more = {
        f"{name}()" if inspect.isfunction(one) else name for name, one in vars(kind).items() if is_documented(name, one)
    }
    assert {name for row in rows for name in codes(row[0])} == {field.name for field in fields(kind)} | more


def is_documented(name: str, one: object) -> bool:
    return name[0] != "_" and (inspect.isfunction(one) or isinstance(one, property))


def test_every_member_of_a_syphon_is_listed() -> None:
    documented = {code(row[0]).partition("(")[0] for row in rows_of(REFERENCE, "of `Syphon`", "what it does")}
    assert documented == {name for name, one in vars(Syphon).items() if is_documented(name, one)}


def test_c19_every_event_is_listed_with_its_fields() -> None:
    documented = {code(row[0]): codes(row[1]) for row in rows_of(REFERENCE, "event", "fields", "when")}
    assert documented == {
        kind.__name__: [field.name for field in fields(kind) if field.name != "at"]
        for kind in PairEvent.__subclasses__()
    }


def test_c19_every_metric_is_listed_with_its_kind_and_labels() -> None:
    documented = {
        code(name): (kind, codes(labels))
        for name, kind, labels, _ in rows_of(REFERENCE, "metric", "type", "labels", "description")
    }
    text = a_status().metrics()
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    assert documented == {name: (kind, labels_of(name, text)) for name, kind in kinds}


def labels_of(metric: str, text: str) -> list[str]:
    sample = re.search(rf"^{metric}(?:\{{(.*)\}})? ", text, re.MULTILINE)
    assert sample is not None, f"{metric} has no sample"
    return re.findall(r'(\w+)="', sample[1] or "")


def a_status() -> PairStatus:
    down = MessagingError("down")
    entity = PairedEntityStatus(
        path="orders",
        state=EntityState.FAILED_OVER,
        since=datetime(2026, 11, 15, tzinfo=UTC),
        cause=down,
        failures=1,
        diverted=2,
        pings=3,
    )
    return PairStatus(
        primary="contoso",
        secondary="fabrikam",
        entities=(entity,),
        backlog_queues=(BacklogQueueStatus(path="contoso/0", is_used=True, cause=None, diverted=2),),
        syphon=SyphonStatus(
            engine="mine",
            receives=1,
            syphoned=1,
            dead_lettered=0,
            waiting={"orders": down},
            guarantees={"orders": DestinationGuarantee(guarantee=DeliveryGuarantee.AT_LEAST_ONCE)},
        ),
    )


def test_c15_every_dead_letter_reason_is_listed() -> None:
    listed = [code(row[0]) for row in rows_of(REFERENCE, "reason", "what it means")]
    assert sorted(listed) == sorted(reason.value for reason in DeadLetterReason)


def test_c11_properties_of_the_diverted_form_are_listed() -> None:
    assert {code(row[0]) for row in rows_of(REFERENCE, "application property", "type", "keeps")} == RESERVED


def test_c5_created_backlog_queues_match_the_table() -> None:
    made = backlog_description("contoso/x-servicebus-transfer/0")
    documented = {code(row[0]): row[1] for row in rows_of(REFERENCE, "property", "value when created")}
    words = {True: "yes", timedelta.max: {"default_message_time_to_live": "forever", "auto_delete_on_idle": "never"}}
    for name, cell in documented.items():
        value = getattr(made, name)
        match value:
            case bool():
                assert cell == words[value]
            case timedelta.max:
                assert cell == words[value][name]  # type: ignore[index]
            case timedelta():
                assert cell == written(value)
            case int():
                assert cell.replace(",", "").split(";")[0] == str(value)


# How to.


@pytest.mark.parametrize("page", ["pair.md", "drill.md"])
def test_every_documented_command_option_exists(page: str) -> None:
    command: Any = typer.main.get_command(app)
    known = {option for name in ("pair", "drill") for one in command.commands[name].params for option in one.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (HOW_TO / page).read_text(encoding="utf-8")))
    assert named <= known
    assert len(named) >= 4


def test_c19_documented_log_lines_exist() -> None:
    logged = [*logged_texts()]
    for row in rows_of(HOW_TO / "watch-a-pair.md", "line", "level", "logged by"):
        for text in codes(row[0]):
            assert any(re.fullmatch(pattern, text) for pattern in logged), text


def logged_texts() -> set[str]:
    """Return the texts of the log lines of the package, as patterns."""
    calls = (
        node
        for file in (ROOT / "src" / "pairbus" / "pairing").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.")
    )
    texts = {one.value for call in calls for one in call.args if isinstance(one, ast.Constant)}
    return {re.sub("%[sd]", ".*", re.escape(str(text))) for text in texts}
