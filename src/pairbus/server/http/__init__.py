"""The HTTP side of a namespace: management, health, metrics, and AMQP over WebSockets."""

from __future__ import annotations
