"""Entries, feeds and errors."""

from __future__ import annotations

import pytest

from pairbus.dialect.atom import (
    QUEUE,
    TOPIC,
    AtomEntry,
    AtomError,
    AtomFeed,
    ErrorBody,
    parse_entry,
    parse_error,
    parse_feed,
    write_entry,
    write_error,
    write_feed,
)

ENTRY = AtomEntry(
    table=QUEUE,
    values={"lock_duration_ms": 60_000},
    title="a/b & c",
    id="https://bus.example/a/b & c?api-version=2021-05",
    link="https://bus.example/a/b%20%26%20c?api-version=2021-05",
    author="bus",
    published_ms=0,
    updated_ms=1_000,
)


def test_entry_is_written_as_expected() -> None:
    assert write_entry(ENTRY).decode() == (
        '<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom">'
        "<id>https://bus.example/a/b &amp; c?api-version=2021-05</id>"
        '<title type="text">a/b &amp; c</title>'
        "<published>1970-01-01T00:00:00Z</published><updated>1970-01-01T00:00:01Z</updated>"
        "<author><name>bus</name></author>"
        '<link rel="self" href="https://bus.example/a/b%20%26%20c?api-version=2021-05" />'
        '<content type="application/xml">'
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
        ' xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><LockDuration>PT1M</LockDuration></QueueDescription>'
        "</content></entry>"
    )


def test_entry_round_trips() -> None:
    found = parse_entry(write_entry(ENTRY), TOPIC, QUEUE)
    assert (found.title, found.id, found.link, found.values) == (ENTRY.title, ENTRY.id, ENTRY.link, ENTRY.values)


@pytest.mark.parametrize("next_link", [None, "https://bus.example/$Resources/Queues?$skip=100&$top=100"])
def test_feed_round_trips(next_link: str | None) -> None:
    feed = AtomFeed(title="Queues", id="i", link="s", next_link=next_link, entries=[ENTRY, ENTRY])
    document = write_feed(feed)
    found = parse_feed(document, QUEUE)
    assert (found.title, found.id, found.link, found.next_link) == ("Queues", "i", "s", next_link)
    assert [entry.title for entry in found.entries] == [ENTRY.title] * 2
    # Python counts the links before the entries: two, and there is another page.
    assert document.partition(b"<entry>")[0].count(b"<link ") == (1 if next_link is None else 2)


def test_error_round_trips() -> None:
    error = ErrorBody(409, "SubCode=40900. Conflict. <there>")
    assert write_error(error).endswith(
        b"<Error><Code>409</Code><Detail>SubCode=40900. Conflict. &lt;there&gt;</Detail></Error>"
    )
    assert parse_error(write_error(error)) == error


@pytest.mark.parametrize("document", [b"<Error/>", b"<Error><Code>x</Code></Error>", b"<e><Code>400</Code></e>"])
def test_document_that_is_not_an_error_is_rejected(document: bytes) -> None:
    with pytest.raises(AtomError):
        parse_error(document)
