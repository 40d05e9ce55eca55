"""Settings of Spark and paths that a user gives to a command; usable without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pairbus.client.validation import shown

ADDED: Final[dict[str, str]] = {}
"""Settings for every session that this process starts. They take precedence over those of the jobs."""

PACKAGES: Final = "spark.jars.packages"
_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):")
_COORDINATE: Final = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+")


def add_settings(settings: Iterable[str]) -> None:
    """Add settings of the form ``KEY=VALUE``. Raise ``ValueError``."""
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip().startswith("spark."):
            raise ValueError(f"a setting must be KEY=VALUE, where KEY starts with spark., got {shown(key)}")
        ADDED[key.strip()] = value.strip()


def add_packages(packages: str) -> None:
    """Add Maven packages, separated by commas. Raise ``ValueError``."""
    names = [name.strip() for name in packages.split(",") if name.strip()]
    for name in names:
        if not _COORDINATE.fullmatch(name):
            raise ValueError(f"a package must be GROUP:NAME:VERSION, got {shown(name)}")
    if names:
        ADDED[PACKAGES] = ",".join(filter(None, (ADDED.get(PACKAGES), *names)))


def scheme_of(path: str) -> str | None:
    """Return the scheme of a URL, such as ``s3a``; ``None`` for a path of this machine."""
    found = _SCHEME.match(path)
    return None if found is None else found[1].lower()
