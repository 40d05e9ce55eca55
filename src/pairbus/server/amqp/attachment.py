"""Attach of links: the node that a link leads to, and the claim that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pairbus.broker import (
    Address,
    InvalidOperationError,
    QueueDescription,
    QueuePart,
    Right,
    SessionGrant,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.dialect.annotations import (
    LINK_TIMEOUT,
    LOCKED_UNTIL_UTC,
    MAX_MESSAGE_BATCH_SIZE,
    SESSION_FILTER,
    SYPHON,
    TRANSFER_DESTINATION,
    to_ticks,
)
from pairbus.dialect.paths import CBS, EntityPath, split_entity_path
from pairbus.server.access import path_of
from pairbus.server.amqp.consumer import Consumer, SessionWait
from pairbus.server.amqp.management.node import ManagementNode
from pairbus.server.amqp.node import Need, Node, ReplyNode
from pairbus.server.amqp.producer import CREDIT, CoordinatorNode, Producer
from pairbus.server.amqp.requests import TokenNode
from pairbus.server.amqp.services import TOKEN_BYTES
from pairbus.server.errors import BadRequestError, UnauthorizedError
from pairbus.server.messages import address_of
from pairbus.wire import (
    RECEIVER,
    SENDER,
    Attach,
    Coordinator,
    Described,
    Link,
    SenderSettleMode,
    Source,
    ULong,
)

if TYPE_CHECKING:
    from pairbus.server.amqp.connection import ServerConnection

_ENVELOPE_BYTES: Final = 64 * 1024
"""Allowance beyond the largest message: the broker gives the better error for a message that is too large."""

_LONGEST_REQUEST_BYTES: Final = 256 * 1024
"""Largest request of a peer without a token: a token, or a transaction request."""

_ANY_BYTES: Final = 1024 * 1024
"""The max-message-size that the SDK for Python sets on every link, although it accepts any size."""

_SEND: Final = (Right.SEND,)
_EITHER: Final = (Right.LISTEN, Right.SEND)
_SESSION_WAIT_MS: Final = 65_000
_LONGEST_WAIT_MS: Final = 24 * 3_600_000


class LinkAddress(NamedTuple):
    """The address of a link."""

    form: str
    path: str
    """In lower case, for the check of claims; ``""`` for a coordinator."""

    address: Address | None = None


Adopt = Callable[[Node], None]
"""Makes a node the end of its link."""


@dataclass(frozen=True, slots=True)
class LinkKind:
    """A kind of node: the claims of which one is needed, and the function that answers the attach."""

    rights: tuple[Right, ...]
    attach: Callable[[ServerConnection, Link, Attach, LinkAddress, Adopt], None]


def attach_link(connection: ServerConnection, link: Link, attach: Attach, adopt: Adopt) -> None:
    """Answer an attach, or raise the error. A peer without the claim learns nothing else."""
    place = place_of(link, attach)
    form = FORMS[place.form, link.role]
    if not connection.allows(place.path, form.rights):
        needed = " or ".join(right.capitalize() for right in form.rights)
        raise UnauthorizedError(
            f"'{place.path}' needs the claim {needed}; no token of this connection has it", place.path
        )
    connection.host.check_busy("attach", place.address)
    form.attach(connection, link, attach, place, adopt)


def place_of(link: Link, attach: Attach) -> LinkAddress:
    """Parse the address of a link; raises ``BadRequestError``."""
    terminus = attach.target if link.role == RECEIVER else attach.source
    if isinstance(terminus, Coordinator):
        return LinkAddress("coordinator", "")
    address = getattr(terminus, "address", None)
    if not isinstance(address, str) or not address:
        raise BadRequestError("the link names no address; dynamic nodes are not supported")
    path = path_of(address)
    if path == CBS:
        return LinkAddress("tokens", CBS)
    entity = _entity_at(address)
    return LinkAddress("management" if entity.management else "entity", path, address_of(entity))


# Answers to attaches


def _attach_tokens(connection: ServerConnection, link: Link, attach: Attach, _place: LinkAddress, adopt: Adopt) -> None:
    adopt(TokenNode(connection, link))
    _take_requests(link, attach, TOKEN_BYTES)


def _attach_token_replies(
    connection: ServerConnection, link: Link, attach: Attach, _place: LinkAddress, adopt: Adopt
) -> None:
    adopt(ReplyNode(link, CBS, (), connection.replies))
    link.attach(source=attach.source, target=attach.target)


def _attach_coordinator(
    connection: ServerConnection, link: Link, attach: Attach, _place: LinkAddress, adopt: Adopt
) -> None:
    if not connection.claims:
        raise UnauthorizedError("a transaction needs a token; this connection has no valid one")
    adopt(CoordinatorNode(connection, link))
    _take_requests(link, attach, _LONGEST_REQUEST_BYTES)


def _attach_management(
    connection: ServerConnection, link: Link, attach: Attach, place: LinkAddress, adopt: Adopt
) -> None:
    address = _existing(connection, place)
    adopt(ManagementNode(connection, link, place.path, _needs(place, RECEIVER), address))
    _take_requests(link, attach, connection.host.limits.largest_bytes + _ENVELOPE_BYTES)


def _attach_replies(connection: ServerConnection, link: Link, attach: Attach, place: LinkAddress, adopt: Adopt) -> None:
    _existing(connection, place)
    adopt(ReplyNode(link, place.path, _needs(place, SENDER), connection.replies))
    link.attach(source=attach.source, target=attach.target)


def _attach_producer(
    connection: ServerConnection, link: Link, attach: Attach, place: LinkAddress, adopt: Adopt
) -> None:
    address = _existing(connection, place)
    via = None
    needs = _needs(place, RECEIVER)
    destination = _property(attach, TRANSFER_DESTINATION)
    if destination is not None:
        path, target = _destination(connection, destination)
        via, address = address, target
        needs = (*needs, (path, _SEND))
    description = _description(connection, address)
    if address.part is not QueuePart.MAIN or address.subscription is not None:
        raise InvalidOperationError(f"'{address}' cannot be sent to: send to its queue or topic", str(address))
    limits = connection.host.limits
    largest = getattr(description, "max_message_bytes", None) or limits.message_bytes
    from_syphon = _property(attach, SYPHON) is True
    adopt(Producer(connection, link, place.path, needs, address, via, from_syphon=from_syphon))
    link.attach(
        source=attach.source,
        target=attach.target,
        max_message_size=largest,
        properties={MAX_MESSAGE_BATCH_SIZE: ULong(limits.batch_bytes)},
    )
    link.max_message_size = max(largest, limits.batch_bytes) + _ENVELOPE_BYTES
    link.flow(CREDIT)


def _attach_consumer(
    connection: ServerConnection, link: Link, attach: Attach, place: LinkAddress, adopt: Adopt
) -> None:
    address = _existing(connection, place)
    connection.host.check_busy("receive", address)
    description = _description(connection, address)
    if isinstance(description, TopicDescription):
        raise InvalidOperationError(f"'{address}' is a topic: receive from one of its subscriptions", str(address))
    if link.remote_max_message_size >= _ANY_BYTES:
        link.remote_max_message_size = 0
    if _deletes(attach) and link.remote_max_message_size:
        raise InvalidOperationError("a link in receive-and-delete mode must accept messages of any size")
    source = attach.source if isinstance(attach.source, Source) else Source()
    has_filter, session_id = _session_filter(source)
    if _has_sessions(address, description) != has_filter:
        raise InvalidOperationError(
            f"'{address}' requires sessions: accept one of them"
            if not has_filter
            else f"'{address}' has no sessions: receive without one",
            str(address),
        )
    grant = partial(_attach_session, connection, link, attach, place, adopt)
    if not has_filter:
        connection.host.use_namespace().receive(
            address, 0, connection.host.now_ms()
        )  # raises if nothing can be received here
        adopt(_consumer(connection, link, attach, place, None))
        link.attach(source=attach.source, target=attach.target)
        return
    # Messages that are deleted as they are received are not locked, and no SDK renews a session in that mode: it is
    # held as long as the link is attached.
    expires = not _deletes(attach)
    session = connection.host.use_namespace().accept_session(
        address, session_id, connection.host.now_ms(), expires=expires
    )
    if session is not None:
        grant(session)
    else:
        needs, wait_ms = _needs(place, SENDER), _wait_ms(attach)
        adopt(SessionWait(connection, link, place.path, needs, address, wait_ms, grant, session_expires=expires))


def _attach_session(
    connection: ServerConnection, link: Link, attach: Attach, place: LinkAddress, adopt: Adopt, session: SessionGrant
) -> None:
    consumer = _consumer(connection, link, attach, place, session)
    adopt(consumer)
    asked = attach.source if isinstance(attach.source, Source) else Source()
    source = replace(asked, filter=_granted_filter(asked, session.session_id))
    link.attach(source=source, target=attach.target, properties={LOCKED_UNTIL_UTC: to_ticks(session.locked_until_ms)})


def _consumer(
    connection: ServerConnection, link: Link, attach: Attach, place: LinkAddress, session: SessionGrant | None
) -> Consumer:
    if place.address is None:
        raise BadRequestError("the link names no entity")
    needs = _needs(place, SENDER)
    return Consumer(connection, link, place.path, needs, place.address, deletes=_deletes(attach), session=session)


def _deletes(attach: Attach) -> bool:
    """Return whether messages are deleted as they are received."""
    return attach.snd_settle_mode is SenderSettleMode.SETTLED


def _take_requests(link: Link, attach: Attach, largest: int) -> None:
    link.attach(source=attach.source, target=attach.target, max_message_size=largest)
    link.shares_ids = True
    link.flow(CREDIT)


# Parsing and lookup


def _needs(place: LinkAddress, role: bool) -> tuple[Need, ...]:
    return ((place.path, FORMS[place.form, role].rights),)


def _existing(connection: ServerConnection, place: LinkAddress) -> Address:
    if place.address is None:
        raise BadRequestError("the link names no entity")
    _description(connection, place.address)
    return place.address


def _description(
    connection: ServerConnection, address: Address
) -> QueueDescription | TopicDescription | SubscriptionDescription:
    """Return the settings of the entity of an address; raises ``EntityNotFoundError``."""
    whole = Address.of(address.entity, address.subscription)
    return connection.host.use_namespace().entity(whole, connection.host.now_ms()).description


def _destination(connection: ServerConnection, destination: object) -> tuple[str, Address]:
    """Return the destination of messages sent via another entity: it needs the claim Send, too."""
    if not isinstance(destination, str):
        raise BadRequestError(f"'{TRANSFER_DESTINATION}' must be an address")
    path = path_of(destination)
    if not connection.allows(path, _SEND):
        raise UnauthorizedError(f"'{path}' needs the claim Send; no token of this connection has it", path)
    return path, address_of(_entity_at(destination))


def _entity_at(address: str) -> EntityPath:
    """Parse an address of a link; raises ``BadRequestError``. No name has a ``?``, and a link has no query."""
    entity = split_entity_path(path_of(address))
    if entity is None or "?" in address:
        raise BadRequestError(f"'{address:.200}' is not a valid entity name")
    return entity


def _has_sessions(address: Address, description: QueueDescription | SubscriptionDescription) -> bool:
    return description.requires_session and address.part is QueuePart.MAIN


def _session_filter(source: Source) -> tuple[bool, str | None]:
    """Return whether a session is requested, and its id; ``None`` for the next available one."""
    filters: Mapping[Any, Any] = source.filter or {}
    if SESSION_FILTER not in filters:
        return False, None
    value = filters[SESSION_FILTER]
    if isinstance(value, Described):
        value = value.value
    if not isinstance(value, str | None):
        raise BadRequestError(f"a session id must be text, got {value!r:.100}")
    return True, value


def _granted_filter(asked: Source, session_id: str) -> dict[str, Any]:
    """Return the filter in force, in the form that the peer used.

    The SDK for Go describes the filter and reads only a described one; the SDKs for JavaScript, Python and .NET send
    the bare id and read only that.
    """
    value = (asked.filter or {}).get(SESSION_FILTER)
    return {SESSION_FILTER: replace(value, value=session_id) if isinstance(value, Described) else session_id}


def _property(attach: Attach, name: str) -> object:
    return (attach.properties or {}).get(name)


def _wait_ms(attach: Attach) -> int:
    value = _property(attach, LINK_TIMEOUT)
    return min(int(value), _LONGEST_WAIT_MS) if isinstance(value, int) else _SESSION_WAIT_MS


FORMS: Final[Mapping[tuple[str, bool], LinkKind]] = {
    ("tokens", RECEIVER): LinkKind((), _attach_tokens),
    ("tokens", SENDER): LinkKind((), _attach_token_replies),
    ("coordinator", RECEIVER): LinkKind((), _attach_coordinator),
    ("management", RECEIVER): LinkKind(_EITHER, _attach_management),
    ("management", SENDER): LinkKind(_EITHER, _attach_replies),
    ("entity", RECEIVER): LinkKind(_SEND, _attach_producer),
    ("entity", SENDER): LinkKind((Right.LISTEN,), _attach_consumer),
}
"""All nodes that a link can lead to, by our role on it."""
