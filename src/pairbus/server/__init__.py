"""A namespace served over the network: AMQP, HTTP and WebSocket on one port."""

from __future__ import annotations

from pairbus.server.errors import StopTimeoutError
from pairbus.server.server import NamespaceServer
from pairbus.server.settings import Settings, SettingsError, Tier, load_settings

__all__ = ["NamespaceServer", "Settings", "SettingsError", "StopTimeoutError", "Tier", "load_settings"]
