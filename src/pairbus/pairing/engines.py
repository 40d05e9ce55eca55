"""The engines that a syphon can have: ours, and those of other packages."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

from pairbus.client.validation import shown
from pairbus.pairing.pump import InProcessSyphon
from pairbus.pairing.syphon import IN_PROCESS, SyphonEngine

GROUP: Final = "pairbus.syphons"
"""The group of entry points that other engines are found by."""


def find_engine(name: str | SyphonEngine) -> SyphonEngine:
    """An engine by its name, or the engine itself; raises ``ValueError`` if there is none such installed."""
    if not isinstance(name, str):
        return name
    if name == IN_PROCESS:
        return InProcessSyphon
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted({IN_PROCESS, *found}))
        raise ValueError(f"there is no syphon engine {shown(name)}; there are: {known}")
    engine: SyphonEngine = found[name].load()
    return engine
