"""What is wrong with a document."""

from __future__ import annotations


class AtomError(ValueError):
    """A document that cannot be read, or one with a wrong value; ``element`` names where, when that is known."""

    def __init__(self, reason: str, element: str | None = None) -> None:
        super().__init__(reason if element is None else f"{element}: {reason}")
        self.element = element
