"""What a request to ``$management`` is counted as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pairbus.broker import Address
from pairbus.dialect.backlog_path import is_backlog_path
from pairbus.dialect.management import Operation, Request, Response
from pairbus.ledger.operation import SUCCEEDED, Kind, Sort, Stage, units_of
from pairbus.server.metering import Meter, path_of_address
from pairbus.wire import Array

KINDS: Final[Mapping[str, Kind]] = {
    Operation.PEEK_MESSAGE: Kind.PEEK,
    Operation.SCHEDULE_MESSAGE: Kind.SCHEDULE,
    Operation.CANCEL_SCHEDULED_MESSAGE: Kind.CANCEL,
    Operation.RECEIVE_BY_SEQUENCE_NUMBER: Kind.RECEIVE,
    Operation.UPDATE_DISPOSITION: Kind.SETTLE,
    Operation.RENEW_LOCK: Kind.RENEW_LOCK,
    Operation.BATCH_DELETE_MESSAGES: Kind.PURGE,
    Operation.RENEW_SESSION_LOCK: Kind.RENEW_LOCK,
    Operation.GET_SESSION_STATE: Kind.SESSION_STATE,
    Operation.SET_SESSION_STATE: Kind.SESSION_STATE,
    Operation.GET_MESSAGE_SESSIONS: Kind.SESSION_STATE,
    Operation.ENUMERATE_RULES: Kind.RULES,
    Operation.ADD_RULE: Kind.RULES,
    Operation.REMOVE_RULE: Kind.RULES,
}

_LISTS: Final = {Kind.CANCEL: "sequence-numbers", Kind.SETTLE: "lock-tokens", Kind.RENEW_LOCK: "lock-tokens"}
"""Where a request names messages without holding them."""

_REFUSED: Final = 400


def count_request(meter: Meter, address: Address, who: str, request: Request, answer: Response) -> None:
    """Count a request that was answered."""
    kind = KINDS.get(request.operation)
    if kind is None:
        return  # nothing that could be billed
    entity = path_of_address(address)
    stage = Stage.SYPHON if is_backlog_path(entity) else Stage.DIRECT
    is_refused = answer.status >= _REFUSED
    result = str(answer.condition or answer.status) if is_refused else SUCCEEDED
    sizes = [] if is_refused else _sizes(request if kind is Kind.SCHEDULE else answer)
    messages = len(sizes) or (0 if is_refused else _named(kind, request))
    account = meter.account(Sort(kind, stage, entity, result, who))
    account.add(messages, sum(sizes), sum(map(units_of, sizes)) or 1, units_of(sum(sizes)))


def _sizes(holder: Request | Response) -> list[int]:
    """The sizes of the messages in a request or an answer."""
    body = holder.body
    items = body.get("messages") if isinstance(body, Mapping) else None
    payloads = [item.get("message") for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
    return [len(payload) for payload in payloads if isinstance(payload, bytes)]


def _named(kind: Kind, request: Request) -> int:
    name = _LISTS.get(kind)
    named = request.body.get(name) if name is not None and isinstance(request.body, Mapping) else None
    return len(named.items if isinstance(named, Array) else named) if isinstance(named, Array | list) else 0
