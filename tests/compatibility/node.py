"""A process that runs ``js_client.js``, shared by all tests of a worker."""

from __future__ import annotations

import asyncio
import atexit
import base64
import itertools
import json
import os
import shutil
import subprocess
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.peers.presence import absent

SCRIPT: Final = Path(__file__).with_name("js_client.js")
PACKAGE: Final = Path(__file__).parents[1] / "peers" / "node_modules" / "@azure" / "service-bus" / "package.json"

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_TIME: Final = datetime.max.replace(tzinfo=UTC) - _EPOCH
"""Python's years end where JavaScript's go on."""


@dataclass(frozen=True, slots=True)
class Handle:
    """An object in the process, and its properties."""

    number: int
    fields: dict[str, Any]


class NodeError(Exception):
    """An error that was thrown in the process."""

    def __init__(self, name: str, code: str | None, message: str) -> None:
        super().__init__(f"{name} {code}: {message}")
        self.name = name
        self.code = code
        self.message = message


class Undefined:
    """JavaScript's other nothing."""


UNDEFINED: Final = Undefined()


class NodeProcess:
    """The process. Requests may overlap; each is answered on its own."""

    def __init__(self, node: str, ca_file: Path | None) -> None:
        trusted = {} if ca_file is None else {"NODE_EXTRA_CA_CERTS": str(ca_file)}
        self._process = subprocess.Popen(
            [node, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **trusted}, text=True
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="node", daemon=True).start()

    async def new(self, kind: str, *args: Any) -> Handle:
        made = await self.request(new=kind, args=args)
        assert isinstance(made, Handle)
        return made

    async def call(self, on: Handle, method: str, *args: Any) -> Any:
        return await self.request(on=on.number, call=method, args=args)

    async def collect(self, on: Handle, method: str, *args: Any) -> list[Any]:
        found: list[Any] = await self.request(on=on.number, collect=method, args=args)
        return found

    async def get(self, on: Handle, name: str) -> Any:
        return await self.request(on=on.number, get=name)

    async def request(self, **details: Any) -> Any:
        """Ask, and wait for the answer."""
        number = next(self._numbers)
        answer: Future[Any] = Future()
        line = json.dumps({"id": number, **{name: encode(detail) for name, detail in details.items()}})
        with self._lock:
            self._waiting[number] = answer
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        found = await asyncio.wrap_future(answer)
        if (error := found.get("error")) is not None:
            raise NodeError(error["name"], error["code"], error["message"])
        return decode(found.get("result"))

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(answer["id"])
            if waiting.set_running_or_notify_cancel():
                waiting.set_result(answer)
        with self._lock:
            for waiting in self._waiting.values():
                waiting.set_exception(NodeError("Gone", None, "the process has ended"))

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


@cache
def node_process(ca_file: Path | None) -> NodeProcess:
    """The process that trusts a certificate authority; node learns about it only when it starts."""
    process = NodeProcess(find_node(), ca_file)
    atexit.register(process.stop)
    return process


def find_node() -> str:
    """Find the program that runs the SDK."""
    node = shutil.which("node")
    if node is None:
        absent("@azure/service-bus (node)")
    if not PACKAGE.exists():
        absent("@azure/service-bus")
    return node


def encode(value: Any) -> Any:
    """Write a value as ``js_client.js`` reads it."""
    match value:
        case Undefined():
            return {"$": "undefined"}
        case Handle():
            return {"$": "handle", "v": value.number}
        case bytes():
            return {"$": "bytes", "v": base64.b64encode(value).decode()}
        case datetime():
            return {"$": "date", "v": round(value.timestamp() * 1000)}
        case dict():
            return {name: encode(item) for name, item in value.items()}
        case list() | tuple():
            return [encode(item) for item in value]
        case _:
            return value


def long(number: int) -> dict[str, str]:
    """Write a number of 64 bits; ``encode`` leaves it as it is."""
    return {"$": "long", "v": str(number)}


def decode(value: Any) -> Any:
    """Read a value that ``js_client.js`` wrote."""
    match value:
        case {"$": "date", "v": milliseconds}:
            return _EPOCH + min(timedelta(milliseconds=milliseconds), _TIME)
        case {"$": "long", "v": digits}:
            return int(digits)
        case {"$": "bytes", "v": text}:
            return base64.b64decode(text)
        case {"$": "handle", "v": number, "fields": fields}:
            return Handle(number, decode(fields or {}))
        case dict():
            return {name: decode(item) for name, item in value.items()}
        case list():
            return [decode(item) for item in value]
        case _:
            return value
