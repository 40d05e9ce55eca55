"""The syphon: delivers the messages of the backlog to their destinations on the primary namespace.

A source (``source``) receives the locked messages of one backlog queue, renews their locks and settles them. A
destination (``destination``) sends to one entity of the primary, and tracks whether it is reachable. The engine
(``delivery``) restores messages, sends them and decides what an error means; the in-process syphon and the tasks of the
Spark syphon use the same one. The runner (``runner``) connects them inside the process of an application.
"""

from __future__ import annotations

from pairbus.pairing.syphon.interface import (
    IDLE_POLLS_PER_PEEK,
    IN_PROCESS,
    Held,
    Syphon,
    SyphonContext,
    SyphonEngine,
    SyphonSettings,
    TimeToLive,
)
from pairbus.pairing.syphon.runner import InProcessSyphon

__all__ = [
    "IDLE_POLLS_PER_PEEK",
    "IN_PROCESS",
    "Held",
    "InProcessSyphon",
    "Syphon",
    "SyphonContext",
    "SyphonEngine",
    "SyphonSettings",
    "TimeToLive",
]
