"""One request of somebody who is logged in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pairbus.console.session import Session
from pairbus.console.watch import Watch
from pairbus.server.host import NamespaceHost
from pairbus.server.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What a page is made from."""

    watch: Watch
    settings: Settings
    session: Session
    can_manage: bool
    query: Mapping[str, str]
    by_itself: bool = False
    """Whether the page asks, and nobody has done anything."""

    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> NamespaceHost:
        return self.watch.services.host

    def number(self, name: str, otherwise: int = 0) -> int:
        """A number of the query; whatever is no number counts as not given."""
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else otherwise
