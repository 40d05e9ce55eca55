"""The way to a namespace: TCP, with or without TLS, or a WebSocket."""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingCommunicationError
from pairbus.client.settings import MessagingFactorySettings, Transport
from pairbus.client.web_socket import connect_web_socket


async def connect(protocol: asyncio.Protocol, endpoint: Endpoint, settings: MessagingFactorySettings) -> None:
    """Connect a protocol to a namespace; raises ``MessagingCommunicationError``."""
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
        raise MessagingCommunicationError(
            f"{endpoint}: its certificate is not trusted ({error.verify_message}); name the authority that has signed "
            "it with MessagingFactorySettings(ca_file=…)",
            is_transient=False,
        ) from error
    except (OSError, UnicodeError) as error:  # a host name that cannot be one is a UnicodeError
        raise MessagingCommunicationError(f"{endpoint} cannot be reached: {error}") from error
