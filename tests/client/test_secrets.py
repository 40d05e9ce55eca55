"""No text of ours repeats a connection string: one that was passed where something else belongs is in no log."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import pytest

import pairbus
from pairbus import (
    AccessRights,
    MessagingFactory,
    MessagingFactorySettings,
    NamespaceManager,
    PlainCredentials,
    QueueDescription,
    RetryPolicy,
    SendAvailabilityPairedNamespaceOptions,
    SharedAccessAuthorizationRule,
    SyphonSettings,
    Token,
    TokenProvider,
    blocking,
)
from pairbus.client.endpoint import open_connection_string
from pairbus.dialect.connection_string import ConnectionStringError, parse_connection_string

KEY: Final = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U="
PIECE: Final = KEY[:8].lower()
"""So much of it is too much already."""

TEXTS: Final = (
    f"Endpoint=sb://contoso;SharedAccessKeyName=app;SharedAccessKey={KEY}",
    f"SharedAccessKeyName=app;SharedAccessKey={KEY};Endpoint=sb://contoso.servicebus.windows.net/",
    f"SharedAccessKey={KEY};SharedAccessKeyName=app;Endpoint=sb://contoso.servicebus.windows.net/;EntityPath=orders",
)


OURS: Final = f"Endpoint=sb://localhost:1;SharedAccessKeyName=app;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
"""An address without a listener."""

RULE: Final = SharedAccessAuthorizationRule(
    key_name="app", rights=frozenset({AccessRights.SEND}), primary_key=KEY, secondary_key=KEY
)


def _manager(module: Any = pairbus) -> Any:
    return module.NamespaceManager.from_connection_string(OURS)


def _factory(module: Any = pairbus) -> Any:
    return module.MessagingFactory.from_connection_string(OURS)


# What takes an object, and is given a connection string.

CALLS: Final[dict[str, Callable[[Any], object]]] = {
    "options, manager": lambda text: SendAvailabilityPairedNamespaceOptions(text, text),
    "options, factory": lambda text: SendAvailabilityPairedNamespaceOptions(_manager(), text),
    "options, count": lambda text: SendAvailabilityPairedNamespaceOptions(_manager(), _factory(), text),
    "options, interval": lambda text: SendAvailabilityPairedNamespaceOptions(_manager(), _factory(), 1, text),
    "options, ping": lambda text: SendAvailabilityPairedNamespaceOptions(_manager(), _factory(), ping_interval=text),
    "options, syphon": lambda text: SendAvailabilityPairedNamespaceOptions(_manager(), _factory(), enable_syphon=text),
    "options, rules": lambda text: SendAvailabilityPairedNamespaceOptions(_manager(), _factory(), failure_rules=text),
    "options, name": lambda text: SendAvailabilityPairedNamespaceOptions(_manager(), _factory(), primary_name=text),
    "options, settings": lambda text: SendAvailabilityPairedNamespaceOptions(_manager(), _factory(), syphon=text),
    "options, engine": lambda text: SendAvailabilityPairedNamespaceOptions(_manager(), _factory(), syphon_engine=text),
    "pair": lambda text: _run(SendAvailabilityPairedNamespaceOptions(_manager(), _factory()).pair(text)),
    "pair_namespace": lambda text: _run(_factory().pair_namespace(text)),
    "factory": lambda text: MessagingFactory(text, None, MessagingFactorySettings()),
    "factory, provider": lambda text: MessagingFactory.create("sb://contoso", text),
    "factory, settings": lambda text: MessagingFactory.create("sb://contoso", None, text),
    "factory, endpoint": MessagingFactory.create,
    "factory, string and settings": lambda text: MessagingFactory.from_connection_string(text, text),
    "factory, bytes": lambda text: MessagingFactory.from_connection_string(text.encode()),
    "factory, bytes for an endpoint": lambda text: MessagingFactory.create(text.encode()),
    "manager": NamespaceManager,
    "manager, provider": lambda text: NamespaceManager("sb://contoso", text),
    "manager, settings": lambda text: NamespaceManager("sb://contoso", None, text),
    "manager, bytes": lambda text: NamespaceManager.from_connection_string(text.encode()),
    "endpoint": pairbus.Endpoint.parse,
    "credential": TokenProvider.from_credential,
    "signature": TokenProvider.from_token,
    "settings, timeout": lambda text: MessagingFactorySettings(operation_timeout=text),
    "settings, policy": lambda text: MessagingFactorySettings(retry_policy=text),
    "settings, transport": lambda text: MessagingFactorySettings(transport=text),
    "settings, certificates": lambda text: MessagingFactorySettings(ca_file=text),
    "policy": lambda text: RetryPolicy(minimum_backoff=text),
    "syphon settings": lambda text: SyphonSettings(long_poll=text),
    "queue description": lambda text: QueueDescription("orders", lock_duration=text),
    "path of a queue": QueueDescription,
    "rule": lambda text: SharedAccessAuthorizationRule(key_name="app", rights=text),
    "create_queue": lambda text: _run(_manager().create_queue(text)),
    "get_queue": lambda text: _run(_manager().get_queue(text)),
    "sender": lambda text: _run(_factory().create_message_sender(text)),
    "receiver": lambda text: _run(_factory().create_message_receiver(text)),
    "receiver, mode": lambda text: _run(_factory().create_message_receiver("orders", text)),
    "receiver, prefetch": lambda text: _run(_factory().create_message_receiver("orders", prefetch_count=text)),
    "queue client": lambda text: _run(_factory().create_queue_client(text)),
    "topic client": lambda text: _run(_factory().create_topic_client(text)),
    "subscription client": lambda text: _run(_factory().create_subscription_client(text, "s")),
    "subscription client, name": lambda text: _run(_factory().create_subscription_client("t", text)),
    "session": lambda text: _run(_factory().accept_message_session(text)),
    "session, wait": lambda text: _run(_factory().accept_message_session("orders", server_wait_time=text)),
    "blocking, options": lambda text: blocking.SendAvailabilityPairedNamespaceOptions(text, text),
    "blocking, options, factory": lambda text: blocking.SendAvailabilityPairedNamespaceOptions(
        _manager(blocking), text
    ),
    "blocking, factory": blocking.MessagingFactory.create,
    "blocking, manager": blocking.NamespaceManager.create,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("text", TEXTS, ids=["endpoint first", "name first", "key first"])
def test_e3_connection_string_in_wrong_place_is_not_repeated(call: Callable[[Any], object], text: str) -> None:
    try:
        made = call(text)
    except Exception as error:  # noqa: BLE001 (no error may show the key)
        _check(*traceback.format_exception_only(error), *_chain(error))
    else:
        _check(repr(made))


# What has a key, and is shown.


HOLDERS: Final[dict[str, Callable[[], object]]] = {
    "manager": _manager,
    "factory": _factory,
    "blocking manager": lambda: _manager(blocking),
    "blocking factory": lambda: _factory(blocking),
    "provider": lambda: TokenProvider.from_key("app", KEY),
    "opened connection string": lambda: open_connection_string(OURS),
    "credentials": lambda: PlainCredentials("app", KEY),
    "token": lambda: Token(text=KEY, type="jwt", expires_s=1.0),
    "rule": lambda: RULE,
    "description": lambda: QueueDescription("orders", authorization_rules=(RULE,)),
    "options": lambda: SendAvailabilityPairedNamespaceOptions(_manager(), _factory()),
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS.keys())
def test_e3_repr_does_not_show_key(make: Callable[[], object]) -> None:
    value = make()
    _check(repr(value), str(value), f"{[value]}")


def test_e3_parsed_connection_string_shows_no_key() -> None:
    _check(repr(parse_connection_string(OURS)))


# What is nearly a connection string.


@pytest.mark.parametrize(
    "text",
    [
        f"Endpoint=sb://localhost:5672 SharedAccessKey={KEY}",
        f"Endpoint=sb://localhost SharedAccessKey={KEY}",
        f"Endpoint=sb://localhost;SharedAccessKey:{KEY}",
        f"Endpoint=sb://localhost;{KEY}",
        f"Endpoint=sb://localhost;SharedAccessKeyName=app;SharedAccessKey={KEY};{KEY}",
        f"Endpoint=sb://localhost;SharedAccessKeyName=app;{KEY}=x",
        f"Endpoint=sb://localhost;{KEY[:20]}=x",
        f"Endpoint=sb://localhost;{KEY[:20]}=x;{KEY[:20]}=y",
        f"Endpoint=sb://localhost;SharedAccessKey={KEY}",
        f"Endpoint=sb://localhost;SharedAccessKeyName=;SharedAccessKey={KEY}",
        f"Endpoint=sb://localhost;SharedAccessKeyName=app;SharedAccessKey={KEY};SharedAccessKey={KEY}",
        f"Endpoint=sb://localhost;SharedAccessSignature={KEY}",
        f"Endpoint=sb://localhost;SharedAccessSignature=SharedAccessSignature sr=x&sig={KEY}&se=1&skn=app",
        f"Endpoint=sb://localhost;SharedAccessSignature=SharedAccessSignature sr=x&sig={KEY}&se=soon&skn=app",
        f"Endpoint=sb://localhost;SharedAccessKeyName=app;SharedAccessKey={KEY};SharedAccessSignature={KEY}",
        f"Endpoint=sb://[{KEY};SharedAccessKeyName=app",
        f"Endpoint=sb://{KEY}@localhost:x;SharedAccessKeyName=app",
        f"Endpont=sb://localhost;SharedAccessKeyName=app;SharedAccessKey={KEY}",
        f"SharedAccessKeyName=app;SharedAccessKey={KEY}",
        KEY,
        f"{KEY};{KEY}",
    ],
)
def test_e3_malformed_connection_string_is_rejected_without_its_secrets(text: str) -> None:
    for opened in (
        open_connection_string,
        MessagingFactory.from_connection_string,
        NamespaceManager.from_connection_string,
        blocking.MessagingFactory.from_connection_string,
    ):
        try:
            made: object = opened(text)
        except ConnectionStringError as error:
            _check(*_chain(error))
        else:
            _check(repr(made))


# Helpers.


def _run(work: Any) -> object:
    """Return the result as far as it is immediate: nothing listens at the addresses that these would connect to."""

    async def briefly() -> object:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                return await work
        return None

    return asyncio.run(briefly())


def _chain(error: BaseException | None) -> list[str]:
    """The texts of an error, and of those that led to it, as a log would show them."""
    found: list[str] = []
    while error is not None:
        found += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _check(*texts: str) -> None:
    for text in texts:
        assert PIECE not in text.lower(), text


def test_key_check_is_case_insensitive() -> None:
    with pytest.raises(AssertionError):
        _check(f"{datetime.now(UTC)}: {KEY.lower()[:30]}")
