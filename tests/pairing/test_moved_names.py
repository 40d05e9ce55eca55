"""Names that were moved to other modules: the old import paths work, with a warning."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("pairbus.pairing.pump", "pairbus.pairing.syphon.runner", "InProcessSyphon"),
        ("pairbus.pairing.homecoming", "pairbus.pairing.syphon.delivery", "DELIVERY_RULES"),
        ("pairbus.pairing.homecoming", "pairbus.pairing.syphon.delivery", "RetryDecision"),
    ],
)
def test_old_import_path_works_with_a_warning(old: str, new: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} is now pairbus"):
        found = getattr(import_module(old), name)
    assert found is getattr(import_module(new), name)


def test_unknown_name_of_an_old_module_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = import_module("pairbus.pairing.pump").Nothing
