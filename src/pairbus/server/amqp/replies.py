"""Where answers go: the links on which a peer wants to hear from ``$cbs`` and ``$management``."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Final

from pairbus.dialect.management import Request, Response, write_response
from pairbus.server.amqp.node import Need, Node
from pairbus.server.errors import refusal_of
from pairbus.wire import Condition, Error, Link, MessageTooLargeError

_MOST_WAITING_BYTES: Final = 4 * 1024 * 1024


class ReplyNode(Node):
    """The server's end of a link that carries answers."""

    kind = "replies"

    def __init__(self, link: Link, path: str, needs: tuple[Need, ...], replies: Replies) -> None:
        super().__init__(link, path, needs)
        self._waiting: deque[int] = deque()
        """How large each answer is that waits for the session's window."""
        self._waiting_bytes = 0
        self._replies = replies
        replies.add(self)

    def on_detached(self) -> None:
        self._replies.remove(self)

    def count_waiting(self, size_bytes: int) -> int:
        """Count an answer that was sent; how much waits for the session's window now."""
        self._waiting.append(size_bytes)
        self._waiting_bytes += size_bytes
        while len(self._waiting) > self.link.queued:
            self._waiting_bytes -= self._waiting.popleft()
        return self._waiting_bytes


class Replies:
    """The reply links of one connection."""

    def __init__(self) -> None:
        self._nodes: list[ReplyNode] = []
        self._tags = count(1)

    def add(self, node: ReplyNode) -> None:
        self._nodes.append(node)

    def remove(self, node: ReplyNode) -> None:
        self._nodes.remove(node)

    def send(self, asked: Link, path: str, request: Request, response: Response) -> bool:
        """Answer a request that came in on a link; whether there was someone to hear it."""
        node = self._find(asked, path, request.reply_to)
        if node is None:
            return False
        # Settled, and beyond credit: the SDK for Python settles no answer, and grants credit only once.
        try:
            self._write(node, write_response(request, response))
        except MessageTooLargeError as error:
            node.link.detach(error=refusal_of(error).error)
            return False
        return True

    def _write(self, node: ReplyNode, payload: bytes) -> None:
        link = node.link
        link.send(payload, tag=next(self._tags).to_bytes(8), settled=True, beyond_credit=True)
        if node.count_waiting(len(payload)) > _MOST_WAITING_BYTES and link.queued > 1:
            link.detach(error=Error(Condition.RESOURCE_LIMIT_EXCEEDED, "answers are asked for, and not let through"))

    def _find(self, asked: Link, path: str, reply_to: str | None) -> ReplyNode | None:
        """The link that the request names; else one beside the one that it came in on; else any of that node."""
        nodes = [node for node in self._nodes if node.path == path and node.link.is_attached]
        named = [node for node in nodes if reply_to in _names(node.link)]
        beside = [node for node in named or nodes if node.link.session is asked.session]
        return next(iter(beside or named or nodes), None)


def _names(link: Link) -> tuple[object, ...]:
    target = None if link.peer is None else link.peer.target
    return link.name, getattr(target, "address", None)
