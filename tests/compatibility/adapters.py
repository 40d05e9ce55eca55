"""The clients that the suite runs with, in the order of the page's columns."""

from __future__ import annotations

from typing import Final

from tests.compatibility.aio_client import AioAdapter
from tests.compatibility.client import Adapter
from tests.compatibility.js_client import JsAdapter
from tests.compatibility.pairbus_async_client import PairbusAdapter
from tests.compatibility.pairbus_blocking_client import PairbusBlockingAdapter
from tests.compatibility.sync_client import SyncAdapter

ADAPTERS: Final[tuple[Adapter, ...]] = (
    SyncAdapter(),
    AioAdapter(),
    JsAdapter(),
    PairbusAdapter(),
    PairbusBlockingAdapter(),
)
