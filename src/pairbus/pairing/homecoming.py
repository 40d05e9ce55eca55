"""Deprecated: the rules of delivery are in ``pairbus.pairing.syphon.delivery``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers see the new place alone
    __getattr__ = moved(__name__, dict.fromkeys(("DELIVERY_RULES", "RetryDecision"), "pairbus.pairing.syphon.delivery"))
