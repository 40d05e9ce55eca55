"""The names and formats of Service Bus: addresses, tokens, connection strings, messages, management documents."""

from __future__ import annotations
