"""The health of a server, as ``/health`` and the console show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pairbus.server.host import NamespaceHost, Trouble
from pairbus.server.supervision.supervisor import ComponentState, ComponentStatus, Supervisor

_ADVICE: Final = {True: "; run pairbus repair", False: ""}


class Health(NamedTuple):
    """The health of the server; a degraded server still serves everything else."""

    status: str
    problems: Sequence[str] = ()
    is_serving: bool = True


def health_of(host: NamespaceHost, supervisor: Supervisor | None, *, is_draining: bool) -> Health:
    """Return the health of a server; reads neither entities nor the disk."""
    if is_draining:
        return Health("draining", is_serving=False)
    stalled_s = host.stalled_s
    trouble = host.trouble() if stalled_s is None else _stalled(host, stalled_s)
    failed = [] if supervisor is None else [*filter(_is_down, supervisor.statuses())]
    problems = [] if trouble is None else [trouble.problem]
    problems += [f"component {status.name} is {status.state}: {status.reason}" for status in failed]
    problems += _overdue(host)
    if (trouble is not None and not trouble.takes_sends) or any(status.is_essential for status in failed):
        return Health("unavailable", problems, is_serving=False)
    if host.faults:
        problems.append(f"injected faults: {len(host.faults)}")
    if host.quarantined_count:
        problems.append(f"damaged records were quarantined: {host.quarantined_count}")
    if host.damaged_page_count:
        problems.append(f"damaged pages of the store: {host.damaged_page_count}{_ADVICE[host.has_damaged_pages]}")
    if rebuilds := host.committer.rebuilds:
        problems.append(
            f"the store was rebuilt after damage: {len(rebuilds)}; check the disk, the damaged file is"
            f" {rebuilds[-1].kept.name}"
        )
    return Health("degraded" if problems else "ok", problems)


def _stalled(host: NamespaceHost, seconds: float) -> Trouble:
    buffer = host.side_buffer
    # While the namespace is being loaded, nothing can be checked, so nothing is buffered either.
    takes_sends = buffer is not None and buffer.writer.takes_sends() and not host.committer.is_loading
    consequence = "sends go to the side buffer" if takes_sends else "sends are refused"
    return Trouble(f"the storage has not answered for {seconds:.0f} s: {consequence}", takes_sends=takes_sends)


def _overdue(host: NamespaceHost) -> list[str]:
    """Return the alarm of a side buffer that is not merged in time."""
    overdue_s = None if host.side_buffer is None else host.side_buffer.overdue_s
    return [] if overdue_s is None else [f"messages have waited in the side buffer for {overdue_s / 60:.0f} minutes"]


def _is_down(status: ComponentStatus) -> bool:
    return status.state is not ComponentState.RUNNING
