"""``pairbus diagnostics``: a bundle of a running server, or what its data directory has kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from pairbus.broker import Right
from tests.cli.everyday import CommandFixture
from tests.cli.test_pair import with_key
from tests.waiting import eventually


def test_running_server_collects_a_bundle_and_keeps_it(desk: CommandFixture) -> None:
    done = desk.run("diagnostics")
    assert (done.code, done.stderr) == (0, "")
    bundle = json.loads(done.stdout)
    assert bundle["component"] == "request"
    settings = bundle["settings"]
    assert (settings["name"], settings["port"], settings["trace_frames_of"]) == ("contoso", [0], [])
    times = [datetime.fromisoformat(text) for text in (bundle["at"], *(row["at"] for row in bundle["operations"]))]
    assert {time.tzinfo for time in times} == {UTC}
    assert desk.namespace.key not in done.stdout
    data = desk.namespace.data
    eventually(lambda: [*(data / "diagnostics").glob("*-request.json")])
    kept = desk.run("diagnostics", "--data", data)
    assert (kept.code, kept.stderr) == (0, "")
    found = json.loads(kept.stdout)
    assert bundle in found["bundles"].values()
    assert found["files"]["data.mdb"] > 0
    assert json.loads(found["format"])["format"] == 1
    assert found["versions"]["pairbus"]
    assert desk.namespace.key not in kept.stdout


def test_key_without_manage_is_refused(desk: CommandFixture) -> None:
    done = desk.run("diagnostics", "--connection", with_key(desk.namespace, Right.SEND, Right.LISTEN))
    assert done.code == 1
    assert "Manage" in done.reason
    assert done.stdout == ""


def test_wrong_key_is_refused(desk: CommandFixture) -> None:
    wrong = desk.namespace.connection_string.replace(desk.namespace.key, "d3Jvbmc=")
    done = desk.run("diagnostics", "--connection", wrong)
    assert done.code == 1
    assert "pairbus: " in done.reason
    assert done.stdout == ""


def test_server_and_directory_exclude_each_other(desk: CommandFixture, tmp_path: Path) -> None:
    done = desk.run("diagnostics", "--connection", desk.namespace.connection_string, "--data", tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert "--connection and --data exclude each other" in done.reason


def test_neither_server_nor_directory_is_a_usage_error(desk: CommandFixture) -> None:
    done = desk.run("diagnostics", PAIRBUS_CONNECTION="")
    assert (done.code, done.reason) == (
        2,
        "pairbus: name a running server with --connection, or a data directory with --data",
    )


def test_other_directory_is_an_error(desk: CommandFixture, tmp_path: Path) -> None:
    for data in (tmp_path, tmp_path / "missing"):
        done = desk.run("diagnostics", "--data", data)
        assert done.code == 1
        assert done.reason.startswith(f"pairbus: {data} is not a readable data directory of pairbus: No such file")
        assert done.reason.endswith("name the directory that the server was started with (pairbus serve --data)")
    assert [*tmp_path.iterdir()] == []
