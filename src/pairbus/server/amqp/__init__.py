"""The AMQP side of a namespace: connections, and what their links lead to."""

from __future__ import annotations
