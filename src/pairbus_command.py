"""The command ``pairbus`` from its first moment on.

It is no part of the package, because importing that takes longer than some wait before they press Ctrl-C, and then
they should not be shown where it was.
"""

from __future__ import annotations

import os
import signal
from typing import Final, NoReturn

_STOPPED: Final = 130
_SAID: Final = b"pairbus: stopped\n"


def main() -> None:
    """Run the command. Ctrl-C ends it at once before it is at work, and is ignored when it is done."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody has a reason not to be stopped
        signal.signal(signal.SIGINT, stop_at_once)
    from pairbus.cli.main import app  # noqa: PLC0415 (this is what takes so long)

    try:
        app()
    finally:
        if signal.getsignal(signal.SIGINT) is stop_at_once:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_at_once(_number: int, _frame: object) -> NoReturn:
    """End at once. An exception could be taken for a failed import, and nothing has been begun that has to be ended."""
    os.write(2, _SAID)
    os._exit(_STOPPED)
