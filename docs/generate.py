"""Writes the pages of the reference that come from the code: ``python docs/generate.py``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from pairbus import wire
from pairbus.wire import states

REFERENCE = Path(__file__).parent / "reference"

# States.

STATES_HEAD = """# States

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


def states_page() -> str:
    """The page that draws the tables of ``states``."""
    return STATES_HEAD + "".join(_diagram(*machine) for machine in MACHINES)


def _diagram(
    title: str, table: dict[tuple[int, int], IntEnum], state_names: type[IntEnum], frame_names: type[IntEnum]
) -> str:
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, frame), following in table.items():
        pair = (state_names(state).name, following.name)
        arrows.setdefault(pair, []).append(frame_names(frame).name.lower())
    lines = [f"    {start} --> {end}: {', '.join(frames)}" for (start, end), frames in arrows.items()]
    first = f"    [*] --> {next(iter(state_names)).name}"
    return "\n".join(["", f"## {title}", "", "```mermaid", "stateDiagram-v2", first, *lines, "```", ""])


# Public names.

API_HEAD = """# Names of `pairbus.wire`

Generated from the code by `docs/generate.py`. Everything here is imported from `pairbus.wire`; what is not here may
change without notice. [How to put the engine on a socket](../how-to/socket.md) shows these names at work.
"""

ENDS: dict[str, list[str]] = {
    "Connection": [
        "open", "begin", "close", "receive_data", "data_to_send", "tick", "is_open", "is_closed", "is_finished",
    ],
    "Session": ["begin", "attach", "end", "is_mapped", "unsettled", "queued"],
    "Link": [
        "attach", "refuse", "detach", "flow", "drained", "send", "settle", "update", "can_send", "is_attached",
    ],
}  # fmt: skip

EVENTS = [
    "Authenticated", "ConnectionOpened", "ConnectionClosed", "SessionBegun", "SessionEnded", "LinkAttached",
    "LinkDetached", "CreditGranted", "LinkDrained", "Delivery", "DeliveryAborted", "DispositionReceived",
]  # fmt: skip

DELIVERY_FIELDS = ["link", "delivery_id", "delivery_tag", "message_format", "payload", "settled", "state", "context"]


def api_page() -> str:
    """The page that lists the public names."""
    parts = [API_HEAD, "\n## The ends\n\n"]
    for name, members in ENDS.items():
        parts += [_entry(name), *(_member(getattr(wire, name), member) for member in members), "\n"]
    parts += ["## Events\n\nWhat `receive_data` returns; `Event` is any of them.\n\n", *map(_entry, EVENTS)]
    taken = {*ENDS, *EVENTS, "Event"}
    for title, belongs in SECTIONS.items():
        names = [name for name in wire.__all__ if name not in taken and belongs(getattr(wire, name))]
        taken.update(names)
        parts += [f"\n## {title}\n\n", *map(_entry, names)]
    return "".join(parts)


def _is_error(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Exception)


def _is_value(thing: Any) -> bool:
    return isinstance(thing, type) and thing.__module__ == "pairbus.wire.types"


SECTIONS: dict[str, Callable[[Any], bool]] = {
    "Errors": _is_error,
    "AMQP values without a Python type of their own": _is_value,
    "Enumerations": lambda thing: isinstance(thing, type) and issubclass(thing, Enum),
    "Composites and settings": lambda thing: isinstance(thing, type),
    "Functions": inspect.isfunction,
    "Constants": lambda _: True,
}


def _entry(name: str) -> str:
    thing = getattr(wire, name)
    if inspect.isfunction(thing):
        return f"- `{name}{_signature(thing)}`: {_summary(thing)}\n"
    if not isinstance(thing, type):
        return f"- `{name}` = `{thing!r}`\n"
    fields = DELIVERY_FIELDS if name == "Delivery" else _fields(thing)
    shown = f"`{name}`({', '.join(fields)})" if fields else f"`{name}`"
    return f"- {shown}: {_summary(thing)}\n"


def _fields(thing: type) -> list[str]:
    if dataclasses.is_dataclass(thing):
        return [field.name for field in dataclasses.fields(thing)]
    return list(getattr(thing, "_fields", ()))


def _member(owner: type, name: str) -> str:
    member = inspect.getattr_static(owner, name)
    if isinstance(member, property):
        return f"  - `{name}`: {_summary(member)}\n"
    return f"  - `{name}{_signature(member)}`: {_summary(member)}\n"


def _signature(function: Any) -> str:
    parameters = [
        parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"
    ]
    return str(inspect.Signature(parameters)).replace("'", "")


def _summary(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "states.md": states_page,
    REFERENCE / "api.md": api_page,
}

if __name__ == "__main__":
    for path, make in PAGES.items():
        path.write_text(make(), encoding="utf-8")
