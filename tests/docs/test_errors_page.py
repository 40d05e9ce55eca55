"""The page of the client's errors says what is true: each error with its bases, and where it comes from."""

from __future__ import annotations

import asyncio
import re

import pytest

from pairbus import MessagingError, MessagingTimeoutError, client
from pairbus.client import errors
from pairbus.client.amqp.conditions import ERRORS, error_from
from pairbus.client.management.http import HttpResponse, refusal_of
from pairbus.wire import Error, Symbol
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of

PAGE = ROOT / "docs" / "reference" / "errors.md"
ROWS = {code(row[0]): row for row in rows_of(PAGE, "error", "is a", "transient", "when", "what to do")}
CONDITIONS = rows_of(PAGE, "condition", "error")
STATUSES = rows_of(PAGE, "status", "error")
KINDS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MessagingError)
}


def test_every_error_has_a_row_and_every_row_an_error() -> None:
    assert ROWS.keys() == KINDS.keys()
    assert len(rows_of(PAGE, "error", "is a", "transient", "when", "what to do")) == len(ROWS)


def test_every_error_can_be_imported_from_the_client() -> None:
    assert KINDS.keys() <= set(client.__all__)


@pytest.mark.parametrize("name", ROWS)
def test_row_names_the_bases_of_its_error(name: str) -> None:
    assert codes(ROWS[name][1]) == [base.__name__ for base in KINDS[name].__bases__]


@pytest.mark.parametrize("name", ROWS)
def test_row_states_whether_its_error_is_transient(name: str) -> None:
    assert ROWS[name][2] == ("yes" if KINDS[name]("").is_transient else "no")


@pytest.mark.parametrize("name", ROWS)
def test_row_has_a_cause_and_a_remedy(name: str) -> None:
    assert all(ROWS[name][3:])


def test_attributes_are_those_of_an_error() -> None:
    attributes = [code(row[0]) for row in rows_of(PAGE, "attribute", "description")]
    assert {*attributes} - {"__cause__"} == {*vars(MessagingError("for a look"))}
    assert hasattr(MessagingError(""), "__cause__")


def test_hint_is_at_the_end_of_the_text() -> None:
    assert all(str(kind("why")).endswith(kind("why").hint) for kind in KINDS.values())
    assert any(kind("why").hint for kind in KINDS.values())


def test_every_condition_has_a_row_with_its_error() -> None:
    listed = {condition: code(row[1]) for row in CONDITIONS for condition in codes(row[0])}
    assert listed == {str(condition): kind.__name__ for condition, kind in ERRORS.items()}


def test_condition_without_a_row_is_a_plain_error() -> None:
    assert type(error_from(Error(Symbol("contoso:unheard-of")))) is MessagingError


@pytest.mark.parametrize("row", STATUSES, ids=lambda row: row[0])
def test_status_leads_to_its_error(row: tuple[str, str]) -> None:
    numbers = {"other, below 500": ["400", "402", "418"], "other, from 500": ["500", "502", "504"]}
    for number in numbers.get(row[0]) or re.findall(r"\d+", row[0]):
        assert type(refused(int(number))).__name__ == codes(row[1])[0]


def test_every_distinguished_status_has_a_row() -> None:
    listed = {int(number) for row in STATUSES for number in re.findall(r"\d+", row[0]) if "other" not in row[0]}
    usual = {"InvalidRequestError": range(400, 500), "InternalServerError": range(500, 600)}
    apart = {
        status for kind, statuses in usual.items() for status in statuses if type(refused(status)).__name__ != kind
    }
    assert listed == apart


def test_sub_codes_select_the_errors_of_the_page() -> None:
    assert type(refused(403, "SubCode=40301. ")).__name__ == "InvalidRequestError"
    for error in (refused(409, "SubCode=40901. "), refused(409, creates=False)):
        assert type(error).__name__ == "PreconditionFailedError"
        assert error.is_transient


def refused(status: int, detail: str = "", *, creates: bool = True) -> MessagingError:
    body = f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>".encode()
    return refusal_of(HttpResponse(status=status, body=body), entity="orders", creates=creates)


def test_timeout_of_the_client_is_a_python_timeout_error() -> None:
    with pytest.raises(asyncio.TimeoutError):
        raise MessagingTimeoutError("too late")
