"""``pairbus trust``: the certificate authority of a namespace, and how each client is told of it."""

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
Who connects with TLS has to trust it. Messaging with UseDevelopmentEmulator=true in the connection string goes without
TLS; the administration clients of Azure always use it.

pairbus, commands       export SSL_CERT_FILE={ca}
pairbus, programs       MessagingFactorySettings(ca_file="{ca}")
Python, sync and aio    ServiceBusAdministrationClient.from_connection_string(…, connection_verify="{ca}")
                        ServiceBusClient.from_connection_string(…, connection_verify="{ca}")
                        or, for the synchronous administration: export REQUESTS_CA_BUNDLE={ca}
                        or, for aio: export SSL_CERT_FILE={ca}
JavaScript              export NODE_EXTRA_CA_CERTS={ca}
.NET, on Linux          export SSL_CERT_FILE={ca}
.NET, elsewhere, Java   add the file to the certificates that the system, or the runtime, trusts
curl                    curl --cacert {ca} https://localhost:PORT/health

A file in SSL_CERT_FILE or REQUESTS_CA_BUNDLE is trusted instead of the system's certificates, not beside them.
Who can read {folder} can make certificates that your clients believe: keep it to yourself.
"""


def trust(
    data: Annotated[
        Path,
        typer.Option(help="the data directory of a namespace", envvar=SETTINGS["data"].variable, show_default=False),
    ],
) -> None:
    """Print where the certificate authority of a namespace is, and how clients are told to trust it.

    Example: pairbus trust --data ./contoso
    """
    if not data.is_dir():
        fail(f"there is no directory {data}; start the namespace once with: pairbus serve --data {data}", 1)
    try:
        ca_file = _authority(data.resolve())
    except NotADataDirectoryError as error:
        fail(f"{error.path} is no data directory of pairbus: {error.reason}. Name the one that serve was given", 1)
    except StoreError as error:
        fail(str(error), 1)
    print(ca_file)
    print(_INSTRUCTIONS.format(ca=ca_file, folder=ca_file.parent), end="")


def _authority(data: Path) -> Path:
    """The file; a namespace that is being served has made it already."""
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
