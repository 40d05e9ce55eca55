"""The way to a namespace: TCP, with or without TLS, or a WebSocket."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingCommunicationError, ServerBusyError
from pairbus.client.settings import MessagingFactorySettings, Transport
from pairbus.client.unreachable import unreachable, untrusted
from pairbus.client.web_socket import WebSocketBusyError, WebSocketRefusedError, connect_web_socket

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


async def connect(protocol: asyncio.Protocol, endpoint: Endpoint, settings: MessagingFactorySettings) -> None:
    """Connect a protocol to a namespace; raises ``MessagingCommunicationError`` or ``ServerBusyError``."""
    loop = asyncio.get_running_loop()
    try:
        if settings.transport is Transport.WEB_SOCKET:
            await connect_web_socket(loop, protocol, endpoint, settings)
        else:
            await loop.create_connection(
                lambda: cast(asyncio.BaseProtocol, protocol),
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
            f"{endpoint}: what answers there does not speak TLS ({error.reason}); a namespace without it is at "
            "amqp://…, and its connection string says UseDevelopmentEmulator=true",
            is_transient=False,
        ) from error
    except WebSocketBusyError as error:
        raise ServerBusyError(f"{endpoint}: {error}") from error
    except WebSocketRefusedError as error:
        raise MessagingCommunicationError(f"{endpoint}: {error}", is_transient=False) from error
    except (OSError, UnicodeError) as error:  # a host name that cannot be one is a UnicodeError
        raise unreachable(endpoint, error) from error
