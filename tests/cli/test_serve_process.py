"""The setup of the process of ``pairbus serve``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.server.process import SWITCH_INTERVAL_S, YOUNG_OBJECTS

SERVE = """
import atexit, gc, sys
atexit.register(lambda: print(sys.getswitchinterval(), gc.get_threshold()[0], gc.get_freeze_count()))
from pairbus.cli.main import app
app()
"""


def test_e5_serve_tunes_its_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("Endpoint="):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        interval_s, objects, frozen = map(float, process.stdout.read().splitlines()[-1].split())
    assert interval_s == pytest.approx(SWITCH_INTERVAL_S)
    assert objects == YOUNG_OBJECTS
    assert frozen > YOUNG_OBJECTS
