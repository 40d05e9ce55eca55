"""Every line of the log of a real server with ``--log-format json`` has all its facts as fields."""

from __future__ import annotations

import json
import re
from asyncio import run
from functools import partial
from pathlib import Path
from typing import Any, Final

from pairbus.client.management.faults import FaultApi
from pairbus.fault_kinds import FaultKind, FaultRequest
from tests.server.amqp.wire_client import text_message
from tests.server.served_process import ServedProcess, served_process
from tests.waiting import eventually

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_KEY: Final = re.compile(r" (\w+)=")


def entries(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "served.log").read_text(encoding="utf-8").splitlines()]


def first(directory: Path, event: str) -> dict[str, Any] | None:
    return next((entry for entry in entries(directory) if entry["message"].startswith(event)), None)


def cause_trouble(served: ServedProcess, directory: Path) -> None:
    """Quarantine a message, and let the storage fail, and then hang, until that is logged."""
    faults = FaultApi(served.connection_string)
    with served.connect() as client:
        sender = client.sender("orders")
        client.send(sender, text_message("first", message_id="number one"))
        run(faults.add(FaultRequest(kind=FaultKind.QUARANTINE, entity="orders", sequence_number=1)))
        for kind, event in ((FaultKind.STORAGE_ERROR, "storage failed"), (FaultKind.STORAGE_STALL, "storage stalled")):
            fault = run(faults.add(FaultRequest(kind=kind, duration_ms=600_000)))
            client.send(sender, text_message("to the side buffer"))
            eventually(partial(first, directory, event))
            run(faults.clear(fault["id"]))


def test_every_fact_of_every_line_is_a_field(tmp_path: Path) -> None:
    options = ["--log-format", "json", "--allow-faults", "--side-buffer", tmp_path / "side"]
    with served_process(tmp_path, "--data", tmp_path / "data", *options) as served:
        cause_trouble(served, tmp_path)
        logged = entries(tmp_path)
    for entry in logged:
        keys = set(_KEY.findall(_QUOTED.sub('""', entry["message"])))
        assert keys <= entry.keys(), entry["message"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", entry["time"])
    quarantined = first(tmp_path, "record quarantined")
    assert quarantined is not None
    assert {
        "entity": "orders",
        "sequence": 1,
        "message_id": "number one",
        "damaged": "body",
    }.items() <= quarantined.items()
    assert quarantined["key"]
    assert "error" in (first(tmp_path, "storage failed") or {})
    assert "commit_seconds" in (first(tmp_path, "storage stalled") or {})
    assert (first(tmp_path, "fault engaged") or {})["sequence_number"] == 1
    assert (first(tmp_path, "fault done") or {})["kind"] == "quarantine"
    assert "allow_faults" in (first(tmp_path, "insecure setting") or {})["reason"]
