"""Deprecated: the batches of a side buffer are in ``pairbus.server.side_buffer.archive``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers only see the new module
    __getattr__ = moved(
        __name__,
        {
            "BatchFormatError": "pairbus.server.side_buffer.archive",
        },
    )
