"""Deprecated: request bodies are read by ``pairbus.server.http.call``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers only see the new module
    __getattr__ = moved(
        __name__,
        {
            "BodyTooLargeError": "pairbus.server.http.call",
        },
    )
