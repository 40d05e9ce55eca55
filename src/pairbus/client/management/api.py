"""Requests to the management API: signed, retried, and with the client's errors."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode

from pairbus.client.endpoint import Endpoint, OutageLog
from pairbus.client.errors import (
    ClosedError,
    EntityAlreadyExistsError,
    EntityNotFoundError,
    MessagingCommunicationError,
    MessagingError,
    ServerBusyError,
)
from pairbus.client.management.atom import WORDS, AtomEntity, Description, forwarding_targets, write_description
from pairbus.client.management.http import MAX_KEPT, HttpConnections, HttpRequest, HttpResponse, refusal_of
from pairbus.client.management.rules import RuleDescription
from pairbus.client.retrying import retrying
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.token_provider import JWT, TokenProvider, token_of
from pairbus.client.validation import check_path
from pairbus.dialect.atom import (
    ENTRY_TYPE,
    NAMESPACE,
    QUEUE,
    RULE,
    SUBSCRIPTION,
    TOPIC,
    AtomEntry,
    AtomError,
    parse_entry,
    parse_feed,
)


@dataclass(frozen=True, slots=True)
class ManagedResource:
    """The path of a resource, and the entity whose keys apply to it."""

    path: str
    """The encoded path: slashes in the name of a subscription or rule are escaped."""

    owner: str = ""
    """The path of the queue or topic that it is or belongs to; ``""`` for the namespace."""

    entity: str | None = None
    """The name for errors."""

    @classmethod
    def of_entity(cls, path: str) -> Self:
        """Return the resource of a queue or topic."""
        check_path("path", path)
        return cls(quote(path, safe="/$"), path, path)

    @classmethod
    def of_subscription(cls, topic: str, name: str) -> Self:
        return cls.of_entity(topic).below("Subscriptions", name)

    @classmethod
    def of_rule(cls, topic: str, subscription: str, name: str) -> Self:
        return cls.of_subscription(topic, subscription).below("Rules", name)

    def all(self, word: str) -> Self:
        """Return the collection of its resources of one kind."""
        return type(self)(f"{self.path}/{word}", self.owner, self.entity)

    def below(self, word: str, name: str) -> Self:
        check_path("name", name)
        return type(self)(f"{self.path}/{word}/{quote(name, safe='$')}", self.owner, f"{self.entity}/{word}/{name}")


ALL_QUEUES: Final = ManagedResource("$Resources/Queues")
ALL_TOPICS: Final = ManagedResource("$Resources/Topics")
NAMESPACE_INFO: Final = ManagedResource("$namespaceinfo")


_log = logging.getLogger(__name__)

T = TypeVar("T")

API_VERSION: Final = "2021-05"
PAGE: Final = 100
"""The page size of the service."""

_TABLES: Final = (QUEUE, TOPIC, SUBSCRIPTION, RULE, NAMESPACE)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class _Outcome:
    """Records that a failed attempt may have taken effect."""

    is_unknown: bool = False

    def becomes_unknown(self) -> None:
        self.is_unknown = True


class ManagementApi:
    """Gets, creates, updates, deletes and lists the resources that Atom entries describe."""

    def __init__(
        self,
        endpoint: Endpoint,
        token_provider: TokenProvider | None,
        settings: MessagingFactorySettings,
        *,
        max_kept: int = MAX_KEPT,
    ) -> None:
        """``max_kept`` idle connections are kept; they have to be closed."""
        self._endpoint = endpoint
        self._token_provider = token_provider
        self._settings = settings
        tls = settings.tls_context() if endpoint.tls else None
        self._connections = HttpConnections(endpoint, tls, max_kept=max_kept)
        self._is_closed = False
        self._outage_log = OutageLog(endpoint, _log)

    async def close(self) -> None:
        """Reject further operations, and close idle connections; those in use are closed when they are not."""
        self._is_closed = True
        await self._connections.close()

    async def get(self, resource: ManagedResource, noun: AtomEntity[T]) -> T:
        return await self._try(resource, lambda: self._get(resource, noun))

    async def exists(self, resource: ManagedResource, noun: AtomEntity[T]) -> bool:
        try:
            await self.get(resource, noun)
        except EntityNotFoundError:
            return False
        return True

    async def create(
        self,
        resource: ManagedResource,
        noun: AtomEntity[T],
        description: Description,
        default_rule: RuleDescription | None = None,
    ) -> T:
        body = write_description(description, self._endpoint, default_rule)
        outcome = _Outcome()

        async def attempt() -> T:
            was_unknown = outcome.is_unknown
            headers = await self._supplements(description)
            try:
                response = await self._request("PUT", resource, headers=headers, body=body, outcome=outcome)
            except EntityAlreadyExistsError as error:
                # If the response to an earlier attempt was lost, that attempt may have created it. An error that it
                # exists already would make the caller believe that another client created it.
                if not was_unknown:
                    raise
                try:
                    return await self._get(resource, noun)
                except EntityNotFoundError:
                    raise error from None
            return self._described(response, resource, noun)

        return await self._try(resource, attempt)

    async def update(self, resource: ManagedResource, noun: AtomEntity[T], description: Description) -> T:
        body = write_description(description, self._endpoint)

        async def attempt() -> T:
            headers = {"If-Match": "*", **await self._supplements(description)}
            return self._described(await self._request("PUT", resource, headers=headers, body=body), resource, noun)

        return await self._try(resource, attempt)

    async def delete(self, resource: ManagedResource, noun: AtomEntity[T]) -> None:
        outcome = _Outcome()

        async def attempt() -> None:
            was_unknown = outcome.is_unknown
            try:
                # Queues and topics share their names, and the service deletes either kind.
                await self._get(resource, noun)
                await self._request("DELETE", resource, outcome=outcome)
            except EntityNotFoundError:
                if not was_unknown:  # otherwise an earlier attempt deleted it, and its response was lost
                    raise

        await self._try(resource, attempt)

    async def get_all(self, resource: ManagedResource, noun: AtomEntity[T]) -> list[T]:
        """Return all of them, page by page; each page has its own operation timeout."""
        found: list[T] = []
        has_more = True
        while has_more:
            page, has_more = await self._page(resource, noun, len(found))
            found += page
        return found

    async def _page(self, resource: ManagedResource, noun: AtomEntity[T], skip: int) -> tuple[list[T], bool]:
        query = {"$skip": str(skip), "$top": str(PAGE)}

        async def attempt() -> tuple[list[T], bool]:
            response = await self._request("GET", resource, query=query)
            try:
                feed = parse_feed(response.body, noun.table)
                # The next link's address is not followed: the token must only be sent to our endpoint.
                return [noun.read(entry) for entry in feed.entries], feed.next_link is not None and bool(feed.entries)
            except (ValueError, TypeError, OverflowError) as error:
                raise self._unreadable(error, resource) from error

        return await self._try(resource, attempt)

    async def exchange_json(self, method: str, resource: ManagedResource, document: object = None) -> Any:
        """Send a request with a JSON document, and return the document of the response.

        The request is not retried: it might take effect twice.
        """
        if self._is_closed:
            raise ClosedError("the namespace manager has been closed", entity=resource.entity)
        body = b"" if document is None else json.dumps(document).encode()
        response = await self._request(method, resource, headers={"Content-Type": "application/json"}, body=body)
        try:
            return json.loads(response.body)
        except ValueError as error:
            raise self._unreadable(error, resource) from error

    # One attempt

    async def _get(self, resource: ManagedResource, noun: AtomEntity[T]) -> T:
        return self._described(await self._request("GET", resource), resource, noun)

    def _described(self, response: HttpResponse, resource: ManagedResource, noun: AtomEntity[T]) -> T:
        try:
            entry = self._entry(response.body, resource, noun)
            return noun.read(entry)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._unreadable(error, resource) from error

    def _entry(self, body: bytes, resource: ManagedResource, noun: AtomEntity[T]) -> AtomEntry:
        try:
            entry = parse_entry(body, *_TABLES)
        except AtomError:
            parse_feed(body, *_TABLES)  # raises if it is not a feed either
            # The service returns an empty feed if the queue or topic does not exist.
            raise _not_found(resource, f"the {noun.word} '{resource.entity}' does not exist") from None
        if entry.table is not noun.table:
            raise _not_found(resource, f"'{resource.entity}' is a {WORDS[entry.table.name]}, not a {noun.word}")
        return entry

    def _unreadable(self, error: Exception, resource: ManagedResource) -> MessagingCommunicationError:
        return MessagingCommunicationError(
            f"malformed response from {self._endpoint}: {error}", entity=resource.entity, is_transient=False
        )

    async def _request(
        self,
        method: str,
        resource: ManagedResource,
        *,
        query: Mapping[str, str] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
        body: bytes = b"",
        outcome: _Outcome | None = None,
    ) -> HttpResponse:
        request = HttpRequest(
            method=method,
            target=f"/{resource.path}?{urlencode({**query, 'api-version': API_VERSION}, safe='$')}",
            headers={
                "User-Agent": "pairbus",
                **({"Content-Type": ENTRY_TYPE} if body else {}),
                **await self._authorization(resource.owner),
                **headers,
            },
            body=body,
        )
        outcome = _Outcome() if outcome is None else outcome
        was_unknown = outcome.is_unknown
        response = await self._connections.exchange(
            request,
            timeout_s=self._settings.attempt_timeout.total_seconds(),
            on_connected=outcome.becomes_unknown,
        )
        if response.status in {HTTPStatus.OK, HTTPStatus.CREATED}:
            return response
        creates = method == "PUT" and "If-Match" not in headers
        refusal = refusal_of(response, entity=resource.entity, creates=creates)
        if isinstance(refusal, ServerBusyError):
            outcome.is_unknown = was_unknown  # denied before anything was done
        raise refusal

    async def _authorization(self, path: str) -> dict[str, str]:
        if self._token_provider is None:
            return {}
        token = await token_of(self._token_provider, self._endpoint.uri(path))
        return {"Authorization": f"Bearer {token.text}" if token.type == JWT else token.text}

    async def _supplements(self, description: Description) -> dict[str, str]:
        """Return tokens for the entities to forward to, which may have other keys."""
        if self._token_provider is None:
            return {}
        targets = forwarding_targets(description).items()
        tokens = {header: await token_of(self._token_provider, self._endpoint.uri(path)) for header, path in targets}
        return {header: token.text for header, token in tokens.items()}

    async def _try(self, resource: ManagedResource, attempt: Callable[[], Awaitable[T]]) -> T:
        if self._is_closed:
            raise ClosedError("the namespace manager has been closed", entity=resource.entity)
        return await retrying(lambda: self._attempt(attempt), settings=self._settings, entity=resource.entity)

    async def _attempt(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make one attempt; log an outage once when it begins and once when it ends."""
        try:
            result = await attempt()
        except MessagingError as error:
            self._outage_log.failed(error)
            raise
        self._outage_log.reached()
        return result


def _not_found(resource: ManagedResource, reason: str) -> EntityNotFoundError:
    return EntityNotFoundError(reason, entity=resource.entity)
