"""``python -m pairbus`` is the command ``pairbus``."""

from __future__ import annotations

from pairbus.cli.main import app

if __name__ == "__main__":
    app()
