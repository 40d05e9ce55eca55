"""Deprecated: the monthly allowances of rate cards are in ``pairbus.jobs.cost.month``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers only see the new names
    __getattr__ = moved(__name__, {"beyond_allowances": "pairbus.jobs.cost.month"})
