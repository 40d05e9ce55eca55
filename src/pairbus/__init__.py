"""Messaging that does not stop sending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import on_demand

__version__ = "0.1.0"

if TYPE_CHECKING:  # at run time they are imported when they are first used: no command needs all of them to start
    from pairbus import client, pairing
    from pairbus.client import *  # noqa: F403 (their public names are those of the package)
    from pairbus.pairing import *  # noqa: F403

    __all__ = ["__version__"]
    __all__ += client.__all__ + pairing.__all__
else:
    __getattr__, __dir__ = on_demand(
        __name__, ["pairbus.client", "pairbus.pairing"], ["__version__"], {"Verdict": "FailureVerdict"}
    )
