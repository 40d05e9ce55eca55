"""``python -m pairbus`` is the command ``pairbus``."""

from __future__ import annotations

from pairbus_command import main

if __name__ == "__main__":
    main()
