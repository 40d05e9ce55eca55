"""The console: pages of a namespace's entities, messages, pair and server, for a browser."""

from __future__ import annotations

from pairbus.console.routes import open_console

__all__ = ["open_console"]
