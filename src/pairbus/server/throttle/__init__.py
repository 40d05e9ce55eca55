"""Throttling: which resources a node is short of, and which requests it denies meanwhile."""

from __future__ import annotations
