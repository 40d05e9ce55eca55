"""A8: tokens and keys grant exactly their rights, as long as they are valid."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus

import pytest
from azure.servicebus._pyamqp.utils import generate_sas_token
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.broker import Address, AuthorizationRule, Right
from pairbus.dialect.sas import SasToken, make_sas_token, parse_sas_token
from pairbus.server.access import NEVER_MS, Authorizer, Grant, covers, entity_of, path_of
from pairbus.server.errors import UnauthorizedError
from pairbus.server.host import NamespaceHost
from tests.broker.broker import MINUTE, START, Broker

ALL: Final = frozenset(Right)
SEND: Final = frozenset({Right.SEND})
LISTEN: Final = frozenset({Right.LISTEN})
HOUR: Final = 60 * MINUTE
START_S: Final = START // 1_000
END_S: Final = START_S + 3_600
URI: Final = "sb://contoso.servicebus.windows.net"


def rule(name: str, *rights: Right, primary: str = "", secondary: str = "") -> AuthorizationRule:
    """Return a key whose values derive from its name, unless they are given."""
    return AuthorizationRule(
        name=name,
        rights=rights or (Right.LISTEN,),
        primary_key=primary or f"{name}-primary",
        secondary_key=secondary or f"{name}-secondary",
    )


class Stage:
    """A served namespace with an authorizer, some entities, and their keys."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.loop = asyncio.new_event_loop()
        self.host = NamespaceHost(
            "contoso", self.broker.limits, self.broker.keeper, lambda: self.broker.now_ms, self.loop
        )
        self.authorizer = Authorizer(self.host)
        self.set_keys(rule("Root", Right.MANAGE), rule("sender", Right.SEND))
        self.broker.queue("orders", authorization_rules=(rule("till", Right.SEND), rule("boss", Right.MANAGE)))
        self.broker.queue("orders2", authorization_rules=(rule("second", Right.SEND),))
        self.broker.queue("orders/old", authorization_rules=(rule("archive"),))
        self.broker.topic("news", authorization_rules=(rule("reader"), rule("editor", Right.MANAGE)))
        self.broker.subscription("all", topic="news")
        self.broker.topic("weather")
        self.broker.subscription("all", topic="weather")

    def set_keys(self, *rules: AuthorizationRule) -> None:
        self.host.use_namespace().set_authorization_rules(rules, self.broker.now_ms)

    def admit(self, token: str, audience: str) -> Grant:
        return self.authorizer.admit(token, path_of(audience))

    def refusal(self, token: str, audience: str) -> str:
        with pytest.raises(UnauthorizedError) as caught:
            self.authorizer.admit(token, path_of(audience))
        return str(caught.value)

    def opens(self, token: str, path: str, right: Right) -> bool:
        """Return whether a client that puts the token for an address has a right there."""
        try:
            grant = self.admit(token, f"{URI}/{path}")
        except UnauthorizedError:
            return False
        return grant.allows(path_of(path), right, self.broker.now_ms)

    def close(self) -> None:
        self.host.close()
        self.loop.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def shared_stage() -> Iterator[Stage]:
    """Return a shared instance for hypothesis, which creates no new one for each example."""
    stage = Stage()
    yield stage
    stage.close()


def token(path: str = "", key_name: str = "Root", key: str = "", end_s: int = END_S) -> str:
    return make_sas_token(f"{URI}/{path}", key_name, key or f"{key_name}-primary", end_s)


def signed(resource: str, signed_text: str, key_name: str = "Root", end_s: int = END_S) -> str:
    """Return a token that spells its address in one way, and may have signed another spelling."""
    digest = hmac.new(f"{key_name}-primary".encode(), f"{signed_text}\n{end_s}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest).decode(), safe="")
    return f"SharedAccessSignature sig={signature}&se={end_s}&skn={key_name}&sr={resource}"


# Signatures


def test_a8_token_of_a_key_grants_what_the_key_allows(stage: Stage) -> None:
    assert stage.admit(token("orders"), f"{URI}/orders") == Grant("orders", ALL, END_S * 1_000)
    assert stage.admit(token("orders", "sender"), f"{URI}/orders") == Grant("orders", SEND, END_S * 1_000)
    assert stage.admit(token(), URI) == Grant("", ALL, END_S * 1_000)


def test_a8_manage_includes_send_and_listen(stage: Stage) -> None:
    for right in Right:
        assert stage.opens(token("orders", "boss"), "orders", right)
    assert [right for right in Right if stage.opens(token("orders", "till"), "orders", right)] == [Right.SEND]


@pytest.mark.parametrize("value", ["Root-primary", "Root-secondary"])
def test_a8_both_values_of_a_key_are_accepted(stage: Stage, value: str) -> None:
    assert stage.admit(token("orders", key=value), f"{URI}/orders").rights == ALL
    assert stage.authorizer.admit_key("Root", value) == Grant("", ALL)


@pytest.mark.parametrize(
    ("key_name", "key"),
    [
        ("Root", "Root-tertiary"),
        ("Root", "root-primary"),
        ("Root", "sender-primary"),
        ("Root", "till-primary"),
        ("sender", "Root-primary"),
        ("nobody", "Root-primary"),
        ("nobody", "nobody-primary"),
    ],
)
def test_a8_token_of_another_key_is_refused(stage: Stage, key_name: str, key: str) -> None:
    assert "signature" in stage.refusal(token("orders", key_name, key), f"{URI}/orders")
    assert "signature" in stage.refusal(token("", key_name, key), URI)


def test_a8_key_names_are_case_insensitive(stage: Stage) -> None:
    assert stage.admit(token("orders", "ROOT", "Root-primary"), f"{URI}/orders").rights == ALL
    assert stage.admit(token("orders", "Till", "till-primary"), f"{URI}/orders").rights == SEND
    assert stage.authorizer.admit_key("rOOT", "Root-primary").rights == ALL


def test_a8_replaced_key_is_refused(stage: Stage) -> None:
    old = token("orders")
    stage.admit(old, f"{URI}/orders")
    stage.set_keys(rule("Root", Right.MANAGE, primary="new", secondary="Root-primary"))
    stage.admit(old, f"{URI}/orders")  # the old value is the secondary one now
    stage.set_keys(rule("Root", Right.MANAGE, primary="newer", secondary="new"))
    assert "signature" in stage.refusal(old, f"{URI}/orders")
    stage.admit(token("orders", key="new"), f"{URI}/orders")


def test_a8_token_has_the_current_rights_of_its_key(stage: Stage) -> None:
    stage.set_keys(rule("Root", Right.LISTEN))
    assert stage.admit(token(), URI).rights == LISTEN


@pytest.mark.parametrize(("path", "key_name"), [("orders", "Root"), ("orders", "till"), ("", "Root")])
def test_a8_token_with_a_changed_byte_is_refused_or_equivalent(stage: Stage, path: str, key_name: str) -> None:
    text = token(path, key_name)
    meaning = meaning_of(parse_sas_token(text))
    for position in range(len(text)):
        for character in {chr(ord(text[position]) ^ 1), chr(ord(text[position]) ^ 0x20), "A", "0", "%", "&", "é"}:
            if character == text[position]:
                continue
            changed = text[:position] + character + text[position + 1 :]
            try:
                stage.admit(changed, f"{URI}/{path}")
            except UnauthorizedError as error:
                assert "primary" not in str(error)  # noqa: PT017 - no key is shown
            else:
                assert meaning_of(parse_sas_token(changed)) == meaning, changed


def meaning_of(token: SasToken) -> tuple[str, str, int, str]:
    return token.path, token.key_name.lower(), token.expires_s, token.signature


@settings(deadline=None)
@given(st.text())
def test_e3_any_text_is_refused(shared_stage: Stage, text: str) -> None:
    for candidate in (
        text,
        "Bearer " + text,
        "SharedAccessSignature " + text,
        f"SharedAccessSignature sr={text}&sig={text}&se={END_S}&skn=Root",
        f"SharedAccessSignature sr={quote(text)}&sig={quote(text)}&se={END_S}&skn={quote(text)}",
    ):
        shared_stage.refusal(candidate, URI)
        shared_stage.refusal(candidate, text)


@settings(deadline=None)
@given(st.text(), st.text())
def test_e3_any_pair_of_texts_is_refused_as_a_key(shared_stage: Stage, name: str, value: str) -> None:
    for key_name, key in ((name, value), ("Root", value), (name, "Root-primary")):
        with pytest.raises(UnauthorizedError):
            shared_stage.authorizer.admit_key(key_name, key)


# Time


@pytest.mark.parametrize(("ms", "holds"), [(0, True), (HOUR - 1, True), (HOUR, False), (HOUR + 1, False)])
def test_a8_token_expires_by_the_clock_of_the_namespace(stage: Stage, ms: int, holds: bool) -> None:
    grant = stage.admit(token("orders"), f"{URI}/orders")
    stage.broker.wait(ms)
    assert stage.opens(token("orders"), "orders", Right.SEND) is holds
    assert grant.allows("orders", Right.SEND, stage.broker.now_ms) is holds
    if not holds:
        assert "expired" in stage.refusal(token("orders"), f"{URI}/orders")


def test_a8_token_can_be_renewed_before_and_after_it_expires(stage: Stage) -> None:
    first = token("orders")
    stage.broker.wait(HOUR // 2)
    renewed = stage.admit(token("orders", end_s=END_S + 3_600), f"{URI}/orders")
    stage.broker.wait(HOUR)
    assert "expired" in stage.refusal(first, f"{URI}/orders")
    assert renewed.allows("orders", Right.SEND, stage.broker.now_ms)
    stage.broker.wait(HOUR)
    assert not renewed.allows("orders", Right.SEND, stage.broker.now_ms)
    again = token("orders", end_s=stage.broker.now_ms // 1_000 + 60)
    assert stage.opens(again, "orders", Right.SEND)


def test_a8_unsigned_extension_of_the_expiry_is_refused(stage: Stage) -> None:
    text = token("orders").replace(f"se={END_S}", f"se={END_S + 1}")
    assert "signature" in stage.refusal(text, f"{URI}/orders")


def test_a8_key_sent_directly_does_not_expire(stage: Stage) -> None:
    grant = stage.authorizer.admit_key("Root", "Root-primary")
    assert grant.expires_ms == NEVER_MS
    assert grant.allows("orders", Right.MANAGE, NEVER_MS - 1)


# Scope


@pytest.mark.parametrize(
    ("path", "wanted", "opened"),
    [
        ("orders", "orders", True),
        ("orders", "orders/$DeadLetterQueue", True),
        ("orders", "orders/$Transfer/$DeadLetterQueue", True),
        ("orders", "orders/$management", True),
        ("orders", "ORDERS", True),
        ("Orders/", "orders", True),
        ("orders", "orders2", False),
        ("orders2", "orders", False),
        ("orders", "order", False),
        ("orders", "", False),
        ("orders", "other/orders", False),
        ("orders", "news", False),
        ("orders/$DeadLetterQueue", "orders", False),
        ("orders/$DeadLetterQueue", "orders/$deadletterqueue", True),
        ("news", "news/Subscriptions/all", True),
        ("news/subscriptions/all", "news/Subscriptions/ALL", True),
        ("news/subscriptions/all", "news/Subscriptions/all/$DeadLetterQueue", True),
        ("news/subscriptions/all", "news/Subscriptions/all2", False),
        ("news/subscriptions/all", "news", False),
        ("news/subscriptions", "news/subscriptions/all", True),
        ("", "orders", True),
        ("", "news/Subscriptions/all", True),
        ("", "", True),
    ],
)
def test_a8_token_covers_its_address_and_everything_below(stage: Stage, path: str, wanted: str, opened: bool) -> None:
    assert stage.opens(token(path), wanted, Right.LISTEN) is opened
    if not opened:
        assert "another address" in stage.refusal(token(path), f"{URI}/{wanted}")


def test_a8_grant_covers_only_the_requested_address(stage: Stage) -> None:
    grant = stage.admit(token(), f"{URI}/Orders")
    assert grant.path == "orders"
    assert grant.allows("orders/$management", Right.SEND, START)
    for path in ("orders2", "order", "", "news"):
        assert not grant.allows(path, Right.SEND, START)


@pytest.mark.parametrize(
    "audience",
    [
        "orders",
        "/orders/",
        "ORDERS",
        "sb://contoso.servicebus.windows.net/orders",
        "sb://contoso.servicebus.windows.net:5671/Orders/",
        "amqps://localhost:5672/orders",
        "https://localhost:5672/orders?api-version=2021-05&enrich=false",
        "orders?timeout=60",
    ],
)
def test_a8_address_is_accepted_in_many_forms(stage: Stage, audience: str) -> None:
    assert path_of(audience) == "orders"
    assert stage.admit(token("orders"), audience).path == "orders"
    assert "another address" in stage.refusal(token("orders2"), audience)


@pytest.mark.parametrize("audience", ["", "/", "sb://host", "sb://host/", "sb://host:5671//", "https://host/?x=y"])
def test_a8_namespace_is_the_empty_path(audience: str) -> None:
    assert path_of(audience) == ""


# Keys of entities


@pytest.mark.parametrize(
    ("key_name", "path", "opened"),
    [
        ("till", "orders", True),
        ("till", "ORDERS", True),
        ("till", "orders/$DeadLetterQueue", True),
        ("till", "orders/$management", True),
        ("till", "orders2", False),
        ("till", "orders/old", False),
        ("till", "news", False),
        ("till", "not there", False),
        ("till", "", False),
        ("second", "orders", False),
        ("archive", "orders/old", True),
        ("archive", "orders", False),
        ("reader", "news", True),
        ("reader", "news/Subscriptions/all", True),
        ("reader", "News/subscriptions/ALL/$DeadLetterQueue", True),
        ("reader", "news/Subscriptions/all/$management", True),
        ("reader", "news/Subscriptions/all/Rules/$Default", True),
        ("reader", "news/Subscriptions", True),
        ("reader", "weather/Subscriptions/all", False),
        ("reader", "weather/news/Subscriptions/all", False),
        ("reader", "weather", False),
        ("sender", "orders", True),
        ("sender", "orders/old", True),
        ("sender", "weather", True),
        ("sender", "not there", True),
    ],
)
@pytest.mark.parametrize("scope", ["itself", "namespace"])
def test_a8_key_of_an_entity_covers_that_entity_and_a_key_of_the_namespace_all(
    stage: Stage, key_name: str, path: str, opened: bool, scope: str
) -> None:
    text = token(path if scope == "itself" else "", key_name)
    assert any(stage.opens(text, path, right) for right in Right) is opened


def test_a8_key_of_a_queue_does_not_cover_another_queue_below_it(stage: Stage) -> None:
    grant = stage.admit(token("orders", "boss"), f"{URI}/orders")
    assert grant.allows("orders", Right.MANAGE, START)
    assert grant.allows("orders/$deadletterqueue", Right.LISTEN, START)
    assert not grant.allows("orders/old", Right.LISTEN, START)
    assert stage.admit(token("orders"), f"{URI}/orders").allows("orders/old", Right.LISTEN, START)


def test_a8_entity_and_namespace_may_have_keys_of_the_same_name(stage: Stage) -> None:
    stage.set_keys(rule("till", Right.MANAGE, primary="big", secondary="big"))
    assert stage.admit(token("orders", "till", "till-primary"), f"{URI}/orders").rights == SEND
    assert stage.admit(token("orders", "till", "big"), f"{URI}/orders").rights == ALL
    assert stage.admit(token("news", "till", "big"), f"{URI}/news").rights == ALL
    assert "signature" in stage.refusal(token("news", "till", "till-primary"), f"{URI}/news")


def test_a8_keys_of_a_deleted_entity_are_refused(stage: Stage) -> None:
    text = token("orders2", "second")
    assert stage.opens(text, "orders2", Right.SEND)
    stage.broker.delete(Address.of("orders2"))
    assert "signature" in stage.refusal(text, f"{URI}/orders2")


def test_a8_key_of_a_topic_covers_subscriptions_to_be_created(stage: Stage) -> None:
    text = token("news/Subscriptions/new", "editor")
    assert stage.opens(text, "news/Subscriptions/new", Right.MANAGE)


# Spellings of the address


def quote_lower(text: str) -> str:
    return quote_plus(text).lower()


def encode_uri_component(text: str) -> str:
    return quote(text, safe="!'()*~-._")


@pytest.mark.parametrize("encode", [quote_plus, quote_lower, encode_uri_component, str], ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    "uri",
    [
        f"{URI}/orders",
        f"{URI}/Orders/",
        f"{URI}:5671/ORDERS",
        "https://localhost:5672/orders",
        "amqps://localhost/orders",
    ],
)
def test_a8_address_encodings_of_all_clients_are_accepted(stage: Stage, uri: str, encode: Any) -> None:
    for text in (signed(encode(uri), encode(uri)), signed(quote_plus(uri), encode(uri))):
        assert stage.admit(text, f"{URI}/orders").rights == ALL
        assert "another address" in stage.refusal(text, f"{URI}/orders2")


@pytest.mark.parametrize("key_name", ["Root", "a name with+signs & more"])
def test_a8_tokens_of_the_azure_sdk_for_python_are_accepted(stage: Stage, key_name: str) -> None:
    stage.set_keys(rule(key_name, Right.MANAGE, primary="value="))
    text = str(generate_sas_token(f"{URI}/orders", key_name, "value=", END_S))  # type: ignore[no-untyped-call]
    assert stage.admit(text, f"{URI}/orders").rights == ALL
    assert "another address" in stage.refusal(text, f"{URI}/orders2")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("https://localhost:5672/Orders?api-version=2021-05&enrich=false", "Orders"),
        ("https://localhost:5672/News/Subscriptions/All?api-version=2021-05", "News/Subscriptions/All"),
        ("https://localhost:5672/$Resources/queues?api-version=2021-05&$skip=0&$top=100", "$Resources/queues"),
        ("https://localhost:5672/$namespaceinfo?api-version=2021-05", "$namespaceinfo"),
    ],
)
def test_a8_tokens_of_the_javascript_admin_client_are_accepted(stage: Stage, url: str, path: str) -> None:
    resource = encode_uri_component(url.lower()).lower()
    text = signed(resource, resource, end_s=START_S + 300)
    assert stage.opens(text, path, Right.MANAGE)
    assert "another address" in stage.refusal(text, f"{URI}/orders2")


def test_a8_parts_of_a_token_are_accepted_in_any_order(stage: Stage) -> None:
    parts = token("orders").removeprefix("SharedAccessSignature ").split("&")
    for turn in range(len(parts)):
        text = "SharedAccessSignature " + "&".join(parts[turn:] + parts[:turn])
        assert stage.admit(text, f"{URI}/orders").rights == ALL


# Keys sent directly


@pytest.mark.parametrize(
    ("key_name", "key"),
    [
        ("Root", ""),
        ("Root", "Root-tertiary"),
        ("Root", "ROOT-PRIMARY"),
        ("Root", "Root-primary "),
        ("Root", "sender-primary"),
        ("", "Root-primary"),
        ("Root:", "Root-primary"),
        ("nobody", "Root-primary"),
        ("till", "till-primary"),
        ("reader", "reader-primary"),
        ("Root", "ключ"),
    ],
)
def test_a8_another_key_is_refused(stage: Stage, key_name: str, key: str) -> None:
    with pytest.raises(UnauthorizedError) as caught:
        stage.authorizer.admit_key(key_name, key)
    assert "primary" not in str(caught.value)


def test_a8_key_grants_its_rights_to_the_whole_namespace(stage: Stage) -> None:
    assert stage.authorizer.admit_key("sender", "sender-primary") == Grant("", SEND)


# Bearer tokens


def test_a8_other_tokens_need_an_issuer(stage: Stage) -> None:
    for text in ("a.b.c", "", "Bearer", "Bearer a.b.c", "sharedaccesssignature sr=a"):
        assert "no issuer" in stage.refusal(text, URI)


def test_a8_other_tokens_are_passed_to_the_jwt_verifier(stage: Stage) -> None:
    seen: list[tuple[str, int]] = []

    def verify(text: str, now_ms: int) -> Grant:
        seen.append((text, now_ms))
        return Grant("", SEND, now_ms + MINUTE)

    authorizer = Authorizer(stage.host, verify)
    stage.broker.wait(MINUTE)
    grant = authorizer.admit("Bearer a.b.c", path_of(f"{URI}/Orders"))
    assert seen == [("a.b.c", START + MINUTE)]
    assert grant == Grant("orders", SEND, START + 2 * MINUTE)
    assert authorizer.admit("a.b.c", path_of(URI)).path == ""
    assert authorizer.admit(f"Bearer {token()}", URI).rights == ALL
    assert len(seen) == 2


# Grants


@settings(deadline=None)
@given(st.text("ab/$", max_size=6), st.text("ab/$", max_size=6))
def test_a8_path_covers_what_has_all_its_segments(path: str, wanted: str) -> None:
    path, wanted = path.strip("/"), wanted.strip("/")
    mine = path.split("/") if path else []
    theirs = wanted.split("/") if wanted else []
    assert covers(path, wanted) is (theirs[: len(mine)] == mine)


@pytest.mark.parametrize(
    ("path", "entity"),
    [
        ("orders", "orders"),
        ("orders/old", "orders/old"),
        ("orders/old/$deadletterqueue", "orders/old"),
        ("news/subscriptions/all", "news"),
        ("news/subscriptions/all/$transfer/$deadletterqueue", "news"),
        ("orders/$management", "orders"),
        ("orders/$other/old", "orders"),
        ("news/subscriptions", "news"),
        ("news/subscriptions/all/rules/$default", "news"),
        ("", None),
        ("$management", None),
        ("$deadletterqueue", None),
    ],
)
def test_a8_path_leads_to_an_entity(path: str, entity: str | None) -> None:
    assert entity_of(path) == entity
