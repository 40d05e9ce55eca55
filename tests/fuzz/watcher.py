"""Reads what an engine writes, and fails when no peer could make sense of it."""

from __future__ import annotations

import struct
from typing import Final

from pairbus.wire import Connection
from pairbus.wire.decoder import decode_list
from pairbus.wire.frames import HEADER_SIZE, SASL_FRAME
from pairbus.wire.states import Frame, SaslFrame

_LIST: Final = HEADER_SIZE + 3
"""The position of the list of a performative in a frame that our encoder wrote."""

_LOWEST_MAX_FRAME_SIZE: Final = 512


class Watcher:
    """Follows one engine's words: what comes first, what comes last, and what may come only in between."""

    def __init__(self) -> None:
        self.opened = False
        self.closed = False
        self.channels: dict[int, dict[int, bool]] = {}
        """By channel, the handles that are attached; the value says whether a delivery is under way."""
        self.deliveries: dict[int, int] = {}

    def watch(self, data: bytes, engine: Connection) -> None:
        """Follow what the engine has written since the last time."""
        limit = _LOWEST_MAX_FRAME_SIZE if engine.peer is None else engine.peer.max_frame_size
        position = 0
        while position < len(data):
            if data[position : position + 4] == b"AMQP":
                assert not self.opened, "a header after open"
                position += HEADER_SIZE
                continue
            size, doff, kind, channel = struct.unpack_from(">IBBH", data, position)
            assert doff == 2
            assert position + size <= len(data), "a frame that is cut off"
            frame = data[position : position + size]
            if kind == SASL_FRAME:
                assert not self.opened, "a SASL frame after open"
                SaslFrame(frame[HEADER_SIZE + 2])
            else:
                assert size <= limit, f"a frame of {size} bytes for a peer that takes {limit}"
                self._watch_frame(frame, channel)
            position += size

    def _watch_frame(self, frame: bytes, channel: int) -> None:
        assert not self.closed, "a frame after close"
        if len(frame) == HEADER_SIZE:
            assert self.opened, "an empty frame before open"
            return
        assert frame[HEADER_SIZE : HEADER_SIZE + 2] == b"\x00\x53"
        code = Frame(frame[HEADER_SIZE + 2])
        assert self.opened != (code is Frame.OPEN), "open is the first frame, and comes once"
        match code:
            case Frame.OPEN:
                self.opened = True
            case Frame.CLOSE:
                self.closed = True
            case Frame.BEGIN:
                assert channel not in self.channels, "a second begin"
                self.channels[channel] = {}
                self.deliveries[channel] = 0
            case Frame.END:
                assert channel in self.channels, "end without begin"
                del self.channels[channel]
            case Frame.DISPOSITION:
                assert channel in self.channels, "a disposition outside a session"
            case _:
                assert channel in self.channels, "a frame outside a session"
                self._watch_link(code, decode_list(frame, _LIST), channel)

    def _watch_link(self, code: Frame, fields: list[object], channel: int) -> None:
        handles = self.channels[channel]
        if code is Frame.ATTACH:
            assert isinstance(fields[1], int)
            assert fields[1] not in handles, "a second attach"
            handles[fields[1]] = False
            return
        handle = fields[0]
        if code is Frame.FLOW:
            handle = fields[4] if len(fields) > 4 else None
            if handle is None:
                return
        assert isinstance(handle, int)
        assert handle in handles, f"{code.name} for a handle that is not attached"
        if code is Frame.DETACH:
            del handles[handle]
        elif code is Frame.TRANSFER:
            assert fields[1] is None or not handles[handle], "a delivery that begins in the middle of another"
            if not handles[handle]:
                assert fields[1] == self.deliveries[channel], "delivery-ids count up without a gap"
                self.deliveries[channel] += 1
            handles[handle] = fields[5] is True
