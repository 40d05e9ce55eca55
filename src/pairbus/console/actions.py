"""Actions of the console: purge messages and resubmit dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias
from uuid import uuid4

from pairbus.broker import (
    Address,
    DeliveredMessage,
    LockLostError,
    MessageNotFoundError,
    NewMessage,
    QueueDescription,
    QueuePart,
    SendOperation,
    SettlementKind,
    SettlementRequest,
    SettleOperation,
    TopicDescription,
)
from pairbus.console.formatting import number
from pairbus.console.http import ConsoleEntity, RequestContext, entity_of
from pairbus.server.audit import AuditAction
from pairbus.server.errors import BadRequestError
from pairbus.server.host import NamespaceHost
from pairbus.server.messages import received_message
from pairbus.wire import APPLICATION_PROPERTIES, FOOTER, HEADER, PROPERTIES, Sections, encode

_PURGED_PER_STEP: Final = 1_000
_RESUBMITTED_PER_STEP: Final = 10
_MAX_LOCKED: Final = 2_000
"""Maximum number of dead letters that are locked to reach one behind them."""

_RELEASE: Final = SettlementRequest(disposition=SettlementKind.RELEASE)


class ActionResult(NamedTuple):
    """A sentence about the result, the address of the page that shows it, and how many messages were affected."""

    text: str
    location: str
    message_count: int = 0


Action: TypeAlias = Callable[[RequestContext], Awaitable[ActionResult]]


async def purge_action(context: RequestContext) -> ActionResult:
    entity = entity_of(context.form)
    if context.form.get("confirmation", "").strip() != entity.path:
        raise BadRequestError(f"nothing was removed: type '{entity.path}' to confirm")
    context.host.check_busy("purge", entity.address)
    context.host.check_stalled(entity.address)
    count = await purge(context.host, entity.address)
    return ActionResult(f"{_messages(count)} removed from {_name(entity)}.", entity.link(), count)


async def resubmit_action(context: RequestContext) -> ActionResult:
    """Resubmit the dead letter with the sequence number of the form, or all if the form has none."""
    entity = entity_of(context.form)
    if entity.part is QueuePart.MAIN:
        raise BadRequestError(f"only dead letters can be resubmitted, and '{entity.path}' is not a dead-letter queue")
    destination = destination_of(entity.address)
    context.host.check_busy("send", destination)
    context.host.check_stalled(destination)
    text = context.form.get("sequence", "")
    if not text:
        count = await resubmit_all(context.host, entity.address)
        return ActionResult(f"{_messages(count)} resubmitted to {destination}.", entity.link(), count)
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise BadRequestError(f"'sequence' must be a sequence number, got '{text}'")
    await resubmit(context.host, entity.address, int(text))
    return ActionResult(f"Message {text} was resubmitted to {destination}.", entity.link(), 1)


ACTIONS: Final[Mapping[str, Action]] = {"/console/purge": purge_action, "/console/resubmit": resubmit_action}
ACTION_RECORDS: Final[Mapping[str, AuditAction]] = {
    "/console/purge": AuditAction.MESSAGES_PURGED,
    "/console/resubmit": AuditAction.MESSAGES_RESUBMITTED,
}
"""The actions as the audit log records them."""


def _name(entity: ConsoleEntity) -> str:
    return entity.path if entity.part is QueuePart.MAIN else f"the dead letters of {entity.path}"


def _messages(count: int) -> str:
    return "1 message was" if count == 1 else f"{number(count)} messages were"


async def purge(host: NamespaceHost, address: Address) -> int:
    """Delete the messages that arrived before the call; return their number.

    Locked, deferred and scheduled messages are kept. Raise ``BrokerError`` or ``StoreError``.
    """
    before_ms = host.now_ms() + 1
    deleted = 0
    while count := host.use_namespace().delete_messages(
        address, _PURGED_PER_STEP, host.now_ms(), enqueued_before_ms=before_ms
    ):
        deleted += count
        await host.durable()
    return deleted


def destination_of(address: Address) -> Address:
    """Return the entity that dead letters are resubmitted to; for a subscription, this is its topic."""
    return Address.of(address.entity)


async def resubmit(host: NamespaceHost, address: Address, sequence: int) -> None:
    """Send a copy of a dead letter and complete it in one transaction.

    Raise ``BrokerError`` or ``StoreError``; nothing has changed then. Receivers get dead letters in order, so those
    before this one are locked as well, and released unchanged. No other task runs in between.
    """
    locked: list[bytes] = []
    try:
        delivery = _lock(host, address, sequence, locked)
        _send_again(host, address, [delivery])
    finally:
        _release(host, address, locked)
    await host.durable()


async def resubmit_all(host: NamespaceHost, address: Address) -> int:
    """Resubmit all dead letters that are present at the call and not locked; return their number.

    Raise ``BrokerError`` or ``StoreError`` for the first few that cannot be sent; these are kept.
    """
    info = host.use_namespace().entity(Address.of(address.entity, address.subscription), host.now_ms())
    present = info.dead_letter_count if address.part is QueuePart.DEAD_LETTER else info.transfer_dead_letter_count
    done = 0
    while done < present:
        found = host.use_namespace().receive(address, min(_RESUBMITTED_PER_STEP, present - done), host.now_ms())
        if not found:
            break
        _send_again(host, address, found)
        await host.durable()
        done += len(found)
    return done


def _lock(host: NamespaceHost, address: Address, sequence: int, locked: list[bytes]) -> DeliveredMessage:
    """Return the dead letter, locked; add the lock tokens of those before it to ``locked``."""
    while len(locked) < _MAX_LOCKED:
        found = host.use_namespace().receive(address, _RESUBMITTED_PER_STEP, host.now_ms())
        if not found:
            break
        wanted = next((delivery for delivery in found if delivery.record.sequence == sequence), None)
        locked += [each.lock_token for each in found if each is not wanted and each.lock_token is not None]
        if wanted is not None:
            return wanted
    raise MessageNotFoundError(
        f"'{address}' has no message {sequence} that can be resubmitted: it was settled, it is locked by a receiver,"
        f" or more than {_MAX_LOCKED:,} messages are before it",
        str(address),
    )


def _send_again(host: NamespaceHost, address: Address, deliveries: Sequence[DeliveredMessage]) -> None:
    tokens = [delivery.lock_token for delivery in deliveries if delivery.lock_token is not None]
    try:
        destination = destination_of(address)
        has_new_id = _detects_duplicates(host, destination)
        # One operation each: together, they may exceed the size limit of a batch.
        sends = [SendOperation(destination, [_copy(delivery, has_new_id=has_new_id)]) for delivery in deliveries]
        completions = [SettleOperation(address, token) for token in tokens]
        host.use_namespace().transact([*sends, *completions], host.now_ms())
    except Exception:
        _release(host, address, tokens)
        raise


def _detects_duplicates(host: NamespaceHost, destination: Address) -> bool:
    description = host.use_namespace().entity(destination, host.now_ms()).description
    return isinstance(description, QueueDescription | TopicDescription) and description.requires_duplicate_detection


def _release(host: NamespaceHost, address: Address, tokens: Sequence[bytes]) -> None:
    for token in tokens:
        with suppress(LockLostError):
            host.use_namespace().settle(address, token, host.now_ms(), _RELEASE)


def _copy(delivery: DeliveredMessage, *, has_new_id: bool) -> NewMessage:
    """Return the message as its sender wrote it, without the dead-letter reason.

    If the entity detects duplicates, the copy needs a new message id, or it would be dropped as a duplicate.
    """
    if has_new_id:
        return received_message(_with_new_id(delivery.body))
    return received_message(delivery.body)._replace(message_id=delivery.record.message_id)


def _with_new_id(payload: bytes) -> bytes:
    sections = Sections(payload)
    parts = [sections.raw(code) for code in range(HEADER, PROPERTIES)]
    parts += [encode(sections.properties()._replace(message_id=uuid4().hex)), sections.raw(APPLICATION_PROPERTIES)]
    parts += [payload[start:end] for _, start, _, end in sections.body]
    return b"".join([*parts, sections.raw(FOOTER)])
