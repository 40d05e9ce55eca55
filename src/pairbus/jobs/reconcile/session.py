"""Deprecated: the Spark settings of a reconciliation are in ``pairbus.jobs.reconcile.command``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers only see the new names
    __getattr__ = moved(__name__, {"SESSION": "pairbus.jobs.reconcile.command"})
