"""The errors of the protocol engine, one class per kind; the class determines the condition sent to the peer.

ProtocolError                 the peer violated the protocol
├── DecodeError               invalid bytes of an AMQP value
├── InvalidFieldError         a field is missing or has the wrong type
├── UnknownPerformativeError  a frame body that the standard does not define
├── FramingError              an invalid frame or protocol header
├── IllegalStateError         a frame that is not allowed in the current state
├── AuthenticationError       SASL authentication failed
├── IdleTimeoutError          the peer was silent for too long
├── PeerLimitError            too many sessions or values for the bounds of the peer
├── SessionError              ends the session; the connection stays open
│   ├── WindowViolationError
│   ├── HandleInUseError
│   ├── UnattachedHandleError
│   ├── DeliveryIdError
│   └── SessionResourceError
└── LinkError                 detaches the link; the session continues
    ├── TransferLimitError
    ├── MessageSizeError
    ├── TransferSequenceError
    ├── TransferDirectionError
    └── ResumeError
LocalProtocolError            the caller would violate the protocol
├── EncodeError               a value that AMQP cannot encode
├── FrameTooLargeError        a frame that exceeds the limit of the peer
└── MessageTooLargeError      a message that exceeds the limit of the peer
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar


class Condition(StrEnum):
    """The condition of an error that ended a link, a session or a connection (parts 2.8 and 4.5.8)."""

    INTERNAL_ERROR = "amqp:internal-error"
    NOT_FOUND = "amqp:not-found"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    DECODE_ERROR = "amqp:decode-error"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LOCKED = "amqp:resource-locked"
    PRECONDITION_FAILED = "amqp:precondition-failed"
    RESOURCE_DELETED = "amqp:resource-deleted"
    ILLEGAL_STATE = "amqp:illegal-state"
    FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small"

    CONNECTION_FORCED = "amqp:connection:forced"
    FRAMING_ERROR = "amqp:connection:framing-error"
    CONNECTION_REDIRECT = "amqp:connection:redirect"

    WINDOW_VIOLATION = "amqp:session:window-violation"
    ERRANT_LINK = "amqp:session:errant-link"
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"

    DETACH_FORCED = "amqp:link:detach-forced"
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    LINK_REDIRECT = "amqp:link:redirect"
    STOLEN = "amqp:link:stolen"

    UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
    TRANSACTION_ROLLBACK = "amqp:transaction:rollback"
    TRANSACTION_TIMEOUT = "amqp:transaction:timeout"


class ProtocolError(Exception):
    """The peer violated the protocol.

    ``condition`` is sent to the peer. If the error is raised by ``Connection.receive_data``, ``events`` holds the
    events before the violation. ``bound`` names the limit that the peer exceeded, if any.
    """

    condition: ClassVar[Condition] = Condition.INTERNAL_ERROR

    def __init__(self, description: str, bound: str = "") -> None:
        super().__init__(description)
        self.description = description
        self.bound = bound
        self.events: list[Any] = []

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}"


class DecodeError(ProtocolError):
    """Invalid bytes of an AMQP value."""

    condition = Condition.DECODE_ERROR


class InvalidFieldError(ProtocolError):
    """A field is missing or has the wrong type."""

    condition = Condition.INVALID_FIELD


class UnknownPerformativeError(ProtocolError):
    """A frame body that the standard does not define."""

    condition = Condition.NOT_IMPLEMENTED


class FramingError(ProtocolError):
    """An invalid frame or protocol header."""

    condition = Condition.FRAMING_ERROR


class IllegalStateError(ProtocolError):
    """A frame that is not allowed in the current state."""

    condition = Condition.ILLEGAL_STATE


class AuthenticationError(ProtocolError):
    """SASL authentication failed."""

    condition = Condition.UNAUTHORIZED_ACCESS


class IdleTimeoutError(ProtocolError):
    """The peer was silent for longer than our idle timeout."""

    condition = Condition.RESOURCE_LIMIT_EXCEEDED


class PeerLimitError(ProtocolError):
    """More sessions, or more values in one frame, than the bounds of the peer allow."""

    condition = Condition.RESOURCE_LIMIT_EXCEEDED


class SessionError(ProtocolError):
    """A violation that ends the session; the connection stays open."""

    condition = Condition.ILLEGAL_STATE


class WindowViolationError(SessionError):
    """More transfer frames than our incoming window allows."""

    condition = Condition.WINDOW_VIOLATION


class HandleInUseError(SessionError):
    """An attach with a handle that is already attached."""

    condition = Condition.HANDLE_IN_USE


class UnattachedHandleError(SessionError):
    """A frame for a handle without an attached link."""

    condition = Condition.UNATTACHED_HANDLE


class DeliveryIdError(SessionError):
    """A delivery id that is already in use, or a range of them that ends before it begins."""

    condition = Condition.INVALID_FIELD


class SessionResourceError(SessionError):
    """More links, unsettled deliveries or incomplete messages than our limits allow."""

    condition = Condition.RESOURCE_LIMIT_EXCEEDED


class LinkError(ProtocolError):
    """A violation that detaches the link; the session continues."""

    condition = Condition.ILLEGAL_STATE


class TransferLimitError(LinkError):
    """A delivery without link credit."""

    condition = Condition.TRANSFER_LIMIT_EXCEEDED


class MessageSizeError(LinkError):
    """A delivery larger than the link's max-message-size."""

    condition = Condition.MESSAGE_SIZE_EXCEEDED


class TransferSequenceError(LinkError):
    """The transfers of a delivery are inconsistent."""

    condition = Condition.INVALID_FIELD


class TransferDirectionError(LinkError):
    """A transfer from the receiving end of the link."""

    condition = Condition.NOT_ALLOWED


class ResumeError(LinkError):
    """The peer tries to resume a delivery; this engine does not support that."""

    condition = Condition.NOT_IMPLEMENTED


class LocalProtocolError(Exception):
    """The caller would violate the protocol; nothing was written."""


class EncodeError(LocalProtocolError):
    """A value that AMQP cannot encode."""


class FrameTooLargeError(LocalProtocolError):
    """A frame that is larger than the peer's max-frame-size and cannot be split."""


class MessageTooLargeError(LocalProtocolError):
    """A message that is larger than the peer's max-message-size of the link."""
