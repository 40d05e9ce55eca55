"""E5: with ``max_token_minutes``, a token that is valid for longer is refused, whatever its kind and the protocol."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import jwt
import pytest
from jwt.algorithms import ECAlgorithm

from pairbus.dialect.sas import make_sas_token
from tests.console.site import Site
from tests.server.amqp.wire_client import DEADLINE_S, WireClient
from tests.server.test_bearer_tokens import AUDIENCE, ISSUER, KEY

MAX_MINUTES: Final = 10


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    keys = tmp_path / "keys.json"
    public = ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    keys.write_text(json.dumps({"keys": [{**public, "kid": "one", "alg": "ES256", "use": "sig"}]}))
    site = Site(tmp_path / "contoso", max_token_minutes=MAX_MINUTES, jwt_issuer=ISSUER, jwt_keys=str(keys))
    site.start()
    try:
        yield site
    finally:
        site.close()


def signature(site: Site, expires_s: int) -> str:
    return make_sas_token("sb://localhost/", site.settings.key_name, site.server.key, expires_s)


def bearer(_site: Site, expires_s: int) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": expires_s, "roles": ["Manage"]}
    return jwt.encode(claims, KEY, "ES256", headers={"kid": "one"})


def by_cbs(site: Site, token: str) -> bool:
    with WireClient(site.port).open() as client:
        return client.put_token("sb://localhost/orders", token).status == 202


def by_http(site: Site, token: str) -> bool:
    connection = HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    text = token if token.startswith("SharedAccessSignature") else f"Bearer {token}"
    connection.request("GET", "/orders", headers={"Authorization": text})
    status = connection.getresponse().status
    connection.close()
    return status == 200


def by_console(site: Site, token: str) -> bool:
    given = f"Endpoint=sb://localhost/;SharedAccessSignature={token}"
    return site.person().post("/console/login", connection_string=given).status == 303


@pytest.mark.parametrize(
    ("make", "accepts"),
    [(signature, by_cbs), (signature, by_http), (signature, by_console), (bearer, by_cbs), (bearer, by_http)],
    ids=lambda function: function.__name__,
)
def test_e5_token_with_too_long_a_validity_is_refused_whatever_the_way(
    site: Site, make: Callable[[Site, int], str], accepts: Callable[[Site, str], bool]
) -> None:
    now_s = int(time.time())
    assert accepts(site, make(site, now_s + 60 * (MAX_MINUTES - 1)))
    assert not accepts(site, make(site, now_s + 60 * (MAX_MINUTES + 1)))
