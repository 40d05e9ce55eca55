"""Service Bus's own names and forms: addresses, tokens, connection strings."""

from __future__ import annotations
