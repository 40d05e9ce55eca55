"""Deprecated: connection references are in ``pairbus.spark.connections``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers only see the new names
    __getattr__ = moved(__name__, {"ConnectionReference": "pairbus.spark.connections"})
