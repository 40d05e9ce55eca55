"""Versions of entities: which one a client has seen, and whether it is still the one that is there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from pairbus.server.errors import PreconditionFailedError

_TAG: Final = re.compile(r'(?:W/)?"([^"]*)"')


def etag_of(settings: Mapping[str, Any], updated_ms: int) -> str:
    """A tag that changes with each change of the settings, and not with the messages."""
    content = repr((updated_ms, sorted(settings.items(), key=lambda item: item[0])))
    return f'"{hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'


def check_match(if_match: str | None, current: str, entity: str) -> None:
    """Raise ``PreconditionFailedError`` if the header names versions, and not this one. ``*`` is any version."""
    if if_match is None or if_match.strip() == "*":
        return
    named = _TAG.findall(if_match) or [if_match.strip()]
    if current.strip('"') not in named:
        raise PreconditionFailedError(
            f"'{entity}' has changed since the version that If-Match names: read it again", entity
        )
