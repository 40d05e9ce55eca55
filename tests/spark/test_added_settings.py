"""Settings and packages of Spark that a user gives to a command."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from pairbus.cli.main import app
from pairbus.spark.added_settings import ADDED, PACKAGES, add_packages, add_settings, scheme_of


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = dict(ADDED)
    yield
    ADDED.clear()
    ADDED.update(before)


def test_settings_and_packages_are_collected() -> None:
    add_settings(["spark.a=1", "spark.b = x=y "])
    add_packages("org.a:b:1.0, org.c:d:2")
    add_packages("org.e:f:3")
    add_packages("")
    assert ADDED == {"spark.a": "1", "spark.b": "x=y", PACKAGES: "org.a:b:1.0,org.c:d:2,org.e:f:3"}


@pytest.mark.parametrize("setting", ["spark.a", "hadoop.x=1", "", "=1"])
def test_invalid_setting_is_rejected(setting: str) -> None:
    with pytest.raises(ValueError, match=re.escape("a setting must be KEY=VALUE, where KEY starts with spark.")):
        add_settings([setting])


@pytest.mark.parametrize("packages", ["hadoop-aws", "a:b", "a:b:c:d", "a:b:1,x"])
def test_invalid_package_is_rejected(packages: str) -> None:
    with pytest.raises(ValueError, match="a package must be GROUP:NAME:VERSION, got "):
        add_packages(packages)
    assert PACKAGES not in ADDED


@pytest.mark.parametrize("command", ["capture", "cost", "reconcile", "syphon"])
@pytest.mark.parametrize(("option", "value"), [("--conf", "x=1"), ("--packages", "hadoop-aws")])
def test_every_job_takes_settings_and_packages(command: str, option: str, value: str) -> None:
    found = CliRunner().invoke(app, [command, option, value])
    assert found.exit_code == 2
    assert f"{option}: a " in found.output


@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        ("s3a://bucket/x", "s3a"),
        ("file:///x", "file"),
        ("FILE:/x", "file"),
        ("/x", None),
        ("x/y:z", None),
        ("./a:b", None),
    ],
)
def test_urls_have_a_scheme(path: str, scheme: str | None) -> None:
    assert scheme_of(path) == scheme
