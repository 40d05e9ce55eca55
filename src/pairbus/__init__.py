"""Messaging that does not stop sending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus import client, pairing
from pairbus.client import *  # noqa: F403 (their public names are those of the package)
from pairbus.pairing import *  # noqa: F403
from pairbus.renamed import renamed

__version__ = "0.1.0"
__all__ = ["__version__"]
__all__ += client.__all__ + pairing.__all__

if not TYPE_CHECKING:  # type checkers see the new names alone
    __getattr__ = renamed(__name__, {"Verdict": "FailureVerdict"})
