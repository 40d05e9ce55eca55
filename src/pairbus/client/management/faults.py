"""Injects faults into a namespace of pairbus, to practise outages."""

from __future__ import annotations

from typing import Any, Final

from pairbus.client.endpoint import connect_by
from pairbus.client.errors import MessagingCommunicationError
from pairbus.client.management.api import ManagedResource, ManagementApi
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.validation import check_type
from pairbus.fault_kinds import FaultRequest

_FAULTS: Final = ManagedResource("$faults")


class FaultApi:
    """The faults of a pairbus namespace that was started with ``--allow-faults``.

    The key needs the claim *Manage* on the namespace. Requests are not retried.
    """

    def __init__(self, connection_string: str, settings: MessagingFactorySettings | None = None) -> None:
        """Use the namespace of a connection string. Raises ``ConnectionStringError``, a ``ValueError``."""
        endpoint, token_provider, settings = connect_by(connection_string, settings)
        self._api = ManagementApi(endpoint, token_provider, settings or MessagingFactorySettings(), max_kept=0)

    async def add(self, request: FaultRequest) -> dict[str, Any]:
        """Inject a fault, and return its document."""
        check_type("request", request, (FaultRequest,))
        return _checked(await self._api.exchange_json("POST", _FAULTS, request.document()), "id")

    async def get_all(self) -> list[dict[str, Any]]:
        """Return the documents of the faults that are engaged."""
        return _all(await self._api.exchange_json("GET", _FAULTS))

    async def clear(self, fault_id: int | None = None) -> list[dict[str, Any]]:
        """Clear a fault, or all of them; return the documents of those that were cleared."""
        resource = _FAULTS if fault_id is None else ManagedResource(f"{_FAULTS.path}/{fault_id}")
        return _all(await self._api.exchange_json("DELETE", resource))


def _all(document: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _checked(document, "faults")["faults"]
    return found


def _checked(document: Any, key: str) -> dict[str, Any]:
    if not isinstance(document, dict) or key not in document:
        raise MessagingCommunicationError(f"malformed response: it has no '{key}'", is_transient=False)
    return document
