"""The XML namespaces of the management API, and names in them."""

from __future__ import annotations

from typing import Final

ATOM: Final = "http://www.w3.org/2005/Atom"
CONNECT: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

TYPE: Final = f"{{{INSTANCE}}}type"
NIL: Final = f"{{{INSTANCE}}}nil"


def in_atom(name: str) -> str:
    return f"{{{ATOM}}}{name}"


def in_connect(name: str) -> str:
    return f"{{{CONNECT}}}{name}"


def in_counts(name: str) -> str:
    return f"{{{COUNTS}}}{name}"


def local(name: str) -> str:
    """A name without its namespace, be it ``{uri}name`` or ``prefix:name``."""
    return name.rpartition("}")[2].rpartition(":")[2]
