"""The demo does what it says."""

from __future__ import annotations

import pytest

from pairbus.cli.demo.__main__ import main


def test_the_demo_loses_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    out = capfd.readouterr().out
    assert "sent 5, received 5, settled 5, lost 0" in out
    assert "not-on-the-menu" in out
    assert out.count("killed after ") == 4
    assert "\nsent and confirmed 6," in out
    assert out.count("lost 0, twice 0") == 2
    assert "failed 0, diverted " in out
    assert "'orders' is failed over" in out
    assert "pinged 'orders': answered" in out
