"""Ledgers that may not belong to the pair must not lead to the verdict "fine" (D4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.jobs.reconcile.events import LedgerContents, LedgerEntity
from pairbus.jobs.reconcile.report import doubts
from tests.jobs.reconcile.sample import counts


def survey(namespace: str, *backlog_of: str) -> LedgerContents:
    """Return the contents of a ledger with a queue, and one backlog queue for each given primary."""
    paths = ["orders", *(f"{name}/x-servicebus-transfer/0" for name in backlog_of)]
    entities = (
        LedgerEntity(
            id=number,
            spelling=path,
            path=path,
            is_dead_letters=False,
            is_topic=False,
            is_subscription=False,
            deletions=(),
        )
        for number, path in enumerate(paths)
    )
    return LedgerContents(
        namespaces=frozenset({namespace}),
        entities=tuple(entities),
        counts={},
        largest=0,
        missed=0,
        gaps=0,
        absent=0,
        last_started=0,
        started_at=None,
        first_at=None,
        last_at=None,
        is_stopped=False,
        is_cut_off=False,
    )


NO_LIVES = replace(survey(""), namespaces=frozenset(), entities=())


@pytest.mark.parametrize(
    ("primary", "secondary", "name", "said"),
    [
        (survey("Contoso"), survey("fabrikam", "contoso"), None, ""),
        (survey("contoso"), survey("fabrikam"), None, ""),
        (survey("localhost"), survey("fabrikam", "contoso"), "Contoso", ""),
        (survey("localhost"), survey("fabrikam", "contoso"), None, ""),  # then all backlog queues are used
        (survey("contoso", "fabrikam"), survey("fabrikam", "contoso"), None, ""),  # each is the other's secondary
        (survey("contoso", "fabrikam"), survey("fabrikam"), "contoso", ""),
        (survey("contoso", "litware"), survey("fabrikam"), None, ""),
        (survey("fabrikam", "contoso"), survey("Contoso"), None, "seem to be swapped"),
        (survey("fabrikam", "contoso"), survey("localhost"), "contoso", "seem to be swapped"),
        (survey("fabrikam", "contoso"), NO_LIVES, "contoso", "seem to be swapped"),
        (survey("contoso", "fabrikam"), survey("fabrikam"), None, "use --name contoso"),
        (survey("contoso"), survey("fabrikam", "litware", "contoso"), "contosso", "only those of contoso, litware"),
    ],
)
def test_d4_mismatched_ledgers_give_no_verdict(
    primary: LedgerContents, secondary: LedgerContents, name: str | None, said: str
) -> None:
    found = doubts(primary, secondary, name, counts(accepted=1))
    assert bool(found) == bool(said)
    assert said in " ".join(found)


def test_d4_empty_ledgers_give_no_verdict() -> None:
    (said,) = doubts(survey("contoso"), survey("fabrikam", "contoso"), None, counts())
    assert "no message was accepted or diverted in this time range" in said
    (said,) = doubts(survey("fabrikam", "localhost-5672"), survey("contoso"), None, counts())
    assert "seem to be swapped" in said
    assert not doubts(survey("contoso"), survey("fabrikam"), None, counts(found=1))
