"""What a connection speaks, told by its first bytes."""

from __future__ import annotations

from enum import Enum
from typing import Final

LONGEST_PREFACE_BYTES: Final = 16
"""Whoever has sent as much and cannot be told yet speaks nothing that is known here."""

_TLS_HANDSHAKE: Final = 0x16
_AMQP: Final = b"AMQP"
_METHODS: Final = (b"GET ", b"PUT ", b"POST", b"HEAD", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ", b"CONNECT ")


class Preface(Enum):
    """What can come."""

    TLS = "tls"
    AMQP = "amqp"
    HTTP = "http"
    UNKNOWN = "unknown"
    TOO_SHORT = "too short"
    """More has to come before anyone can tell."""


def preface_of(data: bytes) -> Preface:
    if not data:
        return Preface.TOO_SHORT
    if data[0] == _TLS_HANDSHAKE:
        return Preface.TLS
    if _begins(data, _AMQP):
        return Preface.AMQP if len(data) >= len(_AMQP) else Preface.TOO_SHORT
    known = [method for method in _METHODS if _begins(data, method)]
    if not known:
        return Preface.UNKNOWN
    return Preface.HTTP if any(len(data) >= len(method) for method in known) else Preface.TOO_SHORT


def _begins(data: bytes, word: bytes) -> bool:
    return data[: len(word)] == word[: len(data)]
