"""Dead letters sent again: a copy to the entity, and the dead letter completed, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

from pairbus.broker import (
    Address,
    Delivery,
    Disposition,
    LockLostError,
    Message,
    MessageNotFoundError,
    Part,
    QueueDescription,
    Send,
    Settle,
    TopicDescription,
    Verdict,
)
from pairbus.server.host import NamespaceHost
from pairbus.server.messages import received_message
from pairbus.wire import APPLICATION_PROPERTIES, FOOTER, HEADER, PROPERTIES, Sections, encode

_AT_ONCE: Final = 10
_LOOKED_THROUGH: Final = 2_000
"""How many dead letters are taken in hand to get at one behind them."""

_RELEASE: Final = Verdict(disposition=Disposition.RELEASE)


def destination_of(address: Address) -> Address:
    """Where the dead letters of an entity are sent again: a subscription's go to its topic."""
    return Address.of(address.entity)


async def resubmit(host: NamespaceHost, address: Address, sequence: int) -> None:
    """Send one dead letter again; raises ``BrokerError`` or ``StoreError``, and then nothing has changed.

    Receivers take dead letters in order, and so those before it are taken in hand too, and put back as they were:
    nobody notices, because nothing else happens in between.
    """
    taken: list[bytes] = []
    try:
        delivery = _take(host, address, sequence, taken)
        _send_again(host, address, [delivery])
    finally:
        _put_back(host, address, taken)
    await host.durable()


async def resubmit_all(host: NamespaceHost, address: Address) -> int:
    """Send all dead letters again that are there now and that nobody has; how many.

    Raises ``BrokerError`` or ``StoreError`` for the first few that cannot be sent: these are still there.
    """
    target = Address.of(address.entity, address.subscription)
    info = host.namespace.entity(target, host.now_ms())
    most = info.dead_letter_count if address.part is Part.DEAD_LETTER else info.transfer_dead_letter_count
    done = 0
    while done < most:
        found = host.namespace.receive(address, min(_AT_ONCE, most - done), host.now_ms())
        if not found:
            break
        _send_again(host, address, found)
        await host.durable()
        done += len(found)
    return done


def _take(host: NamespaceHost, address: Address, sequence: int, taken: list[bytes]) -> Delivery:
    while len(taken) < _LOOKED_THROUGH:
        found = host.namespace.receive(address, _AT_ONCE, host.now_ms())
        if not found:
            break
        wanted = next((delivery for delivery in found if delivery.record.sequence == sequence), None)
        taken += [each.lock_token for each in found if each is not wanted and each.lock_token is not None]
        if wanted is not None:
            return wanted
    raise MessageNotFoundError(
        f"'{address}' has no message {sequence} that could be sent again now: it was settled, a receiver has it, or it"
        f" is behind more than {_LOOKED_THROUGH:,} others",
        str(address),
    )


def _send_again(host: NamespaceHost, address: Address, deliveries: Sequence[Delivery]) -> None:
    tokens = [delivery.lock_token for delivery in deliveries if delivery.lock_token is not None]
    try:
        destination = destination_of(address)
        detects = _detects_duplicates(host, destination)
        # Each on its own: together they may be larger than a batch of one sender may be.
        sends = [Send(destination, [_copy(delivery, is_renamed=detects)]) for delivery in deliveries]
        completions = [Settle(address, token) for token in tokens]
        host.namespace.transact([*sends, *completions], host.now_ms())
    except Exception:
        _put_back(host, address, tokens)
        raise


def _detects_duplicates(host: NamespaceHost, destination: Address) -> bool:
    description = host.namespace.entity(destination, host.now_ms()).description
    return isinstance(description, QueueDescription | TopicDescription) and description.requires_duplicate_detection


def _put_back(host: NamespaceHost, address: Address, tokens: Sequence[bytes]) -> None:
    for token in tokens:
        with suppress(LockLostError):
            host.namespace.settle(address, token, host.now_ms(), _RELEASE)


def _copy(delivery: Delivery, *, is_renamed: bool) -> Message:
    """The message as its sender wrote it: why it was dead-lettered is not part of that.

    Where duplicates are detected it gets another message id, or it could be taken for a duplicate of itself.
    """
    if is_renamed:
        return received_message(_renamed(delivery.body))
    return received_message(delivery.body)._replace(message_id=delivery.record.message_id)


def _renamed(payload: bytes) -> bytes:
    sections = Sections(payload)
    parts = [sections.raw(code) for code in range(HEADER, PROPERTIES)]
    parts += [encode(sections.properties()._replace(message_id=uuid4().hex)), sections.raw(APPLICATION_PROPERTIES)]
    parts += [payload[start:end] for _, start, _, end in sections.body]
    return b"".join([*parts, sections.raw(FOOTER)])
