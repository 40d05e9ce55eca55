"""The reference page of HTTP has every route, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from pairbus.server.http.routes import ROUTES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "http.md"


def test_every_route_is_on_the_page() -> None:
    rows = re.findall(r"^\| `([A-Z]+ /\S+)` \|.*\| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {request: needs.startswith("*Manage*") for request, needs in rows}
    assert listed == {f"{route.method} {route.pattern}": route.right is not None for route in ROUTES}
