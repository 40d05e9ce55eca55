"""For those who watch the server: whether it is well, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import JSONResponse, Response

from pairbus.broker import Right
from pairbus.server.host import NamespaceHost
from pairbus.server.http.credentials import Credentials
from pairbus.server.http.metrics import Metrics
from pairbus.server.http.occupancy import Entities, Occupant, Totals, occupants
from pairbus.store import StoreError

_KEPT_MS: Final = 5_000


class Health(NamedTuple):
    """How the server is; what is degraded still serves everything else."""

    status: str
    problems: Sequence[str] = ()
    is_serving: bool = True


class Monitoring:
    """Answers without a look at entities, unless the asker may see them."""

    def __init__(
        self, host: NamespaceHost, metrics: Metrics, *, open_metrics: bool, is_draining: Callable[[], bool]
    ) -> None:
        self._host = host
        self._metrics = metrics
        self._open_metrics = open_metrics
        self._is_draining = is_draining
        self._found: list[Occupant] | None = None
        self._counted_ms = 0

    def health(self) -> Response:
        health = self._health()
        status = HTTPStatus.OK if health.is_serving else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": health.status, "name": self._host.name, "problems": health.problems}, status)

    def metrics(self, credentials: Credentials) -> Response:
        registry = CollectorRegistry()
        found = self._occupants()
        if found is not None:
            registry.register(Totals(found))
            if self._may_see_entities(credentials):
                registry.register(Entities(found))
        body = generate_latest(self._metrics.registry) + generate_latest(registry)
        return Response(body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    def _health(self) -> Health:
        if self._is_draining():
            return Health("draining", is_serving=False)
        host = self._host
        try:
            _ = host.namespace
        except StoreError:
            return Health("unavailable", ["the store cannot be read"], is_serving=False)
        if (seconds := host.stalled_s) is not None:
            return Health("unavailable", [f"the storage has not answered for {seconds:.0f} s"], is_serving=False)
        if host.failure is not None:
            return Health("unavailable", ["the storage fails: the log says why"], is_serving=False)
        problems = []
        has_buffer = host.side_buffer is not None
        if host.lacks_room():
            problems.append("the storage is full: sends " + ("go to the side buffer" if has_buffer else "are refused"))
            if not has_buffer:
                return Health("unavailable", problems, is_serving=False)
        if host.quarantined_count:
            problems.append(f"damaged records were quarantined: {host.quarantined_count}")
        return Health("degraded" if problems else "ok", problems)

    def _occupants(self) -> list[Occupant] | None:
        """What there is, as of a moment ago: counting takes a while. ``None`` when the store cannot be read."""
        now_ms = self._host.now_ms()
        if now_ms - self._counted_ms >= _KEPT_MS or self._found is None:
            try:
                self._found = occupants(self._host.namespace, now_ms)
            except StoreError:
                self._found = None
            self._counted_ms = now_ms
        return self._found

    def _may_see_entities(self, credentials: Credentials) -> bool:
        """Raises ``UnauthorizedError`` for credentials that do not hold: whoever shows some wants to see more."""
        if self._open_metrics:
            return True
        if credentials.text is None:
            return False
        now_ms = self._host.wall_ms()
        if not credentials.allows("", Right.MANAGE, now_ms):
            credentials.require("", Right.LISTEN, now_ms)
        return True
