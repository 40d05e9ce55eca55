"""``pairbus trust``: print the certificate authority of a namespace and how to configure clients to trust it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from pairbus.cli.failure import fail
from pairbus.server.settings import SETTINGS
from pairbus.store import DataDirectory, NotADataDirectoryError, StoreError, StoreInUseError
from pairbus.store.certificate import certificate_files, open_certificate

_INSTRUCTIONS: Final = """
Clients that connect with TLS must trust this certificate authority. Messaging clients do not use TLS if the connection
string has UseDevelopmentEmulator=true; the administration clients of Azure always do.

pairbus, commands       export SSL_CERT_FILE={ca}
pairbus, programs       MessagingFactorySettings(ca_file="{ca}")
Python, sync and aio    ServiceBusAdministrationClient.from_connection_string(…, connection_verify="{ca}")
                        ServiceBusClient.from_connection_string(…, connection_verify="{ca}")
                        or, for the synchronous administration: export REQUESTS_CA_BUNDLE={ca}
                        or, for aio: export SSL_CERT_FILE={ca}
JavaScript              export NODE_EXTRA_CA_CERTS={ca}
.NET, on Linux          export SSL_CERT_FILE={ca}
.NET, elsewhere, Java   add the file to the trusted certificates of the system or the runtime
curl                    curl --cacert {ca} https://localhost:PORT/health

A file in SSL_CERT_FILE or REQUESTS_CA_BUNDLE replaces the certificates of the system; it does not extend them.
Anyone who can read {folder} can create certificates that your clients trust: keep it private.
"""


def trust(
    data: Annotated[
        Path,
        typer.Option(help="the data directory of the namespace", envvar=SETTINGS["data"].variable, show_default=False),
    ],
) -> None:
    """Print the path of the certificate authority of a namespace, and how to make clients trust it.

    Example: pairbus trust --data ./contoso
    """
    if not data.is_dir():
        fail(f"the directory {data} does not exist; create it with: pairbus serve --data {data}", 1)
    try:
        ca_file = _authority(data.resolve())
    except NotADataDirectoryError as error:
        fail(f"{error.path} is not a data directory of pairbus: {error.reason}; name the one that serve uses", 1)
    except StoreError as error:
        fail(str(error), 1)
    print(ca_file)
    print(_INSTRUCTIONS.format(ca=ca_file, folder=ca_file.parent), end="")


def _authority(data: Path) -> Path:
    """Return the file of the certificate authority; create it if the namespace was never served."""
    now_ms = time.time_ns() // 1_000_000
    ca_file = certificate_files(data).ca_file
    try:
        directory = DataDirectory.open(data, now_ms)
    except StoreInUseError:
        if ca_file.exists():
            return ca_file
        raise
    try:
        return open_certificate(data, (), now_ms).ca_file
    finally:
        directory.close()
