"""What must not be called fine, since the ledgers may be those of others (D4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.jobs.reconcile.doubts import doubts
from pairbus.jobs.reconcile.survey import Entity, Survey
from tests.jobs.reconcile.sample import counts


def survey(namespace: str, *backlog_of: str) -> Survey:
    """The ledger of a namespace that has a queue, and one backlog queue for each of these."""
    paths = ["orders", *(f"{name}/x-servicebus-transfer/0" for name in backlog_of)]
    entities = (
        Entity(
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
    return Survey(
        namespaces=frozenset({namespace}),
        entities=tuple(entities),
        counts={},
        missed=0,
        gaps=0,
        absent=0,
        last_started=0,
        started_at=None,
        first_at=None,
        last_at=None,
        is_cut_off=False,
    )


NO_LIVES = replace(survey(""), namespaces=frozenset(), entities=())


@pytest.mark.parametrize(
    ("primary", "secondary", "name", "said"),
    [
        (survey("Contoso"), survey("fabrikam", "contoso"), None, ""),
        (survey("contoso"), survey("fabrikam"), None, ""),
        (survey("localhost"), survey("fabrikam", "contoso"), "Contoso", ""),
        (survey("localhost"), survey("fabrikam", "contoso"), None, ""),  # all backlog queues are looked at then
        (survey("contoso", "fabrikam"), survey("fabrikam", "contoso"), None, ""),  # each is the other's secondary
        (survey("contoso", "fabrikam"), survey("fabrikam"), "contoso", ""),
        (survey("contoso", "litware"), survey("fabrikam"), None, ""),
        (survey("fabrikam", "contoso"), survey("Contoso"), None, "seem to be swapped"),
        (survey("fabrikam", "contoso"), survey("localhost"), "contoso", "seem to be swapped"),
        (survey("fabrikam", "contoso"), NO_LIVES, "contoso", "seem to be swapped"),
        (survey("contoso", "fabrikam"), survey("fabrikam"), None, "say --name contoso"),
        (survey("contoso"), survey("fabrikam", "litware", "contoso"), "contosso", "it has those of contoso, litware"),
    ],
)
def test_d4_ledgers_that_do_not_fit_prove_nothing(
    primary: Survey, secondary: Survey, name: str | None, said: str
) -> None:
    found = doubts(primary, secondary, name, counts(accepted=1))
    assert bool(found) == bool(said)
    assert said in " ".join(found)


def test_d4_zeros_everywhere_prove_nothing() -> None:
    (said,) = doubts(survey("contoso"), survey("fabrikam", "contoso"), None, counts())
    assert "nothing was accepted or diverted in this time" in said
    (said,) = doubts(survey("fabrikam", "localhost-5672"), survey("contoso"), None, counts())
    assert "seem to be swapped" in said
    assert not doubts(survey("contoso"), survey("fabrikam"), None, counts(found=1))
