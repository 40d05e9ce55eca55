"""Ctrl-C at the start of a command and during a Spark job prints one line, and no output of Java."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.test_cli import PATIENCE_S
from tests.jobs.ledger.written import operation, write
from tests.jobs.reconcile.model import PairModel
from tests.waiting import eventually

Moment = Callable[[int, Path], bool]


def has_java(pid: int, _temporary: Path) -> bool:
    """Return whether a process has started Java, or the script that becomes Java."""
    return any(children.read_text() for children in Path(f"/proc/{pid}/task").glob("*/children"))


def has_file(temporary: Path, pattern: str) -> bool:
    try:
        return any(temporary.glob(pattern))
    except FileNotFoundError:  # a directory was removed while it was searched: ask again
        return False


def has_spark(_pid: int, temporary: Path) -> bool:
    """Return whether Java has nearly started Spark, and has created the directory of its blocks."""
    return has_file(temporary, "**/blockmgr-*")


def is_at_work(_pid: int, temporary: Path) -> bool:
    """Return whether a Spark job has written shuffle data."""
    return has_file(temporary, "**/blockmgr-*/*/shuffle_*")


STAGES: Sequence[Moment] = (has_java, has_spark, is_at_work)


@contextmanager
def standing_still(process: subprocess.Popen[str]) -> Iterator[bool]:
    """Suspend a command with all its processes; return whether it is still running."""
    assert process.stdout is not None
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        yield process.poll() is None and not select.select([process.stdout], [], [], 0)[0]
    finally:
        os.killpg(process.pid, signal.SIGCONT)


def interrupted(
    ledger: Path, temporary: Path, moment: Moment, number: signal.Signals = signal.SIGINT
) -> tuple[int, str, str] | None:
    """Interrupt a command at a moment and return its result; ``None`` if the moment has passed.

    Ctrl-C goes to all processes; another signal, as from a supervisor, to the command only.
    """
    temporary.mkdir()
    following = STAGES[STAGES.index(moment) + 1 :]
    command = [sys.executable, "-m", "pairbus", "cost", "--ledger", str(ledger)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    ) as process:
        try:
            eventually(lambda: moment(process.pid, temporary) or process.poll() is not None)
            with standing_still(process) as is_running:
                is_in_time = is_running and not any(later(process.pid, temporary) for later in following)
                if is_in_time and number is signal.SIGINT:
                    os.killpg(process.pid, number)
                elif is_in_time:
                    process.send_signal(number)
            out, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return (process.returncode, out, said) if is_in_time else None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", STAGES, ids=["while Java starts", "while Spark starts", "at work"])
def test_e4_ctrl_c_ends_the_command_and_its_java(tmp_path: Path, moment: Moment) -> None:
    """Java inherits the pipes, so they are closed only when it has ended too."""
    ledger, tries = tmp_path / "ledger", 0
    write(ledger, [operation(f"2026-03-{day:02}T{hour:02}:00") for day in range(1, 29) for hour in range(24)])
    while (found := interrupted(ledger, tmp_path / f"{tries}", moment)) is None:
        tries += 1
    code, out, said = found
    assert (code, out, said) == (130, "", "pairbus: stopped\n")
    assert not [*(tmp_path / f"{tries}").iterdir()]


ENTRIES = {
    "the script": (["-c", "from pairbus_command import main; main()"], "h11"),
    "the module": (["-m", "pairbus"], "typer"),
}


@pytest.mark.parametrize(("arguments", "imported"), ENTRIES.values(), ids=ENTRIES.keys())
def test_ctrl_c_during_imports_prints_one_line(tmp_path: Path, arguments: list[str], imported: str) -> None:
    """Delay the first import that is not ours."""
    (tmp_path / f"{imported}.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(600)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, *arguments, "send", "--help"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "importing\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "pairbus: stopped\n")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_e4_sigterm_ends_the_command_and_its_java(tmp_path: Path) -> None:
    ledger, tries = tmp_path / "ledger", 0
    write(ledger, [operation(f"2026-03-{day:02}T{hour:02}:00") for day in range(1, 29) for hour in range(24)])
    while (found := interrupted(ledger, tmp_path / f"{tries}", is_at_work, signal.SIGTERM)) is None:
        tries += 1
    assert found == (143, "", "pairbus: stopped\n")
    assert not [*(tmp_path / f"{tries}").iterdir()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_e4_ctrl_c_at_exit_prints_at_most_one_line(tmp_path: Path) -> None:
    """The report is printed, and the process is about to exit."""
    pair = PairModel()
    pair.send("orders", "m")
    primary, secondary = pair.primary.write(tmp_path / "primary"), pair.secondary.write(tmp_path / "secondary")
    command = [sys.executable, "-m", "pairbus", "reconcile", "--primary", str(primary), "--secondary", str(secondary)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("contoso, paired with fabrikam")
            os.killpg(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, said) in [(0, ""), (130, "pairbus: stopped\n")]


def test_ctrl_c_after_the_command_is_ignored() -> None:
    """Python is shutting down, and would report an exception."""
    program = (
        "import atexit, signal, pairbus_command\n"
        "atexit.register(signal.raise_signal, signal.SIGINT)\n"
        "pairbus_command.main()\n"
    )
    command = [sys.executable, "-c", program, "cost", "--forecast", "--messages-per-day", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Pairing costs")
