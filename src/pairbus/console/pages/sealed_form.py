"""A form that changes something."""

from __future__ import annotations

from collections.abc import Mapping

from pairbus.console.markup import Markup, fill, join
from pairbus.console.visit import Visit


def sealed_form(visit: Visit, action: str, fields: Mapping[str, object], content: Markup) -> Markup:
    """It carries the seal of the session, which no page of others knows."""
    hidden = join(
        fill('<input type="hidden" name="$name" value="$value">', name=name, value=value)
        for name, value in {"seal": visit.session.seal, **fields}.items()
    )
    return fill(
        '<form method="post" action="$action">$hidden$content</form>', action=action, hidden=hidden, content=content
    )
