"""The entry point of the ``pairbus`` command.

It is not part of the package, because importing the package takes long enough for a user to press Ctrl-C, which must
not print a traceback.
"""

from __future__ import annotations

import os
import signal
from typing import Final, NoReturn

_STOPPED: Final = 130
_STOPPED_LINE: Final = b"pairbus: stopped\n"


def main() -> None:
    """Run the command. Ctrl-C ends it at once before the command runs, and is ignored after it is done."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise the caller ignores SIGINT on purpose
        signal.signal(signal.SIGINT, stop_at_once)
    from pairbus.cli.main import app  # noqa: PLC0415 (the slow import)

    try:
        app(obj=stop_at_once)  # the commands replace this handler while they run
    finally:
        if signal.getsignal(signal.SIGINT) is stop_at_once:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_at_once(_number: int, _frame: object) -> NoReturn:
    """Exit at once. An exception could be mistaken for a failed import, and there is nothing to clean up yet."""
    os.write(2, _STOPPED_LINE)
    os._exit(_STOPPED)
