"""What a new link leads to, and whether its peer may go there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from pairbus.broker import (
    Address,
    InvalidOperationError,
    Part,
    QueueDescription,
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
)
from pairbus.dialect.entity_path import CBS, EntityPath, split_entity_path
from pairbus.dialect.ticks import to_ticks
from pairbus.server.access import path_of
from pairbus.server.addresses import address_of
from pairbus.server.amqp.cbs import TokenNode
from pairbus.server.amqp.consumer import Consumer
from pairbus.server.amqp.coordinator import CoordinatorNode
from pairbus.server.amqp.management.node import ManagementNode
from pairbus.server.amqp.node import Need, Node
from pairbus.server.amqp.peer import Peer
from pairbus.server.amqp.producer import CREDIT, Producer
from pairbus.server.amqp.replies import ReplyNode
from pairbus.server.amqp.session_wait import SessionWait
from pairbus.server.amqp.unproven import TOKEN_BYTES
from pairbus.server.errors import BadRequestError, UnauthorizedError
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

_ENVELOPE_BYTES: Final = 64 * 1024
"""What a transfer may have beyond the largest message: the broker tells best what is too large, and by how much."""

_LONGEST_REQUEST_BYTES: Final = 256 * 1024
"""What fits into a request of someone who has shown no token: a token, or a word on a transaction."""

_ANY_BYTES: Final = 1024 * 1024
"""The SDK for Python says on every link that it takes so much, and takes whatever comes."""

_SEND: Final = (Right.SEND,)
_EITHER: Final = (Right.LISTEN, Right.SEND)
_SESSION_WAIT_MS: Final = 65_000
_LONGEST_WAIT_MS: Final = 24 * 3_600_000


class Place(NamedTuple):
    """Where a link wants to go."""

    form: str
    path: str
    """In lower case, for the check of claims; ``""`` for a coordinator."""

    address: Address | None = None


Adopt = Callable[[Node], None]
"""Makes a node the end of its link."""


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of place: one of these claims is needed, and this answers the attach."""

    rights: tuple[Right, ...]
    attach: Callable[[Peer, Link, Attach, Place, Adopt], None]


def attach_link(peer: Peer, link: Link, attach: Attach, adopt: Adopt) -> None:
    """Answer an attach, or raise why not. Whoever lacks the claim learns nothing else."""
    place = place_of(link, attach)
    form = FORMS[place.form, link.role]
    if not peer.allows(place.path, form.rights):
        needed = " or ".join(right.capitalize() for right in form.rights)
        raise UnauthorizedError(f"'{place.path}' needs the claim {needed}; no token that was put has it", place.path)
    peer.host.check_busy("attach", place.address)
    form.attach(peer, link, attach, place, adopt)


def place_of(link: Link, attach: Attach) -> Place:
    """Take the address of a link apart; raises ``BadRequestError``."""
    terminus = attach.target if link.role == RECEIVER else attach.source
    if isinstance(terminus, Coordinator):
        return Place("coordinator", "")
    address = getattr(terminus, "address", None)
    if not isinstance(address, str) or not address:
        raise BadRequestError("the link names no address; nodes made on demand are not offered")
    path = path_of(address)
    if path == CBS:
        return Place("tokens", CBS)
    entity = _entity_at(address)
    return Place("management" if entity.management else "entity", path, address_of(entity))


# Answers to attaches


def _attach_tokens(peer: Peer, link: Link, attach: Attach, _place: Place, adopt: Adopt) -> None:
    adopt(TokenNode(peer, link))
    _take_requests(link, attach, TOKEN_BYTES)


def _attach_token_replies(peer: Peer, link: Link, attach: Attach, _place: Place, adopt: Adopt) -> None:
    adopt(ReplyNode(link, CBS, (), peer.replies))
    link.attach(source=attach.source, target=attach.target)


def _attach_coordinator(peer: Peer, link: Link, attach: Attach, _place: Place, adopt: Adopt) -> None:
    if not peer.claims:
        raise UnauthorizedError("a transaction needs a token; none that was put holds")
    adopt(CoordinatorNode(peer, link))
    _take_requests(link, attach, _LONGEST_REQUEST_BYTES)


def _attach_management(peer: Peer, link: Link, attach: Attach, place: Place, adopt: Adopt) -> None:
    address = _existing(peer, place)
    adopt(ManagementNode(peer, link, place.path, _needs(place, RECEIVER), address))
    _take_requests(link, attach, peer.host.limits.largest_bytes + _ENVELOPE_BYTES)


def _attach_replies(peer: Peer, link: Link, attach: Attach, place: Place, adopt: Adopt) -> None:
    _existing(peer, place)
    adopt(ReplyNode(link, place.path, _needs(place, SENDER), peer.replies))
    link.attach(source=attach.source, target=attach.target)


def _attach_producer(peer: Peer, link: Link, attach: Attach, place: Place, adopt: Adopt) -> None:
    address = _existing(peer, place)
    via = None
    needs = _needs(place, RECEIVER)
    destination = _property(attach, TRANSFER_DESTINATION)
    if destination is not None:
        path, target = _destination(peer, destination)
        via, address = address, target
        needs = (*needs, (path, _SEND))
    description = _description(peer, address)
    if address.part is not Part.MAIN or address.subscription is not None:
        raise InvalidOperationError(f"'{address}' cannot be sent to: send to its queue or topic", str(address))
    limits = peer.host.limits
    largest = getattr(description, "max_message_bytes", None) or limits.message_bytes
    from_syphon = _property(attach, SYPHON) is True
    adopt(Producer(peer, link, place.path, needs, address, via, from_syphon=from_syphon))
    link.attach(
        source=attach.source,
        target=attach.target,
        max_message_size=largest,
        properties={MAX_MESSAGE_BATCH_SIZE: ULong(limits.batch_bytes)},
    )
    link.max_message_size = max(largest, limits.batch_bytes) + _ENVELOPE_BYTES
    link.flow(CREDIT)


def _attach_consumer(peer: Peer, link: Link, attach: Attach, place: Place, adopt: Adopt) -> None:
    address = _existing(peer, place)
    description = _description(peer, address)
    if isinstance(description, TopicDescription):
        raise InvalidOperationError(f"'{address}' is a topic: receive from one of its subscriptions", str(address))
    if link.remote_max_message_size >= _ANY_BYTES:
        link.remote_max_message_size = 0
    if _deletes(attach) and link.remote_max_message_size:
        raise InvalidOperationError("a link that takes messages for good has to take them whatever their size")
    source = attach.source if isinstance(attach.source, Source) else Source()
    has_filter, session_id = _session_filter(source)
    if _has_sessions(address, description) != has_filter:
        raise InvalidOperationError(
            f"'{address}' requires sessions: accept one of them"
            if not has_filter
            else f"'{address}' has no sessions: receive without one",
            str(address),
        )
    grant = partial(_attach_session, peer, link, attach, place, adopt)
    if not has_filter:
        peer.host.namespace.receive(address, 0, peer.host.now_ms())  # raises if nothing can be received here
        adopt(_consumer(peer, link, attach, place, None))
        link.attach(source=attach.source, target=attach.target)
        return
    # Nothing is locked that is deleted as it is received, and no SDK renews a session in that mode: it is held as long
    # as the link is attached.
    expires = not _deletes(attach)
    session = peer.host.namespace.accept_session(address, session_id, peer.host.now_ms(), expires=expires)
    if session is not None:
        grant(session)
    else:
        needs, wait_ms = _needs(place, SENDER), _wait_ms(attach)
        adopt(SessionWait(peer, link, place.path, needs, address, wait_ms, grant, session_expires=expires))


def _attach_session(peer: Peer, link: Link, attach: Attach, place: Place, adopt: Adopt, session: SessionGrant) -> None:
    consumer = _consumer(peer, link, attach, place, session)
    adopt(consumer)
    asked = attach.source if isinstance(attach.source, Source) else Source()
    source = replace(asked, filter=_granted_filter(asked, session.session_id))
    link.attach(source=source, target=attach.target, properties={LOCKED_UNTIL_UTC: to_ticks(session.locked_until_ms)})


def _consumer(peer: Peer, link: Link, attach: Attach, place: Place, session: SessionGrant | None) -> Consumer:
    if place.address is None:
        raise BadRequestError("the link names no entity")
    needs = _needs(place, SENDER)
    return Consumer(peer, link, place.path, needs, place.address, deletes=_deletes(attach), session=session)


def _deletes(attach: Attach) -> bool:
    """Return whether messages are deleted as they are received."""
    return attach.snd_settle_mode is SenderSettleMode.SETTLED


def _take_requests(link: Link, attach: Attach, largest: int) -> None:
    link.attach(source=attach.source, target=attach.target, max_message_size=largest)
    link.shares_ids = True
    link.flow(CREDIT)


# Looking closer


def _needs(place: Place, role: bool) -> tuple[Need, ...]:
    return ((place.path, FORMS[place.form, role].rights),)


def _existing(peer: Peer, place: Place) -> Address:
    if place.address is None:
        raise BadRequestError("the link names no entity")
    _description(peer, place.address)
    return place.address


def _description(peer: Peer, address: Address) -> QueueDescription | TopicDescription | SubscriptionDescription:
    """The settings of the entity that an address belongs to; raises ``EntityNotFoundError``."""
    whole = Address.of(address.entity, address.subscription)
    return peer.host.namespace.entity(whole, peer.host.now_ms()).description


def _destination(peer: Peer, destination: object) -> tuple[str, Address]:
    """Where a message goes that is sent through another entity: it takes the claim to send there, too."""
    if not isinstance(destination, str):
        raise BadRequestError(f"'{TRANSFER_DESTINATION}' is an address")
    path = path_of(destination)
    if not peer.allows(path, _SEND):
        raise UnauthorizedError(f"'{path}' needs the claim Send; no token that was put has it", path)
    return path, address_of(_entity_at(destination))


def _entity_at(address: str) -> EntityPath:
    """Take an address of a link apart; raises ``BadRequestError``. No name has a ``?``, and a link takes no query."""
    entity = split_entity_path(path_of(address))
    if entity is None or "?" in address:
        raise BadRequestError(f"'{address:.200}' names nothing that could be an entity")
    return entity


def _has_sessions(address: Address, description: QueueDescription | SubscriptionDescription) -> bool:
    return description.requires_session and address.part is Part.MAIN


def _session_filter(source: Source) -> tuple[bool, str | None]:
    """Whether a session is asked for, and which; ``None`` for the next one."""
    filters: Mapping[Any, Any] = source.filter or {}
    if SESSION_FILTER not in filters:
        return False, None
    value = filters[SESSION_FILTER]
    if isinstance(value, Described):
        value = value.value
    if not isinstance(value, str | None):
        raise BadRequestError(f"a session id is text, and not {value!r:.100}")
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


FORMS: Final[Mapping[tuple[str, bool], Form]] = {
    ("tokens", RECEIVER): Form((), _attach_tokens),
    ("tokens", SENDER): Form((), _attach_token_replies),
    ("coordinator", RECEIVER): Form((), _attach_coordinator),
    ("management", RECEIVER): Form(_EITHER, _attach_management),
    ("management", SENDER): Form(_EITHER, _attach_replies),
    ("entity", RECEIVER): Form(_SEND, _attach_producer),
    ("entity", SENDER): Form((Right.LISTEN,), _attach_consumer),
}
"""The places that a link can lead to, by our role on it. What is here is all there is."""
