"""The arguments of tests, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from pairbus.testing import RunningNamespace
from tests.compatibility.administration import Administration
from tests.compatibility.client import Adapter, Client, Endpoint, Transport
from tests.compatibility.entities import Entities
from tests.compatibility.feature import Feature

Test: TypeAlias = Callable[..., Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Case:
    """A test of a feature, with one client over one transport."""

    test: Test
    feature: Feature
    adapter: Adapter
    transport: Transport

    @property
    def id(self) -> str:
        return f"{self.adapter.id}-{self.transport.value}"


class Scene:
    """The arguments of one run of a test. What no argument asks for is never made."""

    def __init__(self, case: Case, namespace: RunningNamespace) -> None:
        self._case = case
        self.namespace = namespace
        self.adapter = case.adapter

    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in inspect.signature(self._case.test).parameters}

    @cached_property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            connection_string=self.namespace.connection_string,
            tls_connection_string=self.namespace.tls_connection_string,
            port=self.namespace.port,
            ca_file=self.namespace.ca_file,
        )

    @cached_property
    def entities(self) -> Entities:
        return Entities(self.namespace)

    @cached_property
    def queue(self) -> str:
        """The name of a queue with the settings that queues have by themselves."""
        return self.entities.queue()

    @cached_property
    def sessions(self) -> str:
        """The name of a queue that requires sessions."""
        return self.entities.queue(requires_session=True)

    @cached_property
    def client(self) -> Client:
        return self.adapter.client(self.endpoint, self._case.transport)

    @cached_property
    def patient_client(self) -> Client:
        """A client that tries again what fails, as SDKs do by themselves."""
        return self.adapter.client(self.endpoint, self._case.transport, retries=5)

    def connect(self, endpoint: Endpoint) -> Client:
        """Make another client, to another endpoint or with another key."""
        return self.adapter.client(endpoint, self._case.transport)

    @cached_property
    def administration(self) -> Administration:
        return self.adapter.administration(self.endpoint)

    def administer(self, endpoint: Endpoint) -> Administration:
        """Make another administration, with another key."""
        return self.adapter.administration(endpoint)
