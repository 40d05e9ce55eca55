"""What can go wrong on the wire, one class a kind; the class says what the peer is told.

ProtocolError                 the peer broke the protocol
├── DecodeError               bytes that are no AMQP value
├── InvalidFieldError         a field is missing, or of the wrong type
├── UnknownPerformativeError  a frame body that the standard does not define
├── FramingError              a frame or header that cannot be one
├── IllegalStateError         a frame that may not come now
├── AuthenticationError       SASL ended without success
├── IdleTimeoutError          the peer was silent for too long
├── PeerLimitError            more sessions or values than the peer may have
├── SessionError              ends the session; the connection goes on
│   ├── WindowViolationError
│   ├── HandleInUseError
│   ├── UnattachedHandleError
│   ├── DeliveryIdError
│   └── SessionResourceError
└── LinkError                 detaches the link; the session goes on
    ├── TransferLimitError
    ├── MessageSizeError
    ├── TransferSequenceError
    ├── TransferDirectionError
    └── ResumeError
LocalProtocolError            we were asked to break it ourselves
├── EncodeError               a value that AMQP cannot carry
├── FrameTooLargeError        a frame that the peer does not take
└── MessageTooLargeError      a message that the peer does not take
"""

from __future__ import annotations

from typing import Any, ClassVar

from pairbus.wire.conditions import Condition


class ProtocolError(Exception):
    """The peer broke the protocol.

    ``condition`` is what the peer is told. ``events`` holds what had arrived in good order before the fault, when the
    error comes out of ``Connection.receive_data``.
    """

    condition: ClassVar[Condition] = Condition.INTERNAL_ERROR

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description
        self.events: list[Any] = []

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}"


class DecodeError(ProtocolError):
    """Bytes that are no AMQP value."""

    condition = Condition.DECODE_ERROR


class InvalidFieldError(ProtocolError):
    """A field is missing, or of the wrong type."""

    condition = Condition.INVALID_FIELD


class UnknownPerformativeError(ProtocolError):
    """A frame body that the standard does not define."""

    condition = Condition.NOT_IMPLEMENTED


class FramingError(ProtocolError):
    """A frame or header that cannot be one."""

    condition = Condition.FRAMING_ERROR


class IllegalStateError(ProtocolError):
    """A frame that may not come now."""

    condition = Condition.ILLEGAL_STATE


class AuthenticationError(ProtocolError):
    """SASL ended without success."""

    condition = Condition.UNAUTHORIZED_ACCESS


class IdleTimeoutError(ProtocolError):
    """The peer was silent for longer than our idle time-out."""

    condition = Condition.RESOURCE_LIMIT_EXCEEDED


class PeerLimitError(ProtocolError):
    """More sessions, or more values in one frame, than our bounds allow the peer."""

    condition = Condition.RESOURCE_LIMIT_EXCEEDED


class SessionError(ProtocolError):
    """Ends the session; the connection goes on."""

    condition = Condition.ILLEGAL_STATE


class WindowViolationError(SessionError):
    """More transfer frames than our incoming window has room for."""

    condition = Condition.WINDOW_VIOLATION


class HandleInUseError(SessionError):
    """An attach with a handle that is attached already."""

    condition = Condition.HANDLE_IN_USE


class UnattachedHandleError(SessionError):
    """A frame for a handle that no link is attached to."""

    condition = Condition.UNATTACHED_HANDLE


class DeliveryIdError(SessionError):
    """A delivery id that is in use already, or a range of them that ends before it begins."""

    condition = Condition.INVALID_FIELD


class SessionResourceError(SessionError):
    """More links, unsettled deliveries or incomplete messages than our limits allow."""

    condition = Condition.RESOURCE_LIMIT_EXCEEDED


class LinkError(ProtocolError):
    """Detaches the link; the session goes on."""

    condition = Condition.ILLEGAL_STATE


class TransferLimitError(LinkError):
    """A delivery that we gave no credit for."""

    condition = Condition.TRANSFER_LIMIT_EXCEEDED


class MessageSizeError(LinkError):
    """A delivery larger than the link's max-message-size."""

    condition = Condition.MESSAGE_SIZE_EXCEEDED


class TransferSequenceError(LinkError):
    """The transfers of a delivery do not fit together."""

    condition = Condition.INVALID_FIELD


class TransferDirectionError(LinkError):
    """A transfer from the end of the link that receives."""

    condition = Condition.NOT_ALLOWED


class ResumeError(LinkError):
    """The peer wants to resume a delivery; this engine does not resume."""

    condition = Condition.NOT_IMPLEMENTED


class LocalProtocolError(Exception):
    """We were asked to break the protocol ourselves; nothing was written."""


class EncodeError(LocalProtocolError):
    """A value that AMQP cannot carry."""


class FrameTooLargeError(LocalProtocolError):
    """A frame that is larger than the peer's max-frame-size and cannot be split."""


class MessageTooLargeError(LocalProtocolError):
    """A message that is larger than the max-message-size that the peer named for the link."""
