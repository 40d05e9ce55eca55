"""A data directory with something of everything that a namespace keeps, killed when all of it was confirmed."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from pairbus import (
    AccessRights,
    BodyKind,
    BrokeredMessage,
    CorrelationFilter,
    EntityStatus,
    FalseFilter,
    MessageReceiver,
    MessagingFactory,
    NamespaceManager,
    QueueDescription,
    ReceiveMode,
    RuleDescription,
    SharedAccessAuthorizationRule,
    SqlFilter,
    SqlRuleAction,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from pairbus.client.message import encode_brokered
from pairbus.dialect.annotations import TRANSFER_DESTINATION
from pairbus.wire import Char, Symbol, UInt
from tests.formats.namespace_content import DEAD_LETTERS, peek_all, read_content
from tests.pairing.processes import NamespaceProcess
from tests.server.test_e6_damage import overwrite
from tests.waiting import eventually_async

KIND: Final = "namespace"
NAME: Final = "contoso"
DAY: Final = timedelta(days=1)

_LONG_ID: Final = "\N{PACKAGE}" * 120
"""With more than 400 bytes in UTF-8 it stands in a key by its digest."""

_FULL_ID: Final = "\N{PACKAGE}" * 100
"""With 400 bytes it stands there in full."""

_MARK: Final = b"the-body-that-is-damaged-"
_KEYS: Final = """
[[keys]]
name = "reporting"
rights = ["listen"]
primary_key = "aSecretThatOnlyReportingKnows"
secondary_key = "anotherSecretOfReporting"

[[keys]]
name = "shop"
rights = ["send"]
primary_key = "aSecretThatOnlyTheShopKnows"
"""
_QUEUE_KEY: Final = SharedAccessAuthorizationRule(
    "till", rights={AccessRights.SEND, AccessRights.LISTEN}, primary_key="first of the till", secondary_key="second"
)
_TOPIC_KEY: Final = SharedAccessAuthorizationRule(
    "editor", rights={AccessRights.SEND}, primary_key="first of the editor", secondary_key="second"
)
_ACCESS: Final = [
    {"key_name": "reporting", "key": "aSecretThatOnlyReportingKnows", "path": "plain", "rights": ["listen"]},
    {"key_name": "reporting", "key": "anotherSecretOfReporting", "path": "plain", "rights": ["listen"]},
    {"key_name": "shop", "key": "aSecretThatOnlyTheShopKnows", "path": "plain", "rights": ["send"]},
    {"key_name": "till", "key": "second", "path": "keys", "rights": ["send", "listen"]},
    {"key_name": "till", "key": "second", "path": "plain", "rights": []},
    {"key_name": "editor", "key": "first of the editor", "path": "news", "rights": ["send"]},
]
"""The claims of each key."""

_QUEUES: Final = (
    QueueDescription("plain"),
    QueueDescription("states", max_delivery_count=3, enable_dead_lettering_on_message_expiration=True),
    QueueDescription("sessions", requires_session=True),
    QueueDescription("partitioned", enable_partitioning=True),
    QueueDescription(
        "once", requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(days=7)
    ),
    QueueDescription(
        "once-partitioned",
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(days=7),
        enable_partitioning=True,
    ),
    QueueDescription("target"),
    QueueDescription("source", forward_to="target"),
    QueueDescription("graves"),
    QueueDescription("mortal", forward_dead_lettered_messages_to="graves"),
    QueueDescription("via"),
    QueueDescription("closed", status=EntityStatus.DISABLED),
    QueueDescription("keys", authorization_rules=(_QUEUE_KEY,)),
    QueueDescription(
        "settings/of-a-queue",
        lock_duration=timedelta(seconds=17),
        max_size_in_megabytes=2048,
        default_message_time_to_live=timedelta(days=400),
        enable_dead_lettering_on_message_expiration=True,
        max_delivery_count=7,
        enable_batched_operations=False,
        status=EntityStatus.RECEIVE_DISABLED,
        auto_delete_on_idle=timedelta(days=300),
        support_ordering=True,
        user_metadata="größe <&> metadata",
    ),
)
_TOPICS: Final = (
    TopicDescription("news", authorization_rules=(_TOPIC_KEY,)),
    TopicDescription(
        "settings/of-a-topic",
        max_size_in_megabytes=3072,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=3),
        default_message_time_to_live=timedelta(days=500),
        enable_batched_operations=False,
        status=EntityStatus.SEND_DISABLED,
        enable_partitioning=True,
        user_metadata="metadata of a topic",
    ),
)
_MIDNIGHT: Final = datetime(2026, 1, 1, tzinfo=UTC)
_SUBSCRIPTIONS: Final[tuple[tuple[SubscriptionDescription, tuple[RuleDescription, ...]], ...]] = (
    (SubscriptionDescription("all"), ()),
    (SubscriptionDescription("none"), (RuleDescription("never", filter=FalseFilter()),)),
    (
        SubscriptionDescription("sql"),
        (
            RuleDescription(
                "chosen",
                filter=SqlFilter(
                    "colour = @colour AND quantity > @least AND price < @most AND sold >= @since AND @really = TRUE",
                    {"@colour": "red", "@least": 5, "@most": 2.5, "@since": _MIDNIGHT, "@really": True},
                ),
            ),
        ),
    ),
    (
        SubscriptionDescription("correlated"),
        (
            RuleDescription(
                "equal",
                filter=CorrelationFilter(
                    correlation_id="c-1", label="order", properties={"region": "north", "quantity": 7}
                ),
            ),
        ),
    ),
    (
        SubscriptionDescription("acted"),
        (
            RuleDescription(
                "changed",
                filter=SqlFilter("quantity IS NOT NULL"),
                action=SqlRuleAction(
                    "SET quantity = quantity + @more; SET sys.Label = 'changed'; REMOVE colour", {"@more": 10}
                ),
            ),
        ),
    ),
    (
        SubscriptionDescription("many"),
        (
            RuleDescription("first", filter=SqlFilter("region LIKE 'n%'"), action=SqlRuleAction("SET rule = 'first'")),
            RuleDescription("second", filter=TrueFilter(), action=SqlRuleAction("SET rule = 'second'")),
        ),
    ),
    (SubscriptionDescription("onward", forward_to="target"), ()),
    (SubscriptionDescription("visits", requires_session=True), ()),
    (
        SubscriptionDescription(
            "settings",
            lock_duration=timedelta(seconds=19),
            default_message_time_to_live=timedelta(days=600),
            enable_dead_lettering_on_message_expiration=True,
            enable_dead_lettering_on_filter_evaluation_exceptions=False,
            max_delivery_count=9,
            enable_batched_operations=False,
            status=EntityStatus.RECEIVE_DISABLED,
            auto_delete_on_idle=timedelta(days=200),
            forward_dead_lettered_messages_to="graves",
            user_metadata="metadata of a subscription",
        ),
        (RuleDescription("never", filter=FalseFilter()),),
    ),
)
"""With the rules that take the place of the default."""

_PROBES: Final[tuple[dict[str, Any], ...]] = (
    {"label": "order", "correlation_id": "c-1", "application_properties": {"region": "north", "quantity": 7}},
    {"application_properties": {"colour": "red", "quantity": 6, "price": 2.25, "sold": _MIDNIGHT + DAY}},
    {"application_properties": {"colour": "blue", "quantity": 6, "price": 2.25, "sold": _MIDNIGHT + DAY}},
    {"label": "order", "session_id": "s-1"},
)
"""Messages for the topic that its rules tell apart."""


def make(directory: Path) -> dict[str, Any]:
    """Fill a data directory, and return what must be found in it."""
    data = directory / NAME
    config = directory.with_name("settings.toml")
    config.write_text(_KEYS, encoding="utf-8")
    with NamespaceProcess(data, "--config", str(config)) as served:
        asyncio.run(_damage(served, data))
        expected = asyncio.run(_fill(served.connection_string))
        served.kill()
    return {"name": NAME, "access": _ACCESS, "quarantined": 1, **expected}


async def _damage(served: NamespaceProcess, data: Path) -> None:
    """Create a quarantined record: a body that was overwritten while the namespace was down."""
    async with NamespaceManager.from_connection_string(served.connection_string) as manager:
        await manager.create_queue("damaged")
    async with MessagingFactory.from_connection_string(served.connection_string) as factory:
        await _send(factory, "damaged", [BrokeredMessage(_MARK + bytes(1_000), message_id="damaged-0")])
        await _send(factory, "damaged", _numbered("damaged", range(1, 3)))
    await asyncio.to_thread(served.kill)
    overwrite(data / "data.mdb", _MARK)
    await asyncio.to_thread(served.start)
    async with MessagingFactory.from_connection_string(served.connection_string) as factory:
        async with await factory.create_message_receiver("damaged") as receiver:
            await receiver.abandon(await _receive(receiver, 2))
        assert [message.message_id for message in await peek_all(factory, f"damaged/{DEAD_LETTERS}")] == ["damaged-0"]


async def _fill(connection: str) -> dict[str, Any]:
    later = datetime.now(UTC).replace(microsecond=0) + DAY
    async with (
        NamespaceManager.from_connection_string(connection) as manager,
        MessagingFactory.from_connection_string(connection) as factory,
    ):
        await _create(manager)
        await _fill_plain(factory)
        await _fill_states(factory, later)
        sessions = await _fill_sessions(factory)
        await _fill_partitions(factory)
        history = await _fill_histories(factory)
        await _fill_forwards(factory)
        await _fill_topic(factory, later)
        return {
            **await read_content(connection),
            "connection": connection,
            "sessions": sessions,
            "history": history,
            "routing": {"topic": "news", "everything": "all"},
            "forwards": {"source": "target"},
            "later": {
                "due": {
                    "states": ["scheduled-0", "scheduled-1"],
                    "news/Subscriptions/all": ["news-later"],
                    "news/Subscriptions/many": ["news-later"],
                    "news/Subscriptions/visits/$DeadLetterQueue": ["news-later"],
                    "target": ["news-later"],
                    "states/$DeadLetterQueue": ["short-lived"],
                },
                "gone": {"states": ["short-lived"]},
            },
        }


async def _create(manager: NamespaceManager) -> None:
    for queue in _QUEUES:
        await manager.create_queue(queue)
    for topic in _TOPICS:
        await manager.create_topic(topic)
    for subscription, rules in _SUBSCRIPTIONS:
        await manager.create_subscription("news", subscription)
        for rule in rules:
            await manager.create_rule("news", subscription.name, rule)
        if rules:
            await manager.delete_rule("news", subscription.name, "$Default")


def _numbered(name: str, numbers: Iterable[int], **properties: Any) -> list[BrokeredMessage]:
    return [
        BrokeredMessage(f"body {number} of {name}", message_id=f"{name}-{number}", **properties) for number in numbers
    ]


async def _send(factory: MessagingFactory, path: str, messages: Iterable[BrokeredMessage]) -> None:
    async with await factory.create_message_sender(path) as sender:
        for message in messages:
            await sender.send(message)


async def _receive(receiver: MessageReceiver, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += await receiver.receive(count - len(found), timedelta(seconds=30))
    return found


async def _fill_plain(factory: MessagingFactory) -> None:
    """Messages of all kinds; the first one was delivered twice, and changed."""
    typed = {
        "text": "größe",
        "whole": 2**40,
        "uint": UInt(7),
        "real": 2.5,
        "yes": True,
        "nothing": None,
        "when": _MIDNIGHT,
        "uuid": UUID(int=7),
        "octets": b"\x00\xff",
        "char": Char("x"),
        "symbol": Symbol("name"),
    }
    await _send(factory, "plain", _numbered("plain", [0], application_properties={"kept": 1, "changed": 1}))
    for delivery in range(2):
        async with await factory.create_message_receiver("plain") as receiver:
            (message,) = await _receive(receiver, 1)
            await receiver.abandon(message, {"changed": delivery + 2, "added": f"at {delivery}"})
    await _send(
        factory,
        "plain",
        [
            BrokeredMessage(
                "with everything",
                message_id="plain-1",
                label="label",
                content_type="text/plain",
                correlation_id=UUID(int=1),
                to="to",
                reply_to="reply to",
                reply_to_session_id="reply to session",
                time_to_live=timedelta(days=36_500),
                application_properties=typed,
            ),
            BrokeredMessage({"map": [1, "two", None]}, message_id=77, body_kind=BodyKind.VALUE),
            BrokeredMessage(["one", 2, 3.5], message_id=_LONG_ID, body_kind=BodyKind.SEQUENCE),
            BrokeredMessage(b"", message_id=""),
            BrokeredMessage(b"".join(b"%06d" % number for number in range(33_000)), message_id="large"),
        ],
    )


async def _fill_states(factory: MessagingFactory, later: datetime) -> None:
    """Messages that wait, are deferred or scheduled, and dead letters of each sort."""
    await _send(factory, "states", _numbered("states", range(6)))
    async with await factory.create_message_receiver("states") as receiver:
        first, second, buried, worn, *rest = await _receive(receiver, 6)
        await receiver.defer(first)
        await receiver.defer(second, {"why": "later"})
        await receiver.dead_letter(buried, "no good", "its description", {"added": True})
        await receiver.abandon([worn, *rest])
    for _ in range(2):  # it comes before the others, until it was delivered too often
        async with await factory.create_message_receiver("states") as receiver:
            await receiver.abandon(await _receive(receiver, 1))
    async with await factory.create_message_sender("states") as sender:
        await sender.schedule(_numbered("scheduled", range(2), time_to_live=timedelta(days=36_500)), later)
        await sender.schedule(_numbered("cancelled", [0]), later)
        await sender.send(BrokeredMessage("gone soon", message_id="expired", time_to_live=timedelta(seconds=1)))
        await sender.send(BrokeredMessage("gone in a day", message_id="short-lived", time_to_live=DAY))
        numbers = [
            message.sequence_number
            for message in await peek_all(factory, "states")
            if str(message.message_id).startswith("cancelled")
        ]
        await sender.cancel_scheduled(numbers)

    async def are_buried() -> bool:
        found = await peek_all(factory, f"states/{DEAD_LETTERS}")
        return {message.message_id for message in found} == {"states-2", "states-3", "expired"}

    await eventually_async(are_buried)


async def _fill_sessions(factory: MessagingFactory) -> dict[str, dict[str, str | None]]:
    """Sessions with messages, with a state, and with both; return their states."""
    names = ("s-1", "s-2", _LONG_ID, _FULL_ID)
    for number in range(8):
        await _send(factory, "sessions", _numbered("sessions", [number], session_id=names[number % 4]))
    states: dict[str, bytes | None] = {
        "s-1": b"state of s-1",
        "s-2": None,
        "s-3": bytes(range(256)),
        _LONG_ID: b"long",
        _FULL_ID: b"full",
    }
    for session_id, state in states.items():
        async with await factory.accept_message_session("sessions", session_id) as session:
            if state is not None:
                await session.set_state(state)
            if session_id == "s-2":
                (message,) = await _receive(session, 1)
                await session.defer(message)
    return {
        "sessions": {name: None if state is None else b64encode(state).decode() for name, state in states.items()},
        "news/Subscriptions/visits": {"s-1": None},
    }


async def _fill_partitions(factory: MessagingFactory) -> None:
    for number in range(12):
        await _send(factory, "partitioned", _numbered("partitioned", [number], partition_key=f"key {number % 5}"))
    async with await factory.create_message_receiver("partitioned", ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        await _receive(receiver, 2)


async def _fill_histories(factory: MessagingFactory) -> dict[str, list[dict[str, Any]]]:
    """Queues that remember ids: of messages that wait, and of those that were received; return what they remember."""
    ids = ["once-0", "once-1", "once-2", _LONG_ID, _FULL_ID]
    await _send(factory, "once", [BrokeredMessage("first", message_id=one) for one in ids])
    await _send(factory, "once", [BrokeredMessage("again", message_id=one) for one in ids])
    async with await factory.create_message_receiver("once", ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        await _receive(receiver, 2)
    keyed: list[dict[str, Any]] = [
        {"message_id": f"id {number % 3}", "partition_key": f"key {number % 2}"} for number in range(6)
    ]
    for text in ("first", "again"):
        await _send(factory, "once-partitioned", [BrokeredMessage(text, **each) for each in keyed])
    return {"once": [{"message_id": one} for one in ids], "once-partitioned": keyed}


async def _fill_forwards(factory: MessagingFactory) -> None:
    """Messages that were forwarded, dead letters that were, and one that its destination has refused."""
    await _send(factory, "source", _numbered("forwarded", range(2)))
    await _send(factory, "mortal", _numbered("mortal", range(2)))
    async with await factory.create_message_receiver("mortal") as receiver:
        await receiver.dead_letter(await _receive(receiver, 2), "its time had come")
    await factory.greet("closed")  # with a token for the destination, too
    link = await factory.open_sending_link("via", {Symbol(TRANSFER_DESTINATION): "closed"})
    await link.send(encode_brokered(BrokeredMessage("not taken", message_id="refused-0")))
    await link.close()


async def _fill_topic(factory: MessagingFactory, later: datetime) -> None:
    """Messages that the rules tell apart, and one for later."""
    for number, probe in enumerate(_PROBES):
        await _send(factory, "news", [BrokeredMessage("probe", message_id=f"probe-{number}", **probe)])
    async with await factory.create_message_sender("news") as sender:
        await sender.schedule(BrokeredMessage("later", message_id="news-later"), later)
