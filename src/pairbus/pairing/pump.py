"""Deprecated: the in-process syphon is in ``pairbus.pairing.syphon``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers see the new place alone
    __getattr__ = moved(__name__, {"InProcessSyphon": "pairbus.pairing.syphon"})
