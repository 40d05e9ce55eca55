"""Whether two addresses are those of one namespace."""

from __future__ import annotations

from ipaddress import ip_address

from pairbus.client.endpoint import Endpoint


def is_same_namespace(one: Endpoint, other: Endpoint) -> bool:
    """Whether they are the same namespace, as far as addresses tell."""
    has_ports = one.port is not None or other.port is not None
    return is_same_host(one, other) and (not has_ports or one.amqp_port == other.amqp_port)


def is_same_host(one: Endpoint, other: Endpoint) -> bool:
    """Whether they are on one host, however that is spelled."""
    return _host(one) == _host(other)


def _host(endpoint: Endpoint) -> str:
    host = endpoint.host.lower().rstrip(".")
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return "localhost" if address.is_loopback else address.compressed
