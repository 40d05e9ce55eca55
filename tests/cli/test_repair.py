"""``pairbus repair`` prints what it has copied and what is lost, as a table or as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pairbus.broker import QueueDescription
from pairbus.broker.message import NewMessage
from pairbus.cli.main import app
from pairbus.store.directory import DATA_FILE
from tests.durability.namespace import NOW, QUEUE, open_keeper


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "contoso"
    with open_keeper(path) as keeper:
        keeper.namespace.create_queue("orders", QueueDescription(), NOW)
        keeper.namespace.send(QUEUE, [NewMessage(b"body %d" % n * 50, f"id {n}") for n in range(100)], NOW)
        keeper.commit(NOW)
    return path


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["repair", *map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"})
    return done.exit_code, done.output


def damage(data: Path) -> None:
    content = (data / DATA_FILE).read_bytes()
    (data / DATA_FILE).write_bytes(content.replace(b"body 41", b"body ??"))


def test_healthy_directory_exits_with_0(data: Path, tmp_path: Path) -> None:
    code, output = run("--data", data, "--to", tmp_path / "new")
    assert code == 0
    assert "orders" in output
    assert "copied 205 records" in output


def test_damaged_directory_exits_with_3_and_lists_what_is_lost(data: Path, tmp_path: Path) -> None:
    damage(data)
    code, output = run("--data", data, "--to", tmp_path / "new")
    assert code == 3
    assert 'lost entity=orders sequence=42 message_id="id 41" damaged=body' in output


def test_json_has_counts_and_sequence_numbers(data: Path, tmp_path: Path) -> None:
    damage(data)
    code, output = run("--data", data, "--to", tmp_path / "new", "--json")
    report = json.loads(output)
    assert (code, report["complete"]) == (3, False)
    (entity,) = report["entities"]
    assert entity == {
        "entity": "orders",
        "copied": 99,
        "restored": 0,
        "lost": [{"sequence_number": 42, "message_id": "id 41", "damaged": "body"}],
        "quarantined_before": [],
    }
    assert report["damaged_pages"] == []


def test_error_exits_with_1(data: Path, tmp_path: Path) -> None:
    code, output = run("--data", data, "--to", data)
    assert (code, "name a new or an empty directory" in output) == (1, True)
    with open_keeper(data):
        code, output = run("--data", data, "--to", tmp_path / "new")
    assert (code, "in use" in output) == (1, True)


def test_serve_on_a_damaged_directory_exits_with_1_and_names_the_repair(data: Path, tmp_path: Path) -> None:
    with (data / DATA_FILE).open("r+b") as file:
        file.write(bytes(8_192))  # both meta pages
    command = [sys.executable, "-m", "pairbus.cli.main", "serve", "--data", data, "--port", "0"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"pairbus repair --data {data} --to" in " ".join(done.stderr.split())
    code, output = run("--data", data, "--to", tmp_path / "new")
    assert (code, "copied 205 records" in output) == (3, True)
