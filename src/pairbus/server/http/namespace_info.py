"""What the namespace says of itself."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from pairbus.dialect.atom import NAMESPACE, Entry
from pairbus.server.http.answers import entry_answer
from pairbus.server.http.call import Call


async def get_namespace(call: Call) -> Response:
    return entry_answer(
        Entry(
            table=NAMESPACE,
            values={
                **_tier(call),
                "name": call.host.name,
                "type": "Messaging",
                "created_ms": call.created_ms,
                "updated_ms": call.created_ms,
            },
            title=call.host.name,
            id=call.id_of("$namespaceinfo"),
            link=call.link_to("$namespaceinfo"),
            author=call.host.name,
            updated_ms=call.created_ms,
        )
    )


def _tier(call: Call) -> dict[str, Any]:
    """Only the premium tier takes large messages; it is sold in units."""
    if call.host.limits.large_message_bytes:
        return {"sku": "Premium", "messaging_units": 1}
    return {"sku": "Standard"}
