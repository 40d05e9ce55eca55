"""Bringing a message of the backlog home: the rules that every engine of a syphon keeps, and the sending."""

from __future__ import annotations

from pairbus.pairing.homecoming.delivery_rules import DELIVERY_RULES, Fate

__all__ = ["DELIVERY_RULES", "Fate"]
