"""Messaging that does not stop sending."""

from __future__ import annotations

from pairbus import client
from pairbus.client import *  # noqa: F403 (its public names are those of the package)

__version__ = "0.1.0"
__all__ = ["__version__"]
__all__ += client.__all__
