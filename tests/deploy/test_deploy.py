"""The Grafana dashboard and the Prometheus alert rules use only what a server really exports."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from pairbus.testing import running_namespace
from pairbus.wire import ACCEPTED, plain
from tests.deploy.promql import PromqlError, parse
from tests.docs.snippets import ROOT
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, text_message

ALERTS: Final = ROOT / "deploy" / "prometheus" / "pairbus-alerts.yaml"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "pairbus-dashboard.json"
OPERATE: Final = ROOT / "docs" / "how-to" / "operate.md"
OF_THE_SCRAPE: Final = {"instance", "job"}
"""Labels that Prometheus adds."""

DURATION: Final = re.compile(r"(\d+(ms|[smhdwy]))+")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The samples that a server with everything switched on has, with their labels."""
    directory = tmp_path_factory.mktemp("exported")
    with running_namespace(queues=["orders"], ledger=directory / "ledger", side_buffer=directory / "side") as namespace:
        with WireClient(namespace.port, sasl=plain("RootManageSharedAccessKey", namespace.key)).open() as client:
            client.send(client.sender("orders"), text_message())
            client.settle(client.receive_one(client.receiver("orders")), ACCEPTED)
        for _ in range(2):  # the first request is in the counts of the second
            key = base64.b64encode(f"RootManageSharedAccessKey:{namespace.key}".encode()).decode()
            request = Request(f"http://localhost:{namespace.port}/metrics", headers={"Authorization": f"Basic {key}"})
            with urlopen(request, timeout=DEADLINE_S) as answer:  # noqa: S310 (our own)
                text = answer.read().decode()
    return {
        name: labels
        for family in text_string_to_metric_families(text)
        for name, labels in samples_of(family.name, family.type, family.samples)
    }


def samples_of(name: str, kind: str, samples: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield the names of samples; a counter with labels that nothing was counted for has none yet."""
    for sample in samples:
        yield sample.name, set(sample.labels)
    if not samples:
        yield (f"{name}_total" if kind == "counter" else name), documented()[f"{name}_total"]


def documented() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `(pairbus_\w+)` \| \w+ \| (.*?) \|", metrics_page(), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def metrics_page() -> str:
    return (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[Any]:
    for rule in alerts():
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in panels():
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")


@pytest.mark.parametrize("expression", [*expressions()])
def test_expression_is_valid_and_names_exported_metrics_and_labels(
    expression: str, exported: dict[str, set[str]]
) -> None:
    found = parse(expression.replace("$__rate_interval", "5m"))
    assert found.metrics
    for metric, labels in found.metrics.items():
        if metric != "up":  # Prometheus itself makes it
            assert metric in exported, metric
            assert labels <= exported[metric] | OF_THE_SCRAPE, metric


@pytest.mark.parametrize(
    "expression",
    ["", "sum(", "rate(a)", "sum by instance (a)", "a{b=c}", "a >", "a[5]", "unknown(a)", "histogram_quantile(a)",
     "a b", 'a{b="c"', "a[5m", "topk(a)", "'a'", "a offset", "a offset 5"],
)  # fmt: skip
def test_invalid_expression_is_found(expression: str) -> None:
    with pytest.raises(PromqlError):
        parse(expression)


def test_parser_finds_metrics_and_labels() -> None:
    found = parse('sum by (le, i) (rate(a_bucket{job="x"}[5m])) / on (i) b > 0.5 and c{d=~"e|f"} == 0')
    assert found.metrics == {"a_bucket": {"le", "i", "job"}, "b": {"i"}, "c": {"d"}}
    assert parse('rate(a{b="c"}[5m] offset 14d) > 0').metrics == {"a": {"b"}}


# Both.

TROUBLES: Final = (
    "pairbus_storage_failing", "pairbus_storage_full", "pairbus_storage_stalled", "pairbus_commits_failed_total",
    "pairbus_component_state", "pairbus_component_restarts_total", "pairbus_pages_damaged_total",
    "pairbus_records_quarantined_total", "pairbus_faults_engaged", "pairbus_side_buffer_messages",
    "pairbus_audit_failing", "pairbus_ledger_failing",
)  # fmt: skip


@pytest.mark.parametrize("metric", [*TROUBLES, "pairbus_loop_blocked", "pairbus_scrub"])
def test_trouble_has_an_alert_and_a_panel(metric: str) -> None:
    for texts in ([rule["expr"] for rule in alerts()], [one["expr"] for each in panels() for one in each["targets"]]):
        assert any(
            name.startswith(metric) for text in texts for name in parse(text.replace("$__rate_interval", "5m")).metrics
        )


# Alert rules.


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_alert_rule_is_complete(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Pairbus[A-Z]\w+", rule["alert"])
    assert DURATION.fullmatch(rule.get("for", "1m"))
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "description"}
    used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    by = re.search(r"by \(([^)]*)\)", rule["expr"])
    if by is not None:  # an aggregation keeps these labels alone
        assert used <= {label.strip() for label in by[1].split(",")}


def test_every_alert_has_its_own_name_and_is_documented() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len({*names}) == len(names)
    page = OPERATE.read_text("utf-8")
    assert str(ALERTS.relative_to(ROOT)) in page
    assert str(DASHBOARD.relative_to(ROOT)) in page


def test_promtool_accepts_all_expressions_where_it_is_installed(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    texts = [target["expr"].replace("$__rate_interval", "5m") for panel in panels() for target in panel["targets"]]
    rules = [{"record": f"pairbus:panel:{number}", "expr": text} for number, text in enumerate(texts)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for file in (ALERTS, tmp_path / "panels.yaml"):
        done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# The dashboard.


def test_dashboard_can_be_imported() -> None:
    board = dashboard()
    assert board["title"]
    assert board["uid"] == "pairbus-namespaces"
    assert {each["name"] for each in board["templating"]["list"]} == {"datasource", "instance"}
    numbers = [panel["id"] for panel in board["panels"]]
    assert len({*numbers}) == len(numbers)
    titles = [panel["title"] for panel in board["panels"]]
    assert len({*titles}) == len(titles)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_panel_has_a_unit_a_description_and_labels_that_its_legend_uses(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["description"].endswith(".")
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == "${datasource}"
        assert 'instance=~"$instance"' in target["expr"]
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        by = re.search(r"by \(([^)]*)\)", target["expr"])
        kept = set() if by is None else {label.strip() for label in by[1].split(",")}
        assert used <= kept, target["expr"]


def test_variable_of_the_dashboard_names_an_exported_metric(exported: dict[str, set[str]]) -> None:
    query = next(each["query"]["query"] for each in dashboard()["templating"]["list"] if each["name"] == "instance")
    found = re.fullmatch(r"label_values\((\w+), instance\)", query)
    assert found is not None
    assert found[1] in exported


def test_files_name_no_place_of_their_author() -> None:
    for path in (ALERTS, DASHBOARD):
        assert not re.search(r"/home/|/tmp/|localhost", path.read_text("utf-8")), Path(path).name
