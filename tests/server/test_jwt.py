"""A8: tokens of an issuer grant the rights of their roles; any invalid one is refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from pairbus.broker import Right
from pairbus.server import jwt as jwt_module
from pairbus.server.access import NEVER_MS, Grant
from pairbus.server.errors import UnauthorizedError
from pairbus.server.jwt import (
    ALGORITHMS,
    LEEWAY_MS,
    MAX_BYTES,
    MAX_CHARACTERS,
    JwtVerifier,
    SigningKeys,
    SigningKeysError,
    allow_any,
    parse_keys,
)
from tests.waiting import eventually_async

NOW_S: Final = 1_700_000_000
NOW_MS: Final = NOW_S * 1_000
ISSUER: Final = "https://login.example/tenant/"
AUDIENCE: Final = "https://servicebus.azure.net"
ALL: Final = frozenset(Right)
DEADLINE_S: Final = 60.0
"""Generous: the machine may be shared with many other tests."""
ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


@cache
def private_key(kind: str) -> PrivateKey:
    match kind:
        case "P-256":
            return ec.generate_private_key(ec.SECP256R1())
        case "P-384":
            return ec.generate_private_key(ec.SECP384R1())
        case "P-521":
            return ec.generate_private_key(ec.SECP521R1())
        case "secp256k1":
            return ec.generate_private_key(ec.SECP256K1())
        case "Ed25519":
            return ed25519.Ed25519PrivateKey.generate()
        case "Ed448":
            return ed448.Ed448PrivateKey.generate()
    return rsa.generate_private_key(65537, 1024 if kind == "weak RSA" else 2048)


KINDS: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    "ES256": "P-256",
    "ES384": "P-384",
    "ES512": "P-521",
    "EdDSA": "Ed25519",
}


def jwk(kind: str, key_id: str | None = None, **members: Any) -> dict[str, Any]:
    """Return a key's entry in the issuer's document."""
    return {**describe(private_key(kind).public_key()), **({} if key_id is None else {"kid": key_id}), **members}


def describe(key: Any) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        return RSAAlgorithm.to_jwk(key, as_dict=True)
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        return ECAlgorithm.to_jwk(key, as_dict=True)
    return OKPAlgorithm.to_jwk(key, as_dict=True)


def document(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


DOCUMENT: Final = document(*(jwk(kind, kind) for kind in ("RSA", "P-256", "P-384", "P-521", "Ed25519")))


def token(algorithm: str = "ES256", *, key: str | None = None, key_id: str | None = "", **claims: Any) -> str:
    """Return a valid token with the given claims changed; those of ``None`` are left out."""
    kind = key or KINDS[algorithm]
    payload = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW_S + 3_600, "roles": ["Send"], **claims}
    return jwt.encode(
        {name: value for name, value in payload.items() if value is not None},
        private_key(kind),
        algorithm,
        headers=None if key_id is None else {"kid": key_id or kind},
    )


def forged(header: Any, claims: Any, sign: Callable[[bytes], bytes] = lambda _: b"") -> str:
    """Return a token of any parts."""
    text = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{text}.{encoded(sign(text.encode()))}"


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


CLAIMS: Final = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW_S + 3_600, "roles": ["Send"]}


def with_keys(source: Path | str, use: Callable[[SigningKeys], Awaitable[None]], **options: Any) -> None:
    """Load keys on a separate loop, use them, and close them."""

    async def run() -> None:
        keys = await SigningKeys.load(str(source), **options)
        try:
            await use(keys)
        finally:
            keys.stop()

    asyncio.run(run())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(DOCUMENT)
    return path


@dataclass
class Verification:
    """A verifier with the keys of a file, for one token at a time."""

    file: Path
    audience: str = AUDIENCE
    now_ms: int = NOW_MS

    def __call__(self, *texts: str) -> list[Grant | UnauthorizedError]:
        found: list[Grant | UnauthorizedError] = []

        async def verify(keys: SigningKeys) -> None:
            verifier = JwtVerifier(keys, ISSUER, self.audience)
            found.extend(attempt(verifier, text, self.now_ms) for text in texts)

        with_keys(self.file, verify)
        return found

    def grant(self, text: str) -> Grant:
        (grant,) = self(text)
        assert isinstance(grant, Grant), grant
        return grant

    def refusal(self, text: str) -> str:
        (error,) = self(text)
        assert isinstance(error, UnauthorizedError), error
        return str(error)


def attempt(verifier: Callable[[str, int], Grant], text: str, now_ms: int) -> Grant | UnauthorizedError:
    try:
        return verifier(text, now_ms)
    except UnauthorizedError as error:
        refused = error
    assert refused.__cause__ is None, "the cause may quote the token"
    assert not any(part in str(refused) for part in text.split(".") if len(part) > 20), "it repeats the token"
    return refused


@pytest.fixture
def verification(file: Path) -> Verification:
    return Verification(file)


# Valid tokens


@pytest.mark.parametrize("algorithm", sorted(KINDS))
def test_a8_token_of_the_issuer_is_accepted_until_it_expires(verification: Verification, algorithm: str) -> None:
    grant = verification.grant(token(algorithm, exp=NOW_S + 60))
    assert grant == Grant("", frozenset({Right.SEND}), NOW_MS + 60_000)


def test_a8_tests_cover_every_allowed_algorithm() -> None:
    assert KINDS.keys() == ALGORITHMS


SEND, LISTEN = frozenset({Right.SEND}), frozenset({Right.LISTEN})


@pytest.mark.parametrize(
    ("claims", "rights"),
    [
        ({"roles": ["Azure Service Bus Data Owner"]}, ALL),
        ({"roles": ["Azure Service Bus Data Sender"]}, SEND),
        ({"roles": ["azure service bus data RECEIVER"]}, LISTEN),
        ({"roles": "Azure Service Bus Data Sender"}, SEND),
        ({"roles": ["Send"]}, SEND),
        ({"roles": ["listen", "SEND"]}, SEND | LISTEN),
        ({"roles": "Manage"}, ALL),
        ({"roles": None, "scp": "user_impersonation Listen"}, LISTEN),
        ({"roles": None, "scp": "Azure Service Bus Data Sender"}, SEND),
        ({"roles": None, "scp": ["Send", "Azure Service Bus Data Receiver"]}, SEND | LISTEN),
        ({"roles": ["Send"], "scp": "Listen"}, SEND | LISTEN),
        ({"roles": None}, frozenset()),
        ({"roles": []}, frozenset()),
        ({"roles": ["Reader", "", "Mail Send", 1, None, ["Manage"], {"Manage": 1}]}, frozenset()),
        ({"roles": "Mail Send"}, frozenset()),
        ({"roles": {"Manage": True}, "scp": 1}, frozenset()),
    ],
    ids=range(16),
)
def test_a8_roles_and_scopes_grant_rights(
    verification: Verification, claims: dict[str, Any], rights: frozenset[Right]
) -> None:
    assert verification.grant(token(**claims)).rights == rights


@pytest.mark.parametrize(
    ("audience", "claim"),
    [
        (AUDIENCE, AUDIENCE),
        (AUDIENCE, AUDIENCE + "/"),
        (AUDIENCE + "/", AUDIENCE),
        (AUDIENCE + "/", AUDIENCE + "/"),
        (AUDIENCE, ["https://other.example", AUDIENCE]),
        ("pairbus", "pairbus"),
    ],
)
def test_a8_audience_is_accepted_with_and_without_a_slash(
    verification: Verification, audience: str, claim: object
) -> None:
    verification.audience = audience
    assert verification.grant(token(aud=claim)).rights == SEND


def test_a8_audience_of_the_sdks_is_the_default(file: Path) -> None:
    async def verify(keys: SigningKeys) -> None:
        assert JwtVerifier(keys, ISSUER)(token(), NOW_MS).rights == SEND

    with_keys(file, verify)


def test_a8_key_id_may_be_omitted_if_there_is_only_one_key(verification: Verification) -> None:
    assert "does not name the key" in verification.refusal(token(key_id=None))
    verification.file.write_bytes(document(jwk("P-256", "some")))
    assert verification.grant(token(key_id=None)).rights == SEND


# Invalid tokens


@pytest.mark.parametrize(
    "issuer", [None, "https://login.example/other/", ISSUER.rstrip("/"), ISSUER.upper(), 1, [ISSUER]]
)
def test_a8_token_of_another_issuer_is_refused(verification: Verification, issuer: object) -> None:
    assert "another issuer" in verification.refusal(token_of(iss=issuer))


@pytest.mark.parametrize(
    "audience",
    [None, "https://storage.azure.com", AUDIENCE + "//", AUDIENCE + ".evil.example", "", [], [1], {AUDIENCE: 1}],
)
def test_a8_token_for_another_audience_is_refused(verification: Verification, audience: object) -> None:
    assert "another audience" in verification.refusal(token_of(aud=audience))


def token_of(**claims: Any) -> str:
    """Return a token signed by hand: the library creates no token with claims of wrong types."""
    key = private_key("P-256")
    payload = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    algorithm = ECAlgorithm(ECAlgorithm.SHA256)
    return forged({"alg": "ES256", "kid": "P-256"}, payload, lambda text: algorithm.sign(text, key))


@pytest.mark.parametrize(("ms", "expired"), [(-1, False), (0, True), (1, True), (3_600_000, True)])
def test_a8_token_expires_by_the_clock_that_is_given(verification: Verification, ms: int, expired: bool) -> None:
    verification.now_ms = NOW_MS + ms
    (found,) = verification(token(exp=NOW_S))
    assert isinstance(found, UnauthorizedError) is expired
    assert not expired or "expired" in str(found)


def test_a8_clock_of_the_machine_does_not_matter(verification: Verification) -> None:
    far_s = 40_000_000_000
    verification.now_ms = far_s * 1_000
    assert "expired" in verification.refusal(token(exp=int(time.time()) + 3_600))
    verification.grant(token(exp=far_s + 1, nbf=far_s, iat=far_s))


def test_a8_fractions_of_seconds_count(verification: Verification) -> None:
    assert verification.grant(token_of(exp=NOW_S + 0.5)).expires_ms == NOW_MS + 500


@pytest.mark.parametrize(
    "time", [True, "soon", str(NOW_S + 60), [], {}, float("inf"), float("nan"), 1e308, 10**400, -(10**400)]
)
@pytest.mark.parametrize("claim", ["exp", "nbf"])
def test_a8_invalid_times_are_refused(verification: Verification, claim: str, time: object) -> None:
    assert "not a number of seconds" in verification.refusal(token_of(**{claim: time}))


def test_a8_token_without_an_expiry_is_refused(verification: Verification) -> None:
    assert "no expiry time" in verification.refusal(token(exp=None))


@pytest.mark.parametrize(("seconds", "valid"), [(-1, True), (0, True), (300, True), (301, False), (10_000, False)])
def test_a8_token_is_accepted_five_minutes_early(verification: Verification, seconds: int, valid: bool) -> None:
    assert LEEWAY_MS == 300_000
    (found,) = verification(token(nbf=NOW_S + seconds, exp=NOW_S + 20_000))
    assert isinstance(found, Grant) is valid
    assert valid or "not valid yet" in str(found)


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", None, 1, ["ES256"], "HS256", "HS512", "ES256K", "es256"]
)
def test_a8_other_algorithms_are_refused(verification: Verification, algorithm: object) -> None:
    header = {"typ": "JWT", "kid": "P-256"} | ({} if algorithm is None else {"alg": algorithm})
    assert "not allowed" in verification.refusal(forged(header, CLAIMS))
    assert "not allowed" in verification.refusal(forged(header, CLAIMS, lambda _: b"signature"))


def test_a8_public_key_used_as_a_secret_is_refused(verification: Verification) -> None:
    public = private_key("RSA").public_key()
    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(jwk("RSA", "RSA")).encode(),
    ]
    for secret in secrets:
        text = forged({"alg": "HS256", "kid": "RSA"}, CLAIMS, hmac_with(secret))
        assert "not allowed" in verification.refusal(text)


def hmac_with(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda text: hmac.new(secret, text, hashlib.sha256).digest()


def test_a8_symmetric_key_in_the_document_is_not_used(verification: Verification) -> None:
    secret = {"kty": "oct", "kid": "oct", "k": encoded(b"s" * 32)}
    verification.file.write_bytes(document(secret, jwk("RSA", "RSA")))
    text = forged({"alg": "HS256", "kid": "oct"}, CLAIMS, hmac_with(b"s" * 32))
    assert "not allowed" in verification.refusal(text)


@pytest.mark.parametrize("algorithm", sorted(KINDS))
def test_a8_key_is_used_for_its_own_algorithms_only(verification: Verification, algorithm: str) -> None:
    other = "P-256" if algorithm != "ES256" else "RSA"
    assert "does not match its key" in verification.refusal(token(algorithm, key_id=other))


def test_a8_key_with_a_named_algorithm_accepts_only_that_algorithm(verification: Verification) -> None:
    verification.file.write_bytes(document(jwk("RSA", "RSA", alg="RS256")))
    verification.grant(token("RS256"))
    assert "does not match its key" in verification.refusal(token("PS256"))


def test_a8_foreign_key_under_a_known_id_is_refused(verification: Verification) -> None:
    other_key = ec.generate_private_key(ec.SECP256R1())
    text = jwt.encode(CLAIMS, other_key, "ES256", headers={"kid": "P-256"})
    assert "signature" in verification.refusal(text)
    embedded = jwt.encode(CLAIMS, other_key, "ES256", headers={"kid": "P-256", "jwk": describe(other_key.public_key())})
    assert "signature" in verification.refusal(embedded)


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES512", "EdDSA"])
def test_a8_every_changed_byte_of_the_signature_is_noticed(verification: Verification, algorithm: str) -> None:
    good = token(algorithm)
    head, _, text = good.rpartition(".")
    signature = base64.urlsafe_b64decode(text + "==")
    changed = [
        *(f"{head}.{encoded(flipped(signature, position, 1 << position % 8))}" for position in range(len(signature))),
        *(f"{head}.{replaced(text, position)}" for position in range(len(text))),
        *(f"{head}.{text[:-1]}{character}" for character in ALPHABET if character != text[-1]),
        *(f"{head}.{text[:length]}" for length in range(len(text))),
        *(good + more for more in ("A", "AAAA", "=", "==", "\n", ".", " ", ".A")),
    ]
    refused = verification(good, *changed)
    assert isinstance(refused[0], Grant)
    assert [error for error in refused[1:] if isinstance(error, Grant)] == []


def flipped(content: bytes, position: int, bit: int) -> bytes:
    return content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :]


def replaced(text: str, position: int) -> str:
    other = "A" if text[position] != "A" else "B"
    return text[:position] + other + text[position + 1 :]


def test_a8_every_changed_character_of_the_rest_is_noticed(verification: Verification) -> None:
    good = token()
    rest = good.rpartition(".")[0]
    for found in verification(*(replaced(good, position) for position in range(len(rest)))):
        assert isinstance(found, UnauthorizedError)


def test_a8_signature_of_another_token_is_refused(verification: Verification) -> None:
    first, second = token(roles=["Listen"]), token(roles=["Manage"])
    mixed = second.rpartition(".")[0] + "." + first.rpartition(".")[2]
    assert "signature" in verification.refusal(mixed)


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "ES256", "kid": 1},
        {"alg": "ES256", "kid": ["P-256"]},
        [],
        "ES256",
        None,
        {"alg": "ES256", "kid": "P-256", "crit": ["exp"]},
        {"alg": "ES256", "kid": "P-256", "b64": False, "crit": ["b64"]},
    ],
)
def test_e3_invalid_headers_are_refused(verification: Verification, header: object) -> None:
    verification.refusal(forged(header, CLAIMS, lambda _: bytes(64)))


@pytest.mark.parametrize(
    "payload", [b"[]", b"1", b"null", b"", b"{", b"\xff", b"[" * 20_000, b'{"exp":' + b"9" * 9_000 + b"}"]
)
def test_e3_invalid_claims_are_refused(verification: Verification, payload: bytes) -> None:
    text = jwt.PyJWS().encode(payload, private_key("P-256"), "ES256", headers={"kid": "P-256"})
    verification.refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "Bearer",
        "SharedAccessSignature sr=a",
        "\x00",
        "é.é.é",
        "\ud800.a.b",
        f"{encoded(b'[' * 20_000)}.e30.AAAA",
        f"{encoded(b'{')}.e30.AAAA",
    ],
    ids=range(12),
)
def test_e3_garbage_is_refused(verification: Verification, text: str) -> None:
    verification.refusal(text)


def test_e3_huge_tokens_are_refused_before_parsing(verification: Verification) -> None:
    long = token(padding="x" * MAX_CHARACTERS)
    assert "longer than" in verification.refusal(long)
    assert "longer than" in verification.refusal("x" * 50_000_000)
    verification.grant(token(padding="x" * (MAX_CHARACTERS // 2)))


@settings(deadline=None)
@given(st.one_of(st.text(), st.from_regex(r"[A-Za-z0-9_-]{0,40}(\.[A-Za-z0-9_-]{0,40}){2}", fullmatch=True)))
def test_e3_any_text_is_refused(text: str) -> None:
    verifier = JwtVerifier(NO_RELOAD, ISSUER)
    assert isinstance(attempt(verifier, text, NOW_MS), UnauthorizedError)
    assert isinstance(attempt(allow_any, text, NOW_MS), Grant) is bool(text.strip())


class NoReload(SigningKeys):
    """Keys without a loop: hypothesis has none."""

    def __init__(self) -> None:
        self._document = jwt_module._Document(DOCUMENT, parse_keys(DOCUMENT))

    def wanted(self) -> None:
        pass


NO_RELOAD: Final = NoReload()


# Development


@pytest.mark.parametrize("text", ["x", "not a token", "a.b.c", "a" * 1_000_000, f"{encoded(b'{}')}.{encoded(b'[]')}."])
def test_a8_any_token_is_accepted_if_allowed(text: str) -> None:
    assert allow_any(text, NOW_MS) == Grant("", ALL, NEVER_MS)


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a8_empty_token_is_refused_even_if_any_is_allowed(text: str) -> None:
    with pytest.raises(UnauthorizedError, match="empty"):
        allow_any(text, NOW_MS)


def test_a8_expiry_of_any_token_is_respected() -> None:
    unsigned = forged({"alg": "none"}, {"exp": NOW_S + 60})
    assert allow_any(unsigned, NOW_MS) == Grant("", ALL, NOW_MS + 60_000)
    assert allow_any(token(exp=NOW_S + 60), NOW_MS) == Grant("", ALL, NOW_MS + 60_000)
    assert allow_any(forged({"alg": "none"}, {"exp": "soon"}), NOW_MS).expires_ms == NEVER_MS
    with pytest.raises(UnauthorizedError, match="expired"):
        allow_any(unsigned, NOW_MS + 60_000)


# Sources of keys


@dataclass
class KeyServer:
    """The issuer's web server, with a configurable response."""

    url: str
    content: bytes = DOCUMENT
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    may_answer: threading.Event = field(default_factory=threading.Event)
    drips: bool = False


@contextmanager
def key_server() -> Iterator[KeyServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests += 1
            state.may_answer.wait(DEADLINE_S)
            self.send_response(state.status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client may have disconnected
                self.answer()

        def answer(self) -> None:
            if not state.drips:
                self.wfile.write(state.content)
            while state.drips:
                self.wfile.write(b" ")
                time.sleep(0.002)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state = KeyServer(f"http://127.0.0.1:{server.server_port}/keys")
        state.may_answer.set()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield state
        finally:
            state.may_answer.set()
            state.drips = False
            server.shutdown()
            thread.join()


def test_a8_new_key_is_found_behind_a_url() -> None:
    with key_server() as server:
        server.content = document(jwk("RSA", "old"))

        async def rotate(keys: SigningKeys) -> None:
            verifier = JwtVerifier(keys, ISSUER)
            verifier(token("RS256", key_id="old"), NOW_MS)
            server.content = document(jwk("P-256", "new"))
            new = token("ES256", key_id="new")
            with pytest.raises(UnauthorizedError, match="try again soon"):
                verifier(new, NOW_MS)
            await eventually_async(lambda: keys.find("new"))
            verifier(new, NOW_MS)
            with pytest.raises(UnauthorizedError):  # a key that the issuer no longer lists is refused
                verifier(token("RS256", key_id="old"), NOW_MS)

        with_keys(server.url, rotate)
        assert server.requests == 2


def test_a8_url_is_read_at_most_once_per_pause() -> None:
    with key_server() as server:

        async def ask(keys: SigningKeys) -> None:
            keys.wanted()
            await eventually_async(lambda: server.requests == 2)
            for _ in range(50):
                keys.wanted()
                await asyncio.sleep(0.001)
            assert server.requests == 2

        with_keys(server.url, ask)


def test_a8_key_requested_during_the_pause_is_fetched_after_it() -> None:
    with key_server() as server:

        async def ask(keys: SigningKeys) -> None:
            keys.wanted()
            await eventually_async(lambda: server.requests == 2)
            server.content = document(jwk("P-256", "new"))
            keys.wanted()
            await eventually_async(lambda: keys.find("new"))

        with_keys(server.url, ask, pause_s=0.05)


def test_a8_keys_are_refreshed_periodically() -> None:
    with key_server() as server:

        async def wait(keys: SigningKeys) -> None:
            server.content = document(jwk("P-256", "new"))
            await eventually_async(lambda: keys.find("new"))

        with_keys(server.url, wait, refresh_s=0.01, pause_s=0)


def test_a8_verification_does_not_wait_for_the_issuer() -> None:
    with key_server() as server:

        async def wait(keys: SigningKeys) -> None:
            server.may_answer.clear()
            server.content = document(jwk("P-256", "new"))
            keys.wanted()
            await eventually_async(lambda: server.requests == 2)
            JwtVerifier(keys, ISSUER)(token(), NOW_MS)
            server.may_answer.set()
            await eventually_async(lambda: keys.find("new"))

        with_keys(server.url, wait)


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (500, DOCUMENT),
        (404, DOCUMENT),
        (200, b""),
        (200, b"<html>"),
        (200, b"[" * 100_000),
        (200, b"{}"),
        (200, b'{"keys": {}}'),
        (200, DOCUMENT + b" " * MAX_BYTES),
    ],
    ids=range(8),
)
def test_a8_keys_stay_when_the_issuer_fails(status: int, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with key_server() as server:

        async def fail(keys: SigningKeys) -> None:
            server.status, server.content = status, content
            keys.wanted()
            await eventually_async(lambda: caplog.records)
            JwtVerifier(keys, ISSUER)(token(), NOW_MS)
            server.status, server.content = 200, document(jwk("P-256", "new"))
            keys.wanted()
            await eventually_async(lambda: keys.find("new"))

        with_keys(server.url, fail, pause_s=0)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert server.url in record.getMessage()


def test_a8_keys_stay_when_the_issuer_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    with key_server() as server:
        loaded = threading.Event()
        gone = threading.Event()

        async def fail(keys: SigningKeys) -> None:
            loaded.set()
            await asyncio.to_thread(gone.wait, DEADLINE_S)
            keys.wanted()
            await eventually_async(lambda: caplog.records)
            JwtVerifier(keys, ISSUER)(token(), NOW_MS)

        thread = threading.Thread(target=with_keys, args=(server.url, fail))
        thread.start()
        assert loaded.wait(DEADLINE_S)
    gone.set()
    thread.join()
    assert "signing keys not refreshed" in caplog.text


def test_a8_endless_response_times_out() -> None:
    with key_server() as server:
        server.drips = True
        with pytest.raises(SigningKeysError, match="too long"):
            asyncio.run(SigningKeys.load(server.url, timeout_s=0.5))


def test_a8_missing_response_times_out() -> None:
    with key_server() as server:
        server.may_answer.clear()
        with pytest.raises(SigningKeysError, match="timed out"):
            asyncio.run(SigningKeys.load(server.url, timeout_s=0.5))


def test_a8_redirects_are_not_followed() -> None:
    with key_server() as server, key_server() as other:
        server.status, server.headers = 302, {"Location": other.url}
        with pytest.raises(SigningKeysError, match="302"):
            asyncio.run(SigningKeys.load(server.url))
        assert other.requests == 0


@pytest.mark.parametrize(
    "source",
    [
        "http://login.example/keys",
        "http://127.0.0.1.example/keys",
        "http://localhost.example/keys",
        "http://10.0.0.1/keys",
        "ftp://127.0.0.1/keys",
        "file:///etc/passwd",
        "HTTP://login.example/keys",
        "://",
        "https://[::1/keys",
    ],
)
def test_a8_keys_come_over_https_or_from_this_machine(source: str) -> None:
    with pytest.raises(SigningKeysError, match="URL"):
        asyncio.run(SigningKeys.load(source))


@pytest.mark.parametrize(
    "source", ["https://", "https://127.0.0.1:1/keys", "http://[::1]:1/", "http://localhost:1/ a\nb"]
)
def test_a8_issuer_that_cannot_be_reached_at_the_start_is_an_error(source: str) -> None:
    with pytest.raises(SigningKeysError, match="no signing keys from"):
        asyncio.run(SigningKeys.load(source))


def test_a8_keys_can_be_closed_while_they_are_fetched() -> None:
    with key_server() as server:

        async def close(keys: SigningKeys) -> None:
            server.may_answer.clear()
            keys.wanted()
            await eventually_async(lambda: server.requests == 2)
            keys.stop()
            await eventually_async(keys.problem)
            server.may_answer.set()

        with_keys(server.url, close)


def test_a8_new_key_is_found_in_a_file(file: Path) -> None:
    async def rotate(keys: SigningKeys) -> None:
        verifier = JwtVerifier(keys, ISSUER)
        new = token(key_id="new")
        replace(file, document(jwk("P-256", "new")))
        with pytest.raises(UnauthorizedError, match="try again soon"):
            verifier(new, NOW_MS)
        await eventually_async(lambda: keys.find("new"))
        verifier(new, NOW_MS)

    with_keys(file, rotate)


def test_e5_key_that_is_no_longer_in_the_file_is_not_trusted(file: Path) -> None:
    async def remove(keys: SigningKeys) -> None:
        changes: list[bool] = []
        signer = JwtVerifier(keys, ISSUER)(token(), NOW_MS).signer
        keys.on_changed.add(lambda: changes.append(keys.trusts(signer)))
        replace(file, document(*(jwk(kind, kind) for kind in ("P-256", "RSA"))))
        await eventually_async(lambda: changes == [True])
        replace(file, document(jwk("RSA", "P-256")))
        await eventually_async(lambda: changes == [True, False])

    with_keys(file, remove)


def replace(file: Path, content: bytes) -> None:
    """Replace a file atomically."""
    other = file.with_suffix(".new")
    other.write_bytes(content)
    other.replace(file)


def test_e5_key_that_is_replaced_in_place_with_the_same_size_and_times_is_not_trusted(file: Path) -> None:
    async def change(keys: SigningKeys) -> None:
        for content in (b"x" * len(DOCUMENT), DOCUMENT.replace(b'"RSA"}', b'"NEW"}')):
            overwrite_unseen(file, content)
            await keys._refresh()
        assert keys.find("NEW")
        assert not keys.find("RSA")

    with_keys(file, change)


def overwrite_unseen(file: Path, content: bytes) -> None:
    status = file.stat()
    assert len(content) == status.st_size
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("content", [document(), document(jwk("P-256", "enc", use="enc"))], ids=["empty", "unusable"])
def test_e5_document_without_keys_revokes_all_of_them(
    file: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def remove(keys: SigningKeys) -> None:
        changes: list[bool] = []
        signer = JwtVerifier(keys, ISSUER)(token(), NOW_MS).signer
        keys.on_changed.add(lambda: changes.append(keys.trusts(signer)))
        replace(file, content)
        await eventually_async(lambda: changes == [False])
        with pytest.raises(UnauthorizedError, match="unknown key"):
            JwtVerifier(keys, ISSUER)(token(), NOW_MS)
        assert keys.problem() is None
        assert "no usable signing keys" in caplog.text
        replace(file, DOCUMENT)
        await eventually_async(lambda: changes == [False, True])

    async def restart(keys: SigningKeys) -> None:
        assert not keys.find("P-256")

    with_keys(file, remove)
    replace(file, content)
    with_keys(file, restart)


def test_e5_read_that_hangs_is_abandoned_and_its_result_dropped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt_module._File, "deadline_s", 0.2)
    read, is_over, release = jwt_module._File.read, threading.Event(), threading.Event()

    def hang(self: Any) -> bytes:
        content = read(self)
        release.wait(DEADLINE_S)
        is_over.set()
        return content

    async def use(keys: SigningKeys) -> None:
        monkeypatch.setattr(jwt_module._File, "read", hang)
        await eventually_async(keys.problem)
        problem = keys.problem()
        assert problem is not None
        assert "hangs" in problem.reason
        assert str(file) not in problem.reason
        monkeypatch.setattr(jwt_module._File, "read", read)
        replace(file, document(jwk("P-256", "new")))
        await eventually_async(lambda: keys.find("new"))
        assert not is_over.is_set()
        assert keys.problem() is None
        release.set()
        await eventually_async(is_over.is_set)
        await keys._refresh()
        assert keys.find("new")

    try:
        with_keys(file, use)
    finally:
        release.set()


HANGING_READ: Final = """
import asyncio, sys, threading
from pairbus.server.jwt import SigningKeys, _File

async def main():
    await SigningKeys.load(sys.argv[1])
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    def hang(self):
        loop.call_soon_threadsafe(begun.set)
        threading.Event().wait()
    _File.read = hang
    await begun.wait()

asyncio.run(main())
"""


def test_e5_process_ends_while_a_read_hangs(file: Path) -> None:
    subprocess.run([sys.executable, "-c", HANGING_READ, str(file)], check=True, timeout=30)


def test_e5_key_file_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SigningKeysError, match="is not a regular file"):
        asyncio.run(SigningKeys.load(str(tmp_path / "pipe")))


def test_a8_keys_stay_when_the_file_is_bad_or_gone(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(keys: SigningKeys) -> None:
        replace(file, b"{")
        keys.wanted()
        await eventually_async(lambda: len(caplog.records) == 1)
        os.unlink(file)
        keys.wanted()
        await eventually_async(lambda: len(caplog.records) == 2)
        JwtVerifier(keys, ISSUER)(token(), NOW_MS)
        problem = keys.problem()
        assert problem is not None
        assert "cannot be read" in problem.reason
        assert str(file) not in problem.reason
        replace(file, document(jwk("P-256", "new")))
        keys.wanted()
        await eventually_async(lambda: keys.find("new"))
        assert keys.problem() is None

    with_keys(file, fail, pause_s=0)


def test_a8_missing_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(SigningKeysError, match="no signing keys from"):
            asyncio.run(SigningKeys.load(str(path)))


# Key documents


def test_a8_keys_for_other_uses_are_ignored() -> None:
    good = jwk("P-256", "good")
    others: list[Any] = [
        None,
        "key",
        {},
        {"kty": "oct", "k": encoded(b"s" * 32), "kid": "oct"},
        {"kty": "new", "kid": "new"},
        {"kty": ["RSA"]},
        {"kty": "RSA"},
        {"kty": "RSA", "n": 1, "e": 2},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {**good, "x": "AAAA"},
        {**good, "y": good["x"]},
        jwk("P-256", "enc", use="enc"),
        jwk("P-256", "alg", alg="ES384"),
        jwk("P-256", "alg", alg="HS256"),
        jwk("P-256", "alg", alg=["ES256"]),
        jwk("secp256k1", "curve"),
        jwk("weak RSA", "weak"),
        {**describe(private_key("RSA")), "kid": "private"},
        {**describe(private_key("P-256")), "kid": "private"},
        {**describe(private_key("Ed25519")), "kid": "private"},
    ]
    assert [key.key_id for key in parse_keys(document(*others, good, *others))] == ["good"]
    for other in others:
        assert parse_keys(document(other)) == ()


def test_a8_first_of_two_keys_with_the_same_id_counts_and_ids_are_text(file: Path) -> None:
    file.write_bytes(document(jwk("RSA", "twice"), jwk("P-256", "twice"), {**jwk("P-384"), "kid": 1}))

    async def look(keys: SigningKeys) -> None:
        found = keys.find("twice")
        assert found is not None
        assert found.algorithms >= {"RS256"}
        assert keys.find("1") is None
        assert keys.find(None) is None

    with_keys(file, look)


def test_a8_ed448_key_is_accepted() -> None:
    (key,) = parse_keys(document(jwk("Ed448", "edwards")))
    assert key.algorithms == {"EdDSA"}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["RSA", "EC", "OKP", "P-256", "AQAB", ""])
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kty", "n", "e", "d", "p", "x", "y", "crv", "kid", "use", "alg"]), inner, max_size=8
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.one_of(JSON, st.fixed_dictionaries({"keys": st.lists(JSON, max_size=3)})))
def test_e3_any_document_has_keys_or_is_refused(value: object) -> None:
    try:
        parse_keys(json.dumps(value).encode())
    except SigningKeysError:
        return


@settings(deadline=None)
@given(st.binary())
def test_e3_any_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(SigningKeysError):
        parse_keys(content)
