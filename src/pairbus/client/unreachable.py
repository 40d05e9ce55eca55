"""What is said of a namespace that nobody gets through to."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Final

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingCommunicationError

TRUST_ADVICE: Final = (
    "name the file of the authority that has signed it in the settings, MessagingFactorySettings(ca_file=…),"
    " or give them an ssl_context"
)
"""What a program can do. Who types a command has no settings, and is told something else."""

_ADVICE: Final = "see that its namespace is running, and that this is the Endpoint of its connection string"
_NUMBERED: Final = re.compile(r"\[Errno (\d+)\]")


def unreachable(endpoint: Endpoint, error: Exception) -> MessagingCommunicationError:
    """With what to look at: whoever reads it may not know which of the two is wrong."""
    return MessagingCommunicationError(f"{endpoint} cannot be reached: {_reason(error)}", hint=_ADVICE)


def untrusted(endpoint: Endpoint, error: ssl.SSLCertVerificationError) -> MessagingCommunicationError:
    return MessagingCommunicationError(
        f"{endpoint}: its certificate is not trusted ({error.verify_message})", is_transient=False, hint=TRUST_ADVICE
    )


def _reason(error: Exception) -> str:
    """In the system's words, without its numbers and without the address, which is told already."""
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError):
        return str(error)
    if isinstance(error, socket.gaierror):  # whose numbers are others
        return error.strerror or str(error)
    # Where a name has several addresses, asyncio tells of all in one text, with a number for each and none for itself.
    numbers = [error.errno] if error.errno is not None else [*map(int, _NUMBERED.findall(str(error)))]
    return ", ".join(dict.fromkeys(map(os.strerror, numbers))) or str(error)
