"""The page of metrics has what a namespace and a pair really give out, and no more."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from urllib.request import Request, urlopen

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pairbus import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions
from pairbus.testing import RunningNamespace, running_namespace
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of

ROWS = {
    code(name): (kind, set(codes(labels)))
    for name, kind, labels, _ in rows_of(
        ROOT / "docs" / "reference" / "metrics.md", "metric", "type", "labels", "description"
    )
}


def test_namespace_exports_the_metrics_of_the_page(tmp_path: Path) -> None:
    with running_namespace(queues=["orders"], ledger=tmp_path) as contoso:
        seen(contoso)  # the first request is in the counts of the second
        check(seen(contoso), {name for name in ROWS if not name.startswith(("pairbus_pair_", "pairbus_syphon_"))})


def test_pair_exports_the_metrics_of_the_page() -> None:
    with running_namespace("contoso", queues=["orders"]) as contoso, running_namespace("fabrikam") as fabrikam:
        text = asyncio.run(metrics_of_a_pair(contoso.connection_string, fabrikam.connection_string))
    names = {name for name in ROWS if name.startswith(("pairbus_pair_", "pairbus_syphon_"))}
    check([*text_string_to_metric_families(text)], names)


async def metrics_of_a_pair(primary_string: str, secondary_string: str) -> str:
    async with (
        NamespaceManager.from_connection_string(secondary_string) as manager,
        MessagingFactory.from_connection_string(secondary_string) as secondary,
        MessagingFactory.from_connection_string(primary_string) as primary,
    ):
        options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, enable_syphon=True)
        pair = await primary.pair_namespace(options)
        await primary.create_message_sender("orders")
        return await pair.metrics()


def seen(contoso: RunningNamespace) -> list[Metric]:
    key = base64.b64encode(f"RootManageSharedAccessKey:{contoso.key}".encode()).decode()
    request = Request(f"http://localhost:{contoso.port}/metrics", headers={"Authorization": f"Basic {key}"})
    with urlopen(request, timeout=60) as answer:  # noqa: S310 (it is our own)
        return [*text_string_to_metric_families(answer.read().decode())]


def check(families: list[Metric], names: set[str]) -> None:
    """They are those of the page, of the same kind; and labels that are seen are told."""
    assert {reported(family) for family in families} == names
    for family in families:
        kind, labels = ROWS[reported(family)]
        assert kind == family.type
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, sample.name


def reported(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name
