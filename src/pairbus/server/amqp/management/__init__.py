"""The ``$management`` node of each entity: requests besides sending and receiving."""

from __future__ import annotations
