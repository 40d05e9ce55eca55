"""The demo shows an outage and removes everything it created."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pairbus.cli.demo.application import PLACES, MessageLog
from pairbus.cli.demo.namespace import DemoNamespace, NamespaceStartError
from pairbus.cli.demo.outage import ENTITIES, Aftermath, Outage, Plan
from pairbus.cli.demo.outcome import DemoOutcome, Proof
from pairbus.cli.demo.performance import announce_stop, errors_to
from pairbus.cli.demo.screen import (
    DemoReading,
    DemoTimeline,
    EntityReading,
    PlainScreen,
    RateMeter,
    Screen,
    opened_screen,
)
from pairbus.client import BrokeredMessage, MessagingFactory
from pairbus.jobs.cost.month import beyond_allowances
from pairbus.jobs.cost.rate_card import load_rate_card
from pairbus.jobs.cost.statement import GroupBy, Statement, StatementLine
from pairbus.jobs.reconcile.reconciliation import MEASURES
from pairbus.jobs.reconcile.report import EDGES, MissingMessage, Waits
from pairbus.pairing import EntityState
from tests.jobs.processes import kill_session, members
from tests.server.ledger_rows import rows_of

PATIENCE_S = 60.0
LONG_S = 840.0
"""A whole run on a busy machine."""

KILLED_AT = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
AUDIT, BILLING = PLACES["events"]


# Counts.


def a_tally() -> MessageLog:
    """Two orders and an event, all received at their places."""
    tally = MessageLog(PLACES)
    for entity, message_id in (("orders", "o1"), ("orders", "o2"), ("events", "e1")):
        tally.note_sent(entity, message_id, 0.25)
    for number, (place, message_id) in enumerate((("orders", "o1"), (AUDIT, "e1"), (BILLING, "e1"), ("orders", "o2"))):
        tally.note_received(place, message_id)
        tally.note_completed(place, message_id, number)
    return tally


def test_message_to_a_topic_is_expected_at_each_subscription() -> None:
    tally = a_tally()
    assert (tally.sent, tally.expected, tally.received) == (3, 4, 4)
    assert (tally.lost, tally.doubled, tally.redelivered, tally.failed) == (0, 0, 0, 0)


def test_missing_message_is_lost_at_its_place() -> None:
    tally = MessageLog(PLACES)
    tally.note_sent("events", "e1", 0.1)
    tally.note_received(AUDIT, "e1")
    assert (tally.lost, tally.expected, tally.received) == (1, 2, 1)
    assert [*tally.problems()] == ["e1 was not received from events/subscriptions/billing"]


def test_redelivery_is_not_a_duplicate() -> None:
    tally = a_tally()
    tally.note_received("orders", "o1")  # delivered again, because its completion was not confirmed
    assert (tally.doubled, tally.redelivered, tally.received) == (0, 1, 4)
    assert [*tally.problems()] == []
    tally.note_completed("orders", "o1", 77)  # the namespace stored it twice
    assert (tally.doubled, tally.redelivered, tally.received) == (1, 1, 4)
    assert [*tally.problems()] == ["o1 was completed at orders under several sequence numbers: [0, 77]"]


def test_longest_wait_includes_failed_sends() -> None:
    tally = a_tally()
    tally.note_failed(3.5)
    assert (tally.failed, tally.longest_wait_s, tally.sent) == (1, 3.5, 3)


def test_rate_covers_the_last_two_seconds() -> None:
    rate = RateMeter()
    found = [rate.per_second(second, count) for second, count in ((0, 0), (1, 100), (2, 200), (3, 1_200), (4, 1_200))]
    assert found == [0, 100, 100, 550, 500]


# Screens.


def a_reading(elapsed_s: float = 12.0, state: EntityState = EntityState.FAILED_OVER) -> DemoReading:
    return DemoReading(
        elapsed_s=elapsed_s,
        entities=tuple(EntityReading(path=path, state=state, diverted=30, pings=4) for path in PLACES),
        sent=1_234,
        sent_rate=200.4,
        received=999,
        received_rate=0,
        backlog=56,
        syphoned=7,
        syphon_rate=3.5,
    )


def a_console(**options: Any) -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, highlight=False, width=120, **options), file


def test_plain_screen_prints_a_limited_number_of_lines() -> None:
    console, file = a_console()
    with opened_screen(console) as screen:
        screen.begin("An act")
        screen.report("Something [has] happened.")
        for second in (0.0, 0.5, 1.9, 2.0, 3.9, 4.1):
            screen.show(a_reading(second))
        screen.advance(1, 2)
        screen.end("An act", 4.14)
    lines = file.getvalue().splitlines()
    assert lines[:2] == ["== An act", "   Something [has] happened."]
    assert [line.split()[0] for line in lines[2:-1]] == ["0.0", "2.0", "4.1"]
    assert "orders failed over, events failed over; sent 1,234 (200/s), diverted 60, in the backlog 56" in lines[2]
    assert lines[2].endswith("pings 8")
    assert lines[-1] == "   done in 4.1 s"
    assert "\x1b" not in file.getvalue()


def test_live_screen_shows_a_table_and_a_line_for_each_step() -> None:
    console, file = a_console(force_terminal=True)
    with opened_screen(console) as screen:
        screen.begin("An act")
        screen.show(a_reading())
        screen.advance(1, 2)
        screen.report("Something [has] happened.")
        screen.end("An act", 1.5)
        screen.begin("Another one")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    for text in ("after 12 s", "failed over", "in the backlog", "1,234", "An act (1.5 s)", "Another one"):
        assert text in shown
    assert "Something [has] happened." in shown


def test_failed_step_has_no_duration() -> None:
    console, file = a_console()
    acts = DemoTimeline(PlainScreen(console))
    with acts.act("well"):
        pass
    with suppress(KeyError), acts.act("badly"):
        raise KeyError
    assert [*acts.seconds] == ["well"]
    assert file.getvalue().count("done in") == 1


def test_interruption_is_announced_before_work_has_ended() -> None:
    console, file = a_console()
    seen: list[str] = []

    async def spark_starts() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append(file.getvalue())

    async def stop() -> None:
        running = asyncio.create_task(announce_stop(spark_starts(), PlainScreen(console)))
        await asyncio.sleep(0.01)
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stop())
    assert seen == ["   Stopping; this may take a few seconds …\n"]


def test_uninterrupted_work_announces_nothing() -> None:
    console, file = a_console()

    async def succeed() -> int:
        return 7

    async def fail() -> int:
        raise KeyError("orders")

    assert asyncio.run(announce_stop(succeed(), PlainScreen(console))) == 7
    with pytest.raises(KeyError, match="orders"):
        asyncio.run(announce_stop(fail(), PlainScreen(console)))
    assert file.getvalue() == ""


def test_errors_of_child_processes_go_to_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "import sys; print('chatter', file=sys.stderr)"]
    with errors_to(tmp_path / "log.txt"):
        subprocess.run(command, check=True, timeout=PATIENCE_S)
        print("a warning", file=sys.stderr)
    print("heard again", file=sys.stderr)
    assert capfd.readouterr().err.endswith("heard again\n")
    log = (tmp_path / "log.txt").read_text()
    assert "chatter" in log
    assert "heard again" not in log


# The outcome.


def a_missing_message(message_id: str = "o1", accepted_at: datetime = KILLED_AT) -> MissingMessage:
    return MissingMessage(
        entity="orders",
        message_id=message_id,
        session_id=None,
        accepted_at=accepted_at,
        cause="never delivered",
        last_place="orders",
        sequence=1,
    )


def a_proof(**measures: int) -> Proof:
    counts = {entity: dict.fromkeys(MEASURES, 0) for entity in ("orders", "events", AUDIT, BILLING, "x-drill/1")}
    counts["orders"] |= {"accepted": 1, "diverted": 2} | measures
    waits = Waits(
        messages=2,
        p50=timedelta(seconds=2.5),
        p99=timedelta(seconds=9),
        longest=timedelta(seconds=9),
        histogram=(0,) * (len(EDGES) + 1),
    )
    return Proof(counts=counts, missing=(), waits=waits, gaps=0)


def an_outcome(tally: MessageLog | None = None, proof: Proof | None = None) -> DemoOutcome:
    line = StatementLine(
        labels=("send to backlog",), operations=2, failed=0, messages=2, bytes=0, units=2, amount=Decimal("0.0000016")
    )
    idle = replace(line, labels=("pings",), operations=0, messages=0, units=0, amount=Decimal(0))
    card = beyond_allowances(load_rate_card("standard"))
    return DemoOutcome(
        aftermath=Aftermath(tally=tally or a_tally(), diverted=2, pings=3, syphoned=2, killed_at=KILLED_AT),
        proof=proof or a_proof(),
        statement=Statement(card=card, by=GroupBy.STAGE, months={}, lines=(), steps=(line, idle)),
        seconds={"An act": 1.25, "Another one": 2.5},
    )


def test_outcome_is_fine_if_nothing_is_lost_or_duplicated_and_ledgers_agree() -> None:
    outcome = an_outcome()
    assert outcome.is_fine
    assert [*outcome.lines()] == [
        "sent 3, of these diverted 2; failed 0",
        "received 4 of 4: the queue's once, the topic's by each subscription",
        "lost 0, duplicates 0",
        "the longest wait of a send: 0.25 s",
        "from diverted to delivered: p50 2.5 s, longest 9.0 s",
        "the ledgers agree: nothing is missing",
        (
            "the outage cost 0.000002 USD, at 0.80 USD for a million operations "
            "(Azure Service Bus, Standard tier, beyond what is included)"
        ),
    ]


def test_outcome_reports_redeliveries() -> None:
    tally = a_tally()
    tally.note_received("orders", "o1")
    outcome = an_outcome(tally)
    assert outcome.is_fine
    assert "delivered again 1: the primary was killed before their completion was confirmed" in [*outcome.lines()]


def test_outcome_tables_show_the_counts() -> None:
    console, file = a_console()
    an_outcome().print(console)
    shown = file.getvalue()
    for text in ("events/subscriptions/billing", "send to backlog", "An act", "total", "3.8"):
        assert text in shown
    assert "x-drill" not in shown  # not an entity of the application
    assert "│ pings" not in shown  # not on the bill
    assert "unrecorded" not in shown  # there are none


def row_of(shown: str, name: str) -> list[str]:
    """Return the cells of the first row that contains this cell."""
    rows = ([cell.strip() for cell in line.strip("│").split("│")] for line in shown.splitlines() if "│" in line)
    return next(row for row in rows if row[0] == name)


def test_lines_of_the_bill_add_up_to_the_total() -> None:
    outcome = an_outcome()
    awkward = ("0.0117510", "0.0000004", "0.0000005")
    steps = tuple(replace(outcome.statement.steps[0], labels=(text,), amount=Decimal(text)) for text in awkward)
    console, file = a_console()
    replace(outcome, statement=replace(outcome.statement, steps=steps)).print(console)
    assert row_of(file.getvalue(), "0.0117510") == ["0.0117510", "2", "2", "0.0117510"]
    assert row_of(file.getvalue(), "total") == ["total", "", "6", "0.0117519"]


def test_messages_not_received_have_a_column_with_their_state() -> None:
    console, file = a_console()
    an_outcome(proof=a_proof(received=1, unrecorded=2)).print(console)
    assert "unrecorded" in file.getvalue()
    assert row_of(file.getvalue(), "orders")[-1] == "2"


@pytest.mark.parametrize(("sent", "said"), [(24, "22 of 24 pings reached no namespace"), (2, ""), (1, "")])
def test_pings_that_reached_no_namespace_are_reported_and_not_billed(sent: int, said: str) -> None:
    outcome = an_outcome()
    first, pings = outcome.statement.steps
    steps = (first, replace(pings, operations=2, units=2, messages=2))
    console, file = a_console()
    replace(
        outcome,
        aftermath=replace(outcome.aftermath, pings=sent),
        statement=replace(outcome.statement, steps=steps),
    ).print(console)
    assert row_of(file.getvalue(), "pings")[2] == "2"
    assert said in file.getvalue()
    assert ("reached no namespace" in file.getvalue()) == bool(said)


def failing_send(tally: MessageLog) -> None:
    tally.note_failed(1.0)


def losing_one(tally: MessageLog) -> None:
    tally.note_sent("orders", "o3", 0.1)


def doubling_one(tally: MessageLog) -> None:
    tally.note_completed("orders", "o1", 99)


@pytest.mark.parametrize("problem", [failing_send, losing_one, doubling_one])
def test_outcome_is_not_fine_if_the_application_lost_or_failed(problem: Any) -> None:
    tally = a_tally()
    problem(tally)
    assert not an_outcome(tally).is_fine


@pytest.mark.parametrize(
    ("proof", "objection"),
    [
        (replace(a_proof(), gaps=2), "2 gaps in the ledgers"),
        (a_proof(duplicated=1), "1 messages were delivered twice"),
        (a_proof(backlog_waiting=3), "3 messages wait in the backlog"),
        (a_proof(accepted=2, diverted=1), "only 1 of 2 messages were diverted"),
        (replace(a_proof(), missing=(a_missing_message("o9"),)), "1 messages are missing"),
        (a_proof(accepted=0), "1 messages are not recorded as accepted"),
        (a_proof(accepted=2, repeated=2), "1 messages are not recorded as accepted"),  # sent, diverted, and the same
    ],
)
def test_outcome_is_not_fine_if_the_ledgers_disagree(proof: Proof, objection: str) -> None:
    outcome = an_outcome(proof=proof)
    assert not outcome.is_fine
    assert f"the ledgers do not agree: {objection}" in [*outcome.lines()]


# Namespaces.


def test_killed_namespace_serves_its_data_after_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRBUS_SERVE_NAME", "another")  # settings of other servers must not apply
    monkeypatch.setenv("PAIRBUS_SERVE_LEDGER", str(tmp_path / "elsewhere"))

    async def send_and_receive(connection_string: str, text: str | None) -> list[str]:
        async with MessagingFactory.from_connection_string(connection_string) as factory:
            queue = await factory.create_queue_client("orders")
            if text is not None:
                await queue.send(BrokeredMessage(text))
                return []
            return [message.text() for message in await queue.receive()]

    with DemoNamespace("contoso", tmp_path, ENTITIES) as contoso:
        contoso.start()
        first, process, console = contoso.connection_string, contoso.process_id, contoso.console
        asyncio.run(send_and_receive(first, "one espresso"))
        contoso.kill()
        assert contoso.process_id is None
        assert not is_running(process)
        contoso.start()
        assert (contoso.connection_string, contoso.console) == (first, console)
        assert asyncio.run(send_and_receive(first, None)) == ["one espresso"]
        process = contoso.process_id
    assert not is_running(process)
    assert any(contoso.ledger.rglob("*.parquet"))
    assert {row["namespace"] for row in rows_of(contoso.ledger, "lives")} == {"contoso"}


def test_failed_start_of_a_namespace_names_the_reason(tmp_path: Path) -> None:
    contoso = DemoNamespace("contoso", tmp_path, "nonsense = 1\n")
    with contoso, pytest.raises(NamespaceStartError, match="nonsense"):
        contoso.start()


def is_running(process: int | None) -> bool:
    return process is not None and Path(f"/proc/{process}").exists()


KEEPER = """
import sys
from pathlib import Path
from rich.console import Console
from pairbus.cli.demo.namespace import DemoNamespace
from pairbus.cli.demo.performance import keep

with DemoNamespace("contoso", Path(sys.argv[1])) as contoso, DemoNamespace("fabrikam", Path(sys.argv[1])) as fabrikam:
    contoso.start()
    fabrikam.start()
    keep(contoso, fabrikam, Console())
print("over")
"""


def test_kept_namespaces_run_until_ctrl_c(tmp_path: Path) -> None:
    with started([sys.executable, "-c", KEEPER, str(tmp_path)], tmp_path) as process:
        said = read_until(process, "Both namespaces run until you press Ctrl-C.")
        for name in ("contoso", "fabrikam"):
            assert re.search(rf"^{name}: http://localhost:\d+/console$", said, re.MULTILINE)
            assert f"ledger: {tmp_path / name / 'ledger'}\n" in said
        assert said.count("Endpoint=sb://localhost:") == 2
        primary, secondary = (tmp_path / name / "ledger" for name in ("contoso", "fabrikam"))
        assert f"pairbus reconcile --primary {primary} --secondary {secondary}\n" in said
        assert f"pairbus cost --ledger {primary} --ledger {secondary} " in said
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S)[0] == "over\n"
        assert not members(process.pid)


# The outage.


@pytest.mark.slow
def test_c9_outage_with_the_in_process_engine_loses_nothing(tmp_path: Path) -> None:
    async def play(primary: DemoNamespace, secondary: DemoNamespace, screen: Screen) -> Aftermath:
        acts = DemoTimeline(screen)
        await asyncio.gather(*(asyncio.to_thread(each.start) for each in (primary, secondary)))
        outage = Outage(primary, secondary, screen, acts, Plan(outage_s=3, rate=60), "in-process")
        return await outage.run()

    console, file = a_console()
    with (
        DemoNamespace("contoso", tmp_path, ENTITIES) as primary,
        DemoNamespace("fabrikam", tmp_path) as secondary,
        opened_screen(console) as screen,
    ):
        aftermath = asyncio.run(play(primary, secondary, screen))
    tally = aftermath.tally
    assert (tally.failed, tally.lost, tally.doubled) == (0, 0, 0)
    assert tally.received == tally.expected > tally.sent > aftermath.diverted > 0
    assert aftermath.pings >= 2
    assert aftermath.syphoned >= aftermath.diverted
    said = file.getvalue()
    for entity in PLACES:
        assert f"'{entity}' is failed over: its messages go to the backlog in fabrikam." in said
        assert f"A ping to '{entity}' was answered." in said
        assert f"'{entity}' is healthy: its messages go to contoso again." in said


# The whole demo, as a process.


@contextmanager
def started(command: list[str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a new session, so that its descendants can be found, with its own temporary directory."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            kill_session(process.pid)


def demo(*options: str) -> list[str]:
    return [sys.executable, "-m", "pairbus", "demo", "--rate", "50", "--seconds", "3", *options]


def read_until(process: subprocess.Popen[str], text: str) -> str:
    said = ""
    for line in process.stdout or ():
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without saying {text!r}: {said}")


def leftovers(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.glob("pairbus-*")]


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 60)
def test_demo_loses_nothing_and_cleans_up(tmp_path: Path) -> None:
    with started(demo(), tmp_path) as process:
        said, _ = process.communicate(timeout=LONG_S)
        assert process.returncode == 0, said
        assert not members(process.pid)
    assert leftovers(tmp_path) == []
    lines = [line for line in said.splitlines() if not line.startswith("delivered again")]  # there may be none
    *_, sent, received, lost, wait, delivered, ledgers, cost = lines
    assert re.fullmatch(r"sent [\d,]+, of these diverted [1-9][\d,]*; failed 0", sent)
    found = re.match(r"received ([\d,]+) of ([\d,]+): ", received)
    assert found is not None
    assert found[1] == found[2]
    assert lost == "lost 0, duplicates 0"
    assert re.fullmatch(r"the longest wait of a send: \d+\.\d\d s", wait)
    assert re.fullmatch(r"from diverted to delivered: p50 \d+\.\d s, longest \d+\.\d s", delivered)
    assert ledgers.startswith("the ledgers agree: nothing is missing")
    assert re.match(r"the outage cost 0\.\d{6} USD, ", cost)
    assert re.search(r"console: http://localhost:\d+/console", said)
    assert said.count("The syphon: batch ") >= 2  # of the drill, and of the outage
    for chatter in ("SharedAccessKey", "WARN", "Traceback", "\x1b"):
        assert chatter not in said


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 60)
@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "sent "), (signal.SIGTERM, "Everything runs on this machine")],
    ids=["ctrl-c in the middle", "sigterm while it starts"],
)
def test_stopped_demo_cleans_up(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    with started(demo(), tmp_path) as process:
        said = read_until(process, moment)
        process.send_signal(number)
        rest, _ = process.communicate(timeout=LONG_S)
        assert process.returncode == 130, said + rest
        assert "Stopping; this may take a few seconds" in rest
        assert rest.endswith("pairbus: stopped\n")
        assert not members(process.pid)
    assert leftovers(tmp_path) == []
    assert "SharedAccessKey" not in said + rest


@pytest.mark.slow
def test_failed_start_of_the_demo_names_the_reason_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--nonsense pyspark-shell")
    with started(demo(), tmp_path) as process:
        said, _ = process.communicate(timeout=LONG_S)
        assert process.returncode == 1, said
        assert not members(process.pid)
    assert said.splitlines()[-1].startswith("pairbus: Spark did not start with the master 'local[2]'")
    assert leftovers(tmp_path) == []
