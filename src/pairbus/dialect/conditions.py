"""The error conditions that Service Bus adds to those of AMQP."""

from __future__ import annotations

from enum import StrEnum


class ServiceBusCondition(StrEnum):
    """The condition of an error, as the SDKs know them."""

    ARGUMENT_ERROR = "com.microsoft:argument-error"
    AUTH_FAILED = "com.microsoft:auth-failed"
    DEAD_LETTER = "com.microsoft:dead-letter"
    """Not an error: a receiver sends it to dead-letter a message."""

    ENTITY_ALREADY_EXISTS = "com.microsoft:entity-already-exists"
    ENTITY_DISABLED = "com.microsoft:entity-disabled"
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
    MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
    OPERATION_CANCELLED = "com.microsoft:operation-cancelled"
    SERVER_BUSY = "com.microsoft:server-busy"
    SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
    SESSION_NOT_FOUND = "com.microsoft:session-not-found"
    TIMEOUT = "com.microsoft:timeout"
