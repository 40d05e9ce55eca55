"""Resubmit and purge: no message is lost or duplicated, and only admins may do it."""

from __future__ import annotations

import pytest

from pairbus.broker import Address, EntityStatus, QueueDescription, QueuePart, Record
from pairbus.console.actions import resubmit_all
from pairbus.server.host import NamespaceHost
from pairbus.wire import Sections
from tests.console.site import Site, message

DEAD = QueuePart.DEAD_LETTER


def test_resubmit_moves_a_dead_letter_to_its_queue(site: Site) -> None:
    site.dead_letter("orders", b"espresso", message_id="one", drink="hot")
    reply = site.manager().act("/console/resubmit", entity="orders", part="dead", sequence=1)
    assert (reply.status, reply.location) == (303, "/console/entity?entity=orders&part=dead")
    assert site.ids("orders", part=DEAD) == []
    assert site.ids("orders") == ["one"]
    sections = Sections(
        site.call(lambda host: host.use_namespace().peek(Address.of("orders"), 0, 1, host.now_ms()))[0].body
    )
    assert sections.data() == b"espresso"
    assert sections.application_properties() == {"drink": "hot"}  # without the dead-letter reason


def test_result_of_an_action_is_shown_once(site: Site) -> None:
    site.dead_letter("orders", b"espresso")
    person = site.manager()
    person.act("/console/resubmit", entity="orders", part="dead", sequence=1)
    automatic = person.request("GET", "/console", headers={"X-Console": "fragments"})
    assert "was resubmitted" not in automatic.text
    assert "Message 1 was resubmitted to orders." in person.get().text
    assert "was resubmitted" not in person.get().text


def test_resubmit_of_one_dead_letter_leaves_others_unchanged(site: Site) -> None:
    bodies = [str(number).encode() for number in range(35)]
    site.dead_letter("orders", *bodies)
    before = site.call(records)
    assert site.manager().act("/console/resubmit", entity="orders", part="dead", sequence=30).status == 303
    assert site.call(records) == [record for record in before if record.sequence != 30]  # the others are unchanged
    assert len(site.sequences("orders")) == 1


def records(host: NamespaceHost) -> list[Record]:
    found = host.use_namespace().peek(Address.of("orders", None, DEAD), 0, 1_000, host.now_ms())
    ready = host.use_namespace().receive(Address.of("orders", None, DEAD), 0, host.now_ms())
    assert ready == []
    return [delivery.record for delivery in found]


def test_resubmit_all_moves_every_dead_letter(site: Site) -> None:
    site.dead_letter("orders", *(str(number).encode() for number in range(45)), color="red")
    person = site.manager()
    assert person.act("/console/resubmit", entity="orders", part="dead").status == 303
    assert "45 messages were resubmitted to orders." in person.get().text
    assert (len(site.sequences("orders")), site.sequences("orders", part=DEAD)) == (45, [])


def test_resubmit_all_exceeds_the_size_of_a_batch(site: Site) -> None:
    for _ in range(5):
        site.dead_letter("orders", b"x" * 200_000)
    assert site.manager().act("/console/resubmit", entity="orders", part="dead").status == 303
    assert (len(site.sequences("orders")), site.sequences("orders", part=DEAD)) == (5, [])


def test_resubmit_all_ends_if_messages_are_dead_lettered_again(site: Site) -> None:
    """Resubmitted messages that expire at once become dead letters again."""
    site.dead_letter("orders", b"one", b"two")

    def forward(host: NamespaceHost) -> None:
        description = QueueDescription(default_time_to_live_ms=1_000, dead_letter_on_expiration=True)
        host.use_namespace().update(Address.of("orders"), description, host.now_ms())

    site.call(forward)
    site.manager().act("/console/resubmit", entity="orders", part="dead")
    assert len(site.sequences("orders")) + len(site.sequences("orders", part=DEAD)) == 2


def test_dead_letter_of_a_subscription_is_resubmitted_to_its_topic(site: Site) -> None:
    site.dead_letter("news", b"closed on Monday", subscription="all")
    person = site.manager()
    page = person.get("/console/entity", entity="news", subscription="all", part="dead")
    assert "every subscription whose rules match it" in page.text
    person.act("/console/resubmit", entity="news", subscription="all", part="dead")
    assert len(site.sequences("news", "all")) == 1
    assert site.sequences("news", "all", DEAD) == []


def test_resubmitted_message_is_not_dropped_as_a_duplicate(site: Site) -> None:
    description = QueueDescription(requires_duplicate_detection=True)
    site.call(lambda host: host.use_namespace().create_queue("once", description, host.now_ms()))
    site.dead_letter("once", b"espresso", message_id="one")
    assert site.manager().act("/console/resubmit", entity="once", part="dead", sequence=1).status == 303
    (identity,) = site.ids("once")
    assert identity != "one"


def test_dead_letter_that_cannot_be_sent_is_kept(site: Site) -> None:
    site.dead_letter("orders", b"one", b"two")
    disabled = QueueDescription(status=EntityStatus.SEND_DISABLED)
    site.call(lambda host: host.use_namespace().update(Address.of("orders"), disabled, host.now_ms()))
    person = site.manager()
    for form in ({"sequence": 2}, {}):
        reply = person.act("/console/resubmit", entity="orders", part="dead", **form)
        assert (reply.status, "send-disabled" in reply.alert) == (403, True)
    assert len(site.sequences("orders", part=DEAD)) == 2
    info = site.call(lambda host: host.use_namespace().receive(Address.of("orders", None, DEAD), 10, host.now_ms()))
    assert len(info) == 2  # they are not locked


def test_locked_dead_letter_is_not_resubmitted(site: Site) -> None:
    site.dead_letter("orders", b"one", b"two")
    site.call(lambda host: host.use_namespace().receive(Address.of("orders", None, DEAD), 1, host.now_ms()))
    reply = site.manager().act("/console/resubmit", entity="orders", part="dead", sequence=1)
    assert (reply.status, "locked by a receiver" in reply.alert) == (404, True)
    assert site.sequences("orders") == []
    assert site.server.host is not None
    person = site.manager()
    person.act("/console/resubmit", entity="orders", part="dead")
    assert "1 message was resubmitted" in person.get().text


@pytest.mark.parametrize("sequence", ["7", "x", "-1", "9" * 30, "½"])
def test_resubmit_of_a_missing_message_is_an_error(site: Site, sequence: str) -> None:
    site.dead_letter("orders", b"one")
    reply = site.manager().act("/console/resubmit", entity="orders", part="dead", sequence=sequence)
    assert reply.status in {400, 404}
    assert len(site.sequences("orders", part=DEAD)) == 1


def test_resubmit_of_an_active_message_is_rejected(site: Site) -> None:
    site.send("orders", b"espresso")
    assert site.manager().act("/console/resubmit", entity="orders", sequence=1).status == 400
    assert len(site.sequences("orders")) == 1


def test_purge_requires_the_name_of_the_entity(site: Site) -> None:
    site.send("orders", b"espresso")
    person = site.manager()
    for typed in ("", "order", "Orders", "payments"):
        reply = person.act("/console/purge", entity="orders", confirmation=typed)
        assert (reply.status, "nothing was removed" in reply.alert.lower()) == (400, True)
    assert len(site.sequences("orders")) == 1


def test_purge_deletes_all_unlocked_messages(site: Site) -> None:
    site.send("orders", *(str(number).encode() for number in range(2_500)))
    site.send("payments", b"one cent")
    site.call(lambda host: host.use_namespace().receive(Address.of("orders"), 2, host.now_ms()))
    person = site.manager()
    assert person.act("/console/purge", entity="orders", confirmation="orders").status == 303
    assert "2,498 messages were removed from orders." in person.get().text
    assert len(site.sequences("orders")) == 2
    assert len(site.sequences("payments")) == 1


def test_purge_of_dead_letters_keeps_active_messages(site: Site) -> None:
    site.dead_letter("orders", b"one")
    site.send("orders", b"two")
    person = site.manager()
    person.act("/console/purge", entity="orders", part="dead", confirmation="orders")
    assert (len(site.sequences("orders")), site.sequences("orders", part=DEAD)) == (1, [])


@pytest.mark.parametrize("path", ["/console/purge", "/console/resubmit"])
def test_read_only_user_is_rejected(site: Site, path: str) -> None:
    site.dead_letter("orders", b"one")
    reply = site.listener().act(path, entity="orders", part="dead", confirmation="orders")
    assert (reply.status, "read-only" in reply.alert) == (403, True)
    assert len(site.sequences("orders", part=DEAD)) == 1


@pytest.mark.parametrize("path", ["/console/purge", "/console/resubmit"])
def test_action_without_login_redirects_to_the_login(site: Site, path: str) -> None:
    site.dead_letter("orders", b"one")
    reply = site.person().post(path, entity="orders", part="dead", confirmation="orders")
    assert (reply.status, reply.location) == (303, "/console/login?next=/console")
    assert len(site.sequences("orders", part=DEAD)) == 1


def test_b2_busy_server_rejects_actions(site: Site) -> None:
    site.dead_letter("orders", b"one")
    person = site.manager()
    site.call(lambda host: setattr(host, "deny", lambda _operation, _address: "too hot"))
    for path in ("/console/purge", "/console/resubmit"):
        assert person.act(path, entity="orders", part="dead", confirmation="orders").status == 503
    assert len(site.sequences("orders", part=DEAD)) == 1


def test_e1_resubmitted_message_survives_a_restart(site: Site) -> None:
    site.dead_letter("orders", b"espresso", message_id="one")
    site.manager().act("/console/resubmit", entity="orders", part="dead", sequence=1)
    site.stop()
    site._await(site.server.start())
    assert (site.ids("orders"), site.ids("orders", part=DEAD)) == (["one"], [])


def test_unreadable_dead_letter_is_kept(site: Site) -> None:
    broken = message(b"espresso")._replace(body=b"\x00\x53\x75\xa0\xff")
    site.call(lambda host: host.use_namespace().send(Address.of("orders"), [broken], host.now_ms()))

    def dead_letter(host: NamespaceHost) -> None:
        from pairbus.broker import SettlementKind, SettlementRequest

        (delivery,) = host.use_namespace().receive(Address.of("orders"), 1, host.now_ms())
        assert delivery.lock_token is not None
        settlement = SettlementRequest(disposition=SettlementKind.DEAD_LETTER)
        host.use_namespace().settle(Address.of("orders"), delivery.lock_token, host.now_ms(), settlement)

    site.call(dead_letter)
    person = site.manager()
    assert person.get("/console/entity", entity="orders", part="dead").status == 200
    assert person.get("/console/message", entity="orders", part="dead", sequence=1).status == 200
    assert person.act("/console/resubmit", entity="orders", part="dead", sequence=1).status == 400
    assert len(site.sequences("orders", part=DEAD)) == 1


def test_resubmit_all_of_an_empty_queue_does_nothing(site: Site) -> None:
    host = site.server.host
    assert site._await(resubmit_all(host, Address.of("orders", None, DEAD))) == 0
