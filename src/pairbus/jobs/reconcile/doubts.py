"""Why ledgers may prove nothing though nothing is missing in them: they may be those of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pairbus.jobs.reconcile.survey import Survey

_EMPTY: Final = (
    "nothing was accepted or diverted in this time, so that nothing is proved: "
    "see whether these are the ledgers of the pair, and whether the time is right, which is in UTC"
)


def doubts(primary: Survey, secondary: Survey, name: str | None, counts: Mapping[str, int]) -> list[str]:
    """What is to be looked at before anybody relies on it; ``name`` is what the backlog queues call the primary."""
    wanted, there, elsewhere = _names(primary, name), _backlogs(secondary), _backlogs(primary)
    is_empty = bool(primary.namespaces and secondary.namespaces) and not any(counts.values())
    if not wanted & there and (_names(secondary, name) & elsewhere or (is_empty and elsewhere)):
        return [_swapped(primary, secondary)]
    if name is not None and there and not wanted & there:
        known = ", ".join(sorted(there))
        return [f"--name is {name!r}, and the secondary has no backlog queues of that name; it has those of {known}"]
    return [_EMPTY] if is_empty else []


def _swapped(primary: Survey, secondary: Survey) -> str:
    given, other = min(primary.namespaces), min(secondary.namespaces, default="the other")
    return (
        f"--primary and --secondary seem to be swapped: the ledger of {given!r} tells of backlog queues, and that of "
        f"{other!r} of none that fit; if each of the two is the other's secondary, say --name {given}"
    )


def _names(found: Survey, name: str | None) -> set[str]:
    return {name.lower()} if name is not None else {one.lower() for one in found.namespaces}


def _backlogs(found: Survey) -> set[str]:
    """What the backlog queues of a namespace call the primaries that they belong to."""
    return {one.backlog_of for one in found.entities if one.backlog_of is not None}
