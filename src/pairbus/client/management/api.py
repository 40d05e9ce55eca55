"""Requests to a namespace's management API: signed, tried again where that can help, and refused with our errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, TypeVar
from urllib.parse import urlencode

from pairbus.client.absence import Absence
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import (
    ClosedError,
    EntityAlreadyExistsError,
    EntityNotFoundError,
    MessagingCommunicationError,
    MessagingError,
    ServerBusyError,
)
from pairbus.client.management.atom import WORDS, Description, Noun, forwarding_targets, write_description
from pairbus.client.management.http import HttpRequest, HttpResponse, exchange
from pairbus.client.management.refusals import refusal_of
from pairbus.client.management.resource import Resource
from pairbus.client.management.rules import RuleDescription
from pairbus.client.retrying import retrying
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.token_provider import JWT, TokenProvider, token_of
from pairbus.dialect.atom import (
    ENTRY_TYPE,
    NAMESPACE,
    QUEUE,
    RULE,
    SUBSCRIPTION,
    TOPIC,
    AtomError,
    Entry,
    parse_entry,
    parse_feed,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

API_VERSION: Final = "2021-05"
PAGE: Final = 100
"""As many entries as the service gives at once."""

_TABLES: Final = (QUEUE, TOPIC, SUBSCRIPTION, RULE, NAMESPACE)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class _Outcome:
    """Whether a try that failed may have done its work all the same."""

    is_unknown: bool = False

    def becomes_unknown(self) -> None:
        self.is_unknown = True


class ManagementApi:
    """Gets, makes, changes, deletes and lists what entries describe."""

    def __init__(
        self, endpoint: Endpoint, token_provider: TokenProvider | None, settings: MessagingFactorySettings
    ) -> None:
        self._endpoint = endpoint
        self._token_provider = token_provider
        self._settings = settings
        self._tls = settings.tls_context() if endpoint.tls else None
        self._is_closed = False
        self._absence = Absence(endpoint, _log)

    def close(self) -> None:
        """Let nothing begin any more. There is nothing else to close: each request has a connection of its own."""
        self._is_closed = True

    async def get(self, resource: Resource, noun: Noun[T]) -> T:
        return await self._try(resource, lambda: self._get(resource, noun))

    async def exists(self, resource: Resource, noun: Noun[T]) -> bool:
        try:
            await self.get(resource, noun)
        except EntityNotFoundError:
            return False
        return True

    async def create(
        self,
        resource: Resource,
        noun: Noun[T],
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
                # Where the answer to an earlier try was lost, it may be that try that has made it. A caller who is told
                # that there is one already would take it for somebody else's.
                if not was_unknown:
                    raise
                try:
                    return await self._get(resource, noun)
                except EntityNotFoundError:
                    raise error from None
            return self._described(response, resource, noun)

        return await self._try(resource, attempt)

    async def update(self, resource: Resource, noun: Noun[T], description: Description) -> T:
        body = write_description(description, self._endpoint)

        async def attempt() -> T:
            headers = {"If-Match": "*", **await self._supplements(description)}
            return self._described(await self._request("PUT", resource, headers=headers, body=body), resource, noun)

        return await self._try(resource, attempt)

    async def delete(self, resource: Resource, noun: Noun[T]) -> None:
        outcome = _Outcome()

        async def attempt() -> None:
            was_unknown = outcome.is_unknown
            try:
                # Queues and topics share their names, and the service deletes whichever it is.
                await self._get(resource, noun)
                await self._request("DELETE", resource, outcome=outcome)
            except EntityNotFoundError:
                if not was_unknown:  # otherwise an earlier try has deleted it, and its answer was lost
                    raise

        await self._try(resource, attempt)

    async def get_all(self, resource: Resource, noun: Noun[T]) -> list[T]:
        """All of them, a page at a time; each page has the time that an operation has."""
        found: list[T] = []
        has_more = True
        while has_more:
            page, has_more = await self._page(resource, noun, len(found))
            found += page
        return found

    async def _page(self, resource: Resource, noun: Noun[T], skip: int) -> tuple[list[T], bool]:
        query = {"$skip": str(skip), "$top": str(PAGE)}

        async def attempt() -> tuple[list[T], bool]:
            response = await self._request("GET", resource, query=query)
            try:
                feed = parse_feed(response.body, noun.table)
                # The link's address is not followed: it is ours to say where our token goes.
                return [noun.read(entry) for entry in feed.entries], feed.next_link is not None and bool(feed.entries)
            except (ValueError, TypeError, OverflowError) as error:
                raise self._unreadable(error, resource) from error

        return await self._try(resource, attempt)

    # One try

    async def _get(self, resource: Resource, noun: Noun[T]) -> T:
        return self._described(await self._request("GET", resource), resource, noun)

    def _described(self, response: HttpResponse, resource: Resource, noun: Noun[T]) -> T:
        try:
            entry = self._entry(response.body, resource, noun)
            return noun.read(entry)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._unreadable(error, resource) from error

    def _entry(self, body: bytes, resource: Resource, noun: Noun[T]) -> Entry:
        try:
            entry = parse_entry(body, *_TABLES)
        except AtomError:
            parse_feed(body, *_TABLES)  # or it is something else, which is an error
            # The service answers with an empty feed where there is no queue or topic.
            raise _not_found(resource, f"there is no {noun.word} '{resource.entity}'") from None
        if entry.table is not noun.table:
            raise _not_found(resource, f"'{resource.entity}' is a {WORDS[entry.table.name]} and no {noun.word}")
        return entry

    def _unreadable(self, error: Exception, resource: Resource) -> MessagingCommunicationError:
        return MessagingCommunicationError(
            f"the answer of {self._endpoint} cannot be understood: {error}", entity=resource.entity, is_transient=False
        )

    async def _request(
        self,
        method: str,
        resource: Resource,
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
        response = await exchange(
            self._endpoint,
            request,
            tls=self._tls,
            timeout_s=self._settings.attempt_timeout.total_seconds(),
            on_connected=outcome.becomes_unknown,
        )
        if response.status in {HTTPStatus.OK, HTTPStatus.CREATED}:
            return response
        creates = method == "PUT" and "If-Match" not in headers
        refusal = refusal_of(response, entity=resource.entity, creates=creates)
        if isinstance(refusal, ServerBusyError):
            outcome.is_unknown = was_unknown  # denied, before anything was done
        raise refusal

    async def _authorization(self, path: str) -> dict[str, str]:
        if self._token_provider is None:
            return {}
        token = await token_of(self._token_provider, self._endpoint.uri(path))
        return {"Authorization": f"Bearer {token.text}" if token.type == JWT else token.text}

    async def _supplements(self, description: Description) -> dict[str, str]:
        """Tokens for the entities to forward to, which may have keys of their own."""
        if self._token_provider is None:
            return {}
        targets = forwarding_targets(description).items()
        tokens = {header: await token_of(self._token_provider, self._endpoint.uri(path)) for header, path in targets}
        return {header: token.text for header, token in tokens.items()}

    async def _try(self, resource: Resource, attempt: Callable[[], Awaitable[T]]) -> T:
        if self._is_closed:
            raise ClosedError("the namespace manager has been closed", entity=resource.entity)
        return await retrying(lambda: self._told(attempt), settings=self._settings, entity=resource.entity)

    async def _told(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try; an outage is told once when it begins, and once when it ends."""
        try:
            result = await attempt()
        except MessagingError as error:
            self._absence.failed(error)
            raise
        self._absence.reached()
        return result


def _not_found(resource: Resource, reason: str) -> EntityNotFoundError:
    return EntityNotFoundError(reason, entity=resource.entity)
