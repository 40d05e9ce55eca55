"""What compiled code has to ask the interpreter for; this module is never compiled itself."""

from __future__ import annotations


def give_way() -> None:
    """Let another thread run if one waits.

    The interpreter changes threads at the start of a function, and compiled functions are none to it: without this
    call, a thread that decodes a large value would stop all others until it is done.
    """
