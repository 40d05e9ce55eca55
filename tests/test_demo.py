"""The demo does what it says."""

from __future__ import annotations

import pytest

from pairbus.cli.demo import Demo


def test_the_demo_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert Demo().run()
    out = capsys.readouterr().out
    assert "sent 5, received 5, settled 5, lost 0" in out
    assert "not-on-the-menu" in out
