"""The console: what a namespace holds and does, in a browser."""

from __future__ import annotations

from pairbus.console.annex import open_console

__all__ = ["open_console"]
