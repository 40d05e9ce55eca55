"""The address of a namespace."""

from __future__ import annotations

import pytest

from pairbus.client.endpoint import Endpoint

HOST = "contoso.servicebus.windows.net"


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        (f"sb://{HOST}", Endpoint(HOST)),
        (f"sb://{HOST}/", Endpoint(HOST)),
        (HOST, Endpoint(HOST)),
        (f"{HOST}:5671", Endpoint(HOST, 5671)),
        (f"amqps://{HOST}", Endpoint(HOST)),
        (f"https://{HOST}", Endpoint(HOST)),
        ("amqp://localhost:5672", Endpoint("localhost", 5672, tls=False)),
        ("http://localhost", Endpoint("localhost", tls=False)),
        ("amqp://[::1]:5672", Endpoint("::1", 5672, tls=False)),
        ("AMQP://LOCALHOST", Endpoint("localhost", tls=False)),
    ],
)
def test_addresses_are_parsed(address: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(address) == endpoint


@pytest.mark.parametrize(
    "address",
    [
        "",
        "sb://",
        "ftp://localhost",
        f"sb://{HOST}/orders",
        f"sb://{HOST}?a=b",
        f"sb://user@{HOST}",
        f"sb://{HOST}:port",
        f"sb://{HOST}:99999",
        "sb://[::1",
    ],
)
def test_e3_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Endpoint.parse(address)


@pytest.mark.parametrize("address", ["", "ftp://localhost", f"sb://{HOST}/orders"])
def test_e4_invalid_address_error_shows_valid_example(address: str) -> None:
    with pytest.raises(ValueError, match="sb://"):
        Endpoint.parse(address)


@pytest.mark.parametrize(
    ("endpoint", "amqp_port", "http_port"),
    [
        (Endpoint(HOST), 5671, 443),
        (Endpoint(HOST, tls=False), 5672, 80),
        (Endpoint(HOST, 5300), 5300, 5300),
        (Endpoint(HOST, 5300, tls=False), 5300, 5300),
    ],
)
def test_a9_default_ports_follow_protocol(endpoint: Endpoint, amqp_port: int, http_port: int) -> None:
    assert (endpoint.amqp_port, endpoint.http_port) == (amqp_port, http_port)


@pytest.mark.parametrize(
    ("endpoint", "authority"),
    [(Endpoint(HOST), HOST), (Endpoint(HOST, 5671), f"{HOST}:5671"), (Endpoint("::1", 5672), "[::1]:5672")],
)
def test_address_is_formatted_as_url(endpoint: Endpoint, authority: str) -> None:
    assert endpoint.authority == authority
    assert endpoint.uri() == f"sb://{authority}/"
    assert endpoint.uri("orders/$management") == f"sb://{authority}/orders/$management"
    assert str(endpoint) == f"sb://{authority}"
    assert Endpoint.parse(str(endpoint)) == endpoint


def test_namespace_is_first_label_of_host() -> None:
    assert Endpoint(HOST).namespace == "contoso"
    assert Endpoint("localhost", 5672).namespace == "localhost"


def test_address_without_tls_has_amqp_scheme() -> None:
    assert str(Endpoint("localhost", 5672, tls=False)) == "amqp://localhost:5672"
