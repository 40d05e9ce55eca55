"""The content of a namespace for a client, as JSON: entities with their settings and rules, and every message."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from hashlib import sha256
from typing import Any, Final

from pairbus import MessagingFactory, NamespaceManager, ReceivedMessage
from pairbus.cli.message_lines import document_of

DEAD_LETTERS: Final = "$DeadLetterQueue"
TRANSFER_DEAD_LETTERS: Final = "$Transfer/$DeadLetterQueue"
_PAGE: Final = 500
_MS: Final = timedelta(milliseconds=1)
_MOMENTARY: Final = frozenset({"accessed_at", "size_in_bytes"})
"""Properties of an entity that are not stored, or that versions may count differently."""


async def read_content(connection: str) -> dict[str, Any]:
    """Return everything that can be seen without receiving anything."""
    async with (
        NamespaceManager.from_connection_string(connection) as manager,
        MessagingFactory.from_connection_string(connection) as factory,
    ):
        found = await _entities(manager)
        paths = [*found["queues"], *(f"{topic}/Subscriptions/{name}" for topic, name in _subscriptions(found))]
        found["messages"] = {
            path: [message_values(message, path) for message in messages]
            for path, messages in [(path, await peek_all(factory, path)) for path in _with_parts(paths)]
            if messages
        }
    return found


async def peek_all(factory: MessagingFactory, path: str) -> list[ReceivedMessage]:
    """Return all messages of an entity, in whatever state, in the order of their numbers."""
    found: list[ReceivedMessage] = []
    async with await factory.create_message_receiver(path) as receiver:
        while page := await receiver.peek(_PAGE, found[-1].sequence_number + 1 if found else 0):
            found += page
    return found


def message_values(message: ReceivedMessage, path: str) -> dict[str, Any]:
    """Return a message as JSON, with the digest of its body in place of that if it is bytes."""
    document = document_of(message, path)
    if "body_kind" not in document:
        document.pop("body", None)
        document.pop("body_base64", None)
        document |= {"body_bytes": len(message.body), "body_sha256": sha256(message.body).hexdigest()}
    return document


def plain(value: Any) -> Any:
    """Return a description as JSON has it: times in milliseconds, and of what is a choice which class it is."""
    if is_dataclass(value):
        named = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return {"class": type(value).__name__, **named}
    match value:
        case timedelta():
            return None if value == timedelta.max else value // _MS
        case datetime():
            return value.isoformat()
        case Enum():
            return value.value
        case bytes():
            return b64encode(value).decode()
        case frozenset():
            return sorted(map(plain, value))
        case Mapping():
            return {name: plain(each) for name, each in value.items()}
        case tuple() | list():
            return [*map(plain, value)]
    return value


def expect(expected: Any, found: Any, where: str = "") -> None:
    """Check that all is there that was there; what a later version says beside it does not matter."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        assert expected.keys() <= found.keys(), f"{where} lacks {sorted(expected.keys() - found.keys())}"
        for name, value in expected.items():
            expect(value, found[name], f"{where}/{name}")
    elif isinstance(expected, list):
        assert isinstance(found, list), where
        assert len(expected) == len(found), f"{where} has {len(found)} instead of {len(expected)}: {found}"
        for index, (before, after) in enumerate(zip(expected, found, strict=True)):
            expect(before, after, f"{where}/{index}")
    else:
        assert expected == found, where


async def _entities(manager: NamespaceManager) -> dict[str, Any]:
    queues = {queue.path: {"settings": plain(queue)} for queue in await manager.get_queues()}
    for info in await manager.get_queues_runtime_info():
        queues[info.path]["counts"] = _without_momentary(plain(info))
    topics = {
        topic.path: {"settings": plain(topic), "subscriptions": await _subscriptions_of(manager, topic.path)}
        for topic in await manager.get_topics()
    }
    for topic_info in await manager.get_topics_runtime_info():
        topics[topic_info.path]["counts"] = _without_momentary(plain(topic_info))
    return {"queues": queues, "topics": topics}


async def _subscriptions_of(manager: NamespaceManager, topic: str) -> dict[str, Any]:
    found = {one.name: {"settings": plain(one)} for one in await manager.get_subscriptions(topic)}
    for info in await manager.get_subscriptions_runtime_info(topic):
        found[info.name]["counts"] = _without_momentary(plain(info))
    for name, subscription in found.items():
        subscription["rules"] = [plain(rule) for rule in await manager.get_rules(topic, name)]
    return found


def _without_momentary(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name not in _MOMENTARY}


def _subscriptions(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for topic, description in found["topics"].items():
        for name in description["subscriptions"]:
            yield topic, name


def _with_parts(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield from (path, f"{path}/{DEAD_LETTERS}", f"{path}/{TRANSFER_DEAD_LETTERS}")
