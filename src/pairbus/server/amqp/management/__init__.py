"""The node ``$management`` of each entity: what can be asked there, beside sending and receiving."""

from __future__ import annotations
