"""The page of what works with which client is the one that the tests make."""

from __future__ import annotations

import importlib

from tests.compatibility.page import CHAPTERS, HERE, PAGE, features_of, page


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.compatibility.page"


def test_every_module_of_features_is_a_chapter() -> None:
    others = {"test_page", "test_plain_amqp", "test_samples"}
    assert {path.stem for path in HERE.glob("test_*.py")} - others == set(CHAPTERS)


def test_every_feature_has_a_title_of_its_own() -> None:
    for name in CHAPTERS:
        titles = [feature.title for feature in features_of(importlib.import_module(f"tests.compatibility.{name}"))]
        assert len(set(titles)) == len(titles)
