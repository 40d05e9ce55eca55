"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

from tests.thoroughness import times

settings.register_profile("pairbus", max_examples=times(100))
settings.load_profile("pairbus")
