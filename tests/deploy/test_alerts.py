"""The alert rules fire in trouble, and not without, as evaluated against what a server really exports."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from pairbus.testing import FaultKind, RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED
from tests.deploy.evaluation import Evaluation, Labels, Scrape
from tests.deploy.test_deploy import ALERTS, alerts
from tests.server.amqp.wire_client import DEADLINE_S, connect, text_message
from tests.waiting import eventually

CASES: Final = ALERTS.with_name("pairbus-alerts-test.yaml")
OF_THE_SCRAPE: Final = {("instance", "contoso"), ("job", "pairbus")}


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"], storage_timeout_s=0.2) as opened:
        yield opened


def scrape(namespace: RunningNamespace) -> Scrape:
    key = base64.b64encode(f"RootManageSharedAccessKey:{namespace.key}".encode()).decode()
    request = Request(f"http://localhost:{namespace.port}/metrics", headers={"Authorization": f"Basic {key}"})
    text = eventually(lambda: answer_to(request))
    found = {
        (sample.name, frozenset({*sample.labels.items(), *OF_THE_SCRAPE})): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return {**found, ("up", frozenset(OF_THE_SCRAPE)): 1.0}


def answer_to(request: Request) -> str | None:
    """Return the answer; ``None`` while the key cannot be checked, because the namespace is reloaded."""
    try:
        with urlopen(request, timeout=DEADLINE_S) as answer:  # noqa: S310 (our own)
            text: str = answer.read().decode()
            return text
    except HTTPError as error:
        error.close()
        return None


def firing(before: Scrape, after: Scrape) -> set[str]:
    """Return the names of the alerts whose expressions hold; how long they must hold is not considered."""
    return {rule["alert"] for rule in alerts() if Evaluation(rule["expr"], before, after).firing()}


def use(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        assert client.send(client.sender("orders"), text_message()) == ACCEPTED
        client.settle(client.receive_one(client.receiver("orders")), ACCEPTED)


def test_no_alert_fires_for_a_healthy_namespace(namespace: RunningNamespace) -> None:
    use(namespace)
    before = scrape(namespace)
    use(namespace)
    assert firing(before, scrape(namespace)) <= {"PairbusSlowCommits"}  # of a machine that others use, too


def begin_send(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        client.begin_send(client.sender("orders"), text_message())
        client.barrier()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FaultKind.STORAGE_STALL, {"PairbusStorageStalled", "PairbusFaultsEngaged"}),
        (FaultKind.STORAGE_ERROR, {"PairbusStorageFailing", "PairbusCommitsFail", "PairbusFaultsEngaged"}),
        (FaultKind.STORAGE_FULL, {"PairbusStorageFull", "PairbusFaultsEngaged"}),
    ],
)
def test_alerts_of_storage_trouble_fire_while_it_lasts(
    namespace: RunningNamespace, kind: FaultKind, expected: set[str]
) -> None:
    use(namespace)
    before = scrape(namespace)
    with namespace.faults.engaged(kind):
        begin_send(namespace)
        eventually(lambda: expected <= firing(before, scrape(namespace)))
    eventually(lambda: firing(end := scrape(namespace), end) <= {"PairbusSlowCommits", "PairbusQueueNotRead"})


# The cases for promtool.


def case_ids() -> list[Any]:
    cases = yaml.safe_load(CASES.read_text("utf-8"))["tests"]
    return [pytest.param(case, id=case["name"]) for case in cases]


def at(case: dict[str, Any], time: str = "0m") -> Scrape:
    """Return the values of a case at a time, in the unit of its interval."""
    step = int(time[:-1]) // int(case["interval"][:-1])
    assert time[-1] == case["interval"][-1] or not step
    found: dict[tuple[str, Labels], float] = {}
    for each in case["input_series"]:
        name, _, labels = each["series"].partition("{")
        found[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))] = float(each["values"].split()[step])
    return found


@pytest.mark.parametrize("case", case_ids())
def test_case_for_promtool_holds(case: dict[str, Any]) -> None:
    rules = {rule["alert"]: rule for rule in alerts()}
    for test in case["alert_rule_test"]:
        rule = rules[test["alertname"]]
        found = Evaluation(rule["expr"], at(case), at(case, test["eval_time"])).vector()
        wanted = [each["exp_labels"] for each in test["exp_alerts"]]
        assert [dict(labels) | rule["labels"] for labels in found] == wanted
        for (labels, value), each in zip(found.items(), test["exp_alerts"], strict=True):
            annotations = {name: filled(text, dict(labels), value) for name, text in rule["annotations"].items()}
            assert annotations == each["exp_annotations"]


def filled(text: str, labels: dict[str, str], value: float) -> str:
    text = text.replace("{{ $value }}", f"{value:g}")
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)


def test_each_rule_fires_in_a_case_and_does_not_before() -> None:
    tests = [test for case in yaml.safe_load(CASES.read_text("utf-8"))["tests"] for test in case["alert_rule_test"]]
    for fires in (True, False):
        assert {test["alertname"] for test in tests if bool(test["exp_alerts"]) is fires} == {
            rule["alert"] for rule in alerts()
        }


def test_promtool_runs_the_cases_where_it_is_installed() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    done = subprocess.run([promtool, "test", "rules", CASES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
