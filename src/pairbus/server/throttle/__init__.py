"""What a node is short of, and which requests it denies until that has passed."""

from __future__ import annotations
