"""Changes inputs in ways that keep them meaningful: whole frames come, go and change places, and sizes stay right."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Final

from pairbus.wire.frames import AMQP_HEADER, HEADER_SIZE, SASL_HEADER
from tests.fuzz.seeds import FRAMES, MESSAGES, SASL_FRAMES, VALUES
from tests.fuzz.targets import TARGETS, fuzz_decode, fuzz_message, fuzz_server, fuzz_skip

Scramble = Callable[[bytes, int], bytes]
"""Changes some bytes without knowing what they mean; the second argument is the largest size of the result."""

_U32: Final = struct.Struct(">I")
_ENGINES: Final = range(TARGETS.index(fuzz_server), len(TARGETS))
_PIECES: Final = {
    TARGETS.index(fuzz_decode): VALUES,
    TARGETS.index(fuzz_skip): VALUES,
    TARGETS.index(fuzz_message): MESSAGES + VALUES,
}


def mutate(data: bytes, largest: int, random: Random, scramble: Scramble) -> bytes:
    """Make an input of at most ``largest`` bytes out of another one."""
    if len(data) < 2 or random.random() < 0.1:
        return scramble(data, largest)
    target = data[0] % len(TARGETS)
    if target not in _ENGINES:
        return (data[:1] + _mutate_value(data[1:], random, scramble, _PIECES[target]))[:largest]
    cut = data[1:2] if random.random() < 0.9 else bytes([random.randrange(256)])
    return (data[:1] + cut + _mutate_stream(data[2:], random, scramble))[:largest]


def _mutate_value(value: bytes, random: Random, scramble: Scramble, pieces: tuple[bytes, ...]) -> bytes:
    choice = random.random()
    if choice < 0.6 or not value:
        return scramble(value, len(value) + 8)
    cut = random.randrange(len(value))
    if choice < 0.9:
        return value[:cut] + random.choice(pieces) + value[cut:]
    return value[:cut] + random.choice(pieces)


def _mutate_stream(stream: bytes, random: Random, scramble: Scramble) -> bytes:
    parts = _split(stream)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        _mutate_parts(parts, random, scramble)
    return b"".join(parts)


def _mutate_parts(parts: list[bytes], random: Random, scramble: Scramble) -> None:
    choice = random.random()
    place = random.randrange(len(parts) + 1)
    if choice < 0.4 or place == len(parts):
        parts.insert(place, _new_part(random))
    elif choice < 0.7:
        parts[place] = _mutate_part(parts[place], random, scramble)
    elif choice < 0.8:
        del parts[place]
    elif choice < 0.9:
        parts.insert(place, parts[random.randrange(len(parts))])
    else:
        other = random.randrange(len(parts))
        parts[place], parts[other] = parts[other], parts[place]


def _new_part(random: Random) -> bytes:
    choice = random.random()
    if choice < 0.9:
        return random.choice(FRAMES)
    if choice < 0.97:
        return random.choice(SASL_FRAMES)
    return random.choice((AMQP_HEADER, SASL_HEADER))


def _mutate_part(part: bytes, random: Random, scramble: Scramble) -> bytes:
    """Change one frame; mostly its body, and then its size is put right."""
    if len(part) < HEADER_SIZE or part[:4] == b"AMQP" or random.random() < 0.05:
        return scramble(part, len(part) + 8)
    head, body = part[4:HEADER_SIZE], part[HEADER_SIZE:]
    choice = random.random()
    if choice < 0.15:
        head = head[:3] + bytes([random.randrange(4)])
    elif choice < 0.2:
        head = scramble(head, 4).ljust(4, b"\0")[:4]
    elif choice < 0.3:
        body += random.choice(MESSAGES)
    elif len(body) < 4 or choice < 0.4:
        body = scramble(body, len(body) + 16)
    else:  # spare the descriptor: what it names is interesting
        body = body[:3] + scramble(body[3:], len(body) + 8)
    return _U32.pack(HEADER_SIZE + len(body)) + head + body


def _split(stream: bytes) -> list[bytes]:
    """Cut a stream into headers and frames, as far as they go."""
    parts = []
    position = 0
    while position < len(stream):
        size = HEADER_SIZE
        if stream[position : position + 4] != b"AMQP" and position + 4 <= len(stream):
            size = max(HEADER_SIZE, _U32.unpack_from(stream, position)[0])
        parts.append(stream[position : position + size])
        position += size
    return parts
