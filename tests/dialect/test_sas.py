"""A8: tokens that the official SDKs make are read and checked; changed ones do not hold."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote

import pytest
from azure.servicebus._pyamqp.utils import generate_sas_token
from hypothesis import given
from hypothesis import strategies as st

from pairbus.dialect.sas import SasToken, SasTokenError, make_sas_token, parse_sas_token

KEY = "not-a-real-key="
URI = "sb://contoso.servicebus.windows.net/orders"
EXPIRES = 1_800_000_000


def test_a8_token_verifies_only_with_its_key() -> None:
    token = parse_sas_token(make_sas_token(URI, "root", KEY, EXPIRES))
    assert (token.key_name, token.expires_s, token.path) == ("root", EXPIRES, "orders")
    assert token.is_signed_with(["other", KEY])
    assert not token.is_signed_with(["other"])
    assert not token.is_signed_with([])


def test_a8_token_of_azure_sdk_for_python_is_valid() -> None:
    token = parse_sas_token(str(generate_sas_token(URI, "root key/+", KEY, EXPIRES)))  # type: ignore[no-untyped-call]
    assert token.key_name == "root key/+"
    assert token.is_signed_with([KEY])


def test_a8_token_of_javascript_admin_client_is_valid() -> None:
    resource = quote("https://localhost:5672/$resources/queues/?api-version=2021-05&$skip=0".lower(), safe="").lower()
    digest = hmac.new(KEY.encode(), f"{resource}\n{EXPIRES}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest).decode(), safe="")
    token = parse_sas_token(f"SharedAccessSignature sig={signature}&se={EXPIRES}&skn=root&sr={resource}")
    assert token.is_signed_with([KEY])
    assert token.path == "$resources/queues"


def test_a8_token_signed_before_encoding_is_valid() -> None:
    digest = hmac.new(KEY.encode(), f"{URI}\n{EXPIRES}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest).decode(), safe="")
    encoded = quote(URI, safe="")
    token = parse_sas_token(f"SharedAccessSignature sr={encoded}&sig={signature}&se={EXPIRES}&skn=root")
    assert token.is_signed_with([KEY])


@given(position=st.integers(0, 300), character=st.characters(codec="ascii"))
def test_a8_changed_token_is_invalid(position: int, character: str) -> None:
    text = make_sas_token(URI, "root", KEY, EXPIRES)
    position %= len(text)
    changed = text[:position] + character + text[position + 1 :]
    try:
        token = parse_sas_token(changed)
    except SasTokenError:
        return
    original = parse_sas_token(text)
    same = (token.path, token.expires_s, token.signature) == (original.path, original.expires_s, original.signature)
    assert same or not token.is_signed_with([KEY])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "jwt",
        "SharedAccessSignature ",
        "SharedAccessSignature sr=a&sig=b&se=1",
        "SharedAccessSignature sr=a&sig=b&skn=c&se=soon",
        "SharedAccessSignature sr=a&sig=b&skn=c&se=²",
        "SharedAccessSignature sr=a&sig=b&skn=c&se=" + "9" * 5_000,
    ],
)
def test_e3_malformed_token_is_rejected(text: str) -> None:
    with pytest.raises(SasTokenError):
        parse_sas_token(text)


@given(st.text())
def test_e3_any_text_is_parsed_or_rejected(text: str) -> None:
    for candidate in (
        text,
        "SharedAccessSignature " + text,
        f"SharedAccessSignature sr={text}&sig={text}&se=1&skn={text}",
    ):
        try:
            token = parse_sas_token(candidate)
        except SasTokenError:
            continue
        assert not token.is_signed_with([KEY])
        token.covers("orders")


@pytest.mark.parametrize(
    ("resource", "path", "covered"),
    [
        ("sb://contoso", "orders", True),
        ("sb://contoso/", "orders", True),
        ("sb://contoso/orders", "orders", True),
        ("sb://contoso/Orders", "orders/$DeadLetterQueue", True),
        ("https://contoso/topic/", "topic/Subscriptions/s", True),
        ("sb://contoso/orders", "orders2", False),
        ("sb://contoso/orders/sub", "orders", False),
    ],
)
def test_a8_token_covers_its_path_and_below(resource: str, path: str, covered: bool) -> None:
    token = SasToken(resource=quote(resource, safe=""), key_name="k", expires_s=0, signature="")
    assert token.covers(path) is covered


def test_token_repr_hides_signature() -> None:
    text = make_sas_token(URI, "root", KEY, EXPIRES)
    assert parse_sas_token(text).signature not in repr(parse_sas_token(text))
