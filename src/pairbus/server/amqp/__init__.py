"""The AMQP side of a namespace: connections, and the nodes of their links."""

from __future__ import annotations
