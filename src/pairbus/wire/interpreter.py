"""Calls of compiled code into the interpreter; this module itself is never compiled."""

from __future__ import annotations


def give_way() -> None:
    """Let another thread run if one waits.

    The interpreter switches threads when a Python function starts, and compiled functions do not count: without this
    call, a thread that decodes a large value would block all others until it is done.
    """
