"""The limits of a connection, from the settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

_KILOBYTE: Final = 1024
_MEGABYTE: Final = 1024 * _KILOBYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one connection, and of all unproven ones together; each field is a setting of the same name.

    A connection is unproven until it has sent a valid key or token.
    """

    max_sessions_per_connection: int = 5_000
    max_links_per_connection: int = 10_000
    """On all its sessions together."""

    max_tokens_per_connection: int = 10_000
    """Every link may have its own token."""

    unproven_connection_bytes: int = 64 * _KILOBYTE
    """Buffered bytes of incomplete messages; and of responses that the peer has not read."""

    unproven_received_bytes: int = 256 * _KILOBYTE
    """Total bytes that an unproven connection may send."""

    unproven_total_bytes: int = 32 * _MEGABYTE
    """Bytes buffered for all unproven connections: incomplete frames, messages and requests, unread and unsent bytes.
    """

    handshake_timeout_s: float = 30.0
    """Until the first byte, and then until the end of the TLS handshake."""

    token_timeout_s: float = 60.0
    """Until AMQP is opened, and then until the first token."""

    http_request_timeout_s: float = 30.0
    """From the first byte of a request to its last."""

    http_send_timeout_s: float = 60.0
    """For how long a peer may leave a response unread."""


LIMIT_NAMES: Final = (
    *(each.name for each in fields(ConnectionLimits)),
    "max_rules_per_subscription",
    "rule_budget_ms",
    "unproven_sessions",
    "unproven_links",
    "incomplete_bytes",
    "values",
    "http_head_bytes",
    "http_body_bytes",
    "web_socket_frame_bytes",
    "busy_responses",
    "waiting_response_bytes",
    "unconfirmed_bytes",
    "unread_bytes",
    "open_transactions",
    "transaction_bytes",
    "transaction_timeout_s",
    "console_logins",
)
"""The limits that are counted when they are reached. Those from ``unproven_sessions`` on are fixed."""
