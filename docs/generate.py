"""Writes the pages of the reference that come from the code: ``python docs/generate.py``."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from pairbus.wire import states

PAGE = Path(__file__).parent / "reference" / "states.md"

HEAD = """# States

Generated from `pairbus/wire/states.py` by `docs/generate.py`.

Connections, sessions and links have two ends, and each end has a state of its own: the diagrams hold for what we send
and for what the peer sends. A frame without an arrow may not come. A SASL exchange has one state, because the ends
take turns.
"""

MACHINES: list[tuple[str, dict[tuple[int, int], IntEnum], type[IntEnum], type[IntEnum]]] = [
    ("One end of a connection", {**states.CONNECTION}, states.ConnectionState, states.Frame),
    ("One end of a session", {**states.SESSION}, states.SessionState, states.Frame),
    ("One end of a link", {**states.LINK}, states.LinkState, states.Frame),
    ("A SASL exchange", {**states.SASL}, states.SaslState, states.SaslFrame),
]


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_diagram(*machine) for machine in MACHINES)


def _diagram(
    title: str, table: dict[tuple[int, int], IntEnum], state_names: type[IntEnum], frame_names: type[IntEnum]
) -> str:
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, frame), following in table.items():
        pair = (state_names(state).name, following.name)
        arrows.setdefault(pair, []).append(frame_names(frame).name.lower())
    lines = [f"    {start} --> {end}: {', '.join(frames)}" for (start, end), frames in arrows.items()]
    first = next(iter(state_names)).name
    return "\n".join(
        ["", f"## {title}", "", "```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, "```", ""]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
