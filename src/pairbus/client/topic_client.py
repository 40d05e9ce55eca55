"""The end of a topic that takes messages."""

from __future__ import annotations

from pairbus.client.sender import MessageSender


class TopicClient(MessageSender):
    """Sends to a topic, whose subscriptions each get their copies."""
