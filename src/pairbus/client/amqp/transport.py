"""The transport of a client connection: TCP, TLS or a WebSocket."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from pairbus.client.endpoint import Endpoint, unreachable, untrusted
from pairbus.client.errors import MessagingCommunicationError, ServerBusyError
from pairbus.client.settings import MessagingFactorySettings, Transport
from pairbus.client.web_socket import WebSocketBusyError, WebSocketRefusedError, connect_web_socket

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


async def connect(protocol: Any, endpoint: Endpoint, settings: MessagingFactorySettings) -> None:
    """Connect an object with the methods of ``asyncio.Protocol`` to a namespace.

    Raises ``MessagingCommunicationError`` or ``ServerBusyError``.
    """
    loop = asyncio.get_running_loop()
    try:
        if settings.transport is Transport.WEB_SOCKET:
            await connect_web_socket(loop, protocol, endpoint, settings)
        else:
            await loop.create_connection(
                lambda: protocol,
                endpoint.host,
                endpoint.amqp_port,
                ssl=settings.tls_context() if endpoint.tls else None,
            )
    except ssl.SSLCertVerificationError as error:
        raise untrusted(endpoint, error) from error
    except ssl.SSLError as error:
        if error.reason not in _NO_TLS:
            raise unreachable(endpoint, error) from error
        raise MessagingCommunicationError(
            f"{endpoint}: the server does not use TLS ({error.reason}); a namespace without TLS is at amqp://…, and "
            "its connection string contains UseDevelopmentEmulator=true",
            is_transient=False,
        ) from error
    except WebSocketBusyError as error:
        raise ServerBusyError(f"{endpoint}: {error}") from error
    except WebSocketRefusedError as error:
        raise MessagingCommunicationError(f"{endpoint}: {error}", is_transient=False) from error
    except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
        raise unreachable(endpoint, error) from error
