"""Spans of OpenTelemetry, and the trace context that a message carries from its sender to its receiver.

Off unless the application has set a tracer provider: then nothing of OpenTelemetry is imported, and a call costs one
look-up. The names and attributes are those of OpenTelemetry's semantic conventions for messaging; the application
properties are those of the official SDK. No span is made the current one, except by ``trace_processing``: background
tasks that a call starts would inherit it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import InvalidMessageError
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage, SettlementOutcome
from pairbus.dialect.paths import is_backlog_path, split_entity_path
from pairbus.wire import ProtocolError, Sections

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, TracerProvider

TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
DIAGNOSTIC_ID: Final = "Diagnostic-Id"
"""Older SDKs read and write the trace parent under this name."""

BACKLOG_QUEUE: Final = "pairbus.backlog.queue"
"""The attribute with the backlog queue to which a message was diverted."""

_API: Final = "opentelemetry.trace"
_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.30.0"
_DISPOSITIONS: Final = {
    "completed": "complete",
    "abandoned": "abandon",
    "defered": "defer",  # the spelling of the service
    "suspended": "dead_letter",
}

TraceContext = Mapping[str, str]
"""Application properties to add to a message."""

Note = Callable[[Any], None]

_NOT_SENDING: Final[AbstractContextManager[Iterable[TraceContext | None]]] = nullcontext(repeat(None))
_NOT_NOTING: Final[AbstractContextManager[Note]] = nullcontext(lambda _value: None)
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


def trace_sending(
    messages: Sequence[BrokeredMessage], path: str, endpoint: Endpoint, operation: str = "send"
) -> AbstractContextManager[Iterable[TraceContext | None]]:
    """Trace a send; yield what to add to each message.

    A single message belongs to the span of its send, and each of several to a span of its own, to which the span of the
    send is linked. A message that already has a trace context keeps it.
    """
    tracing = _active()
    return _NOT_SENDING if tracing is None or not messages else tracing.sending(messages, path, endpoint, operation)


def trace_receiving(path: str, endpoint: Endpoint) -> AbstractContextManager[Note]:
    """Trace a receive; yield the function to call with the received messages. Without messages there is no span."""
    tracing = _active()
    return _NOT_NOTING if tracing is None or is_backlog_path(path) else tracing.receiving(path, endpoint)


def trace_settling(
    messages: Sequence[ReceivedMessage], outcome: SettlementOutcome, path: str, endpoint: Endpoint
) -> AbstractContextManager[None]:
    tracing = _active()
    # The syphon's delivery span covers its work on a backlog queue.
    return _NOTHING if tracing is None or is_backlog_path(path) else tracing.settling(messages, outcome, path, endpoint)


def trace_diversion(payloads: Sequence[bytes], path: str, endpoint: Endpoint) -> AbstractContextManager[Note]:
    """Trace the diversion of encoded messages, with a span in the trace of each; yield the function to call with the
    backlog queue that has accepted them.
    """
    tracing = _active()
    return _NOT_NOTING if tracing is None else tracing.moving("divert", payloads, path, endpoint)


def trace_delivery(payloads: Sequence[bytes], path: str) -> AbstractContextManager[Note]:
    """Trace the delivery of encoded messages by the syphon, with a span in the trace of each."""
    tracing = _active()
    return _NOT_NOTING if tracing is None else tracing.moving("syphon", payloads, path, None)


def trace_processing(message: BrokeredMessage, path: str = "") -> AbstractContextManager[None]:
    """Trace the processing of a received message: the span is the current one in the ``with`` block.

    It belongs to the trace of the sender. ``path`` is the entity that the message was received from. Without a tracer
    provider this does nothing.
    """
    tracing = _active()
    return _NOTHING if tracing is None else tracing.processing(message, path)


def is_tracing() -> bool:
    """Return whether the application has set a tracer provider; what is called for each message asks this first."""
    return _API in sys.modules and _active() is not None


def _active() -> _Tracing | None:
    """Return the tracing of this process; ``None`` unless the application has set a tracer provider.

    An application that has set one has imported the API.
    """
    global _tracing  # noqa: PLW0603 (the tracer provider is global, too)
    api: Any = sys.modules.get(_API)
    if api is None:
        return None
    provider = getattr(api, "get_tracer_provider", _no_provider)()
    if provider is None or isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        return None
    if _tracing is None or _tracing.provider is not provider:
        _tracing = _Tracing(provider)
    return _tracing


def _no_provider() -> None:
    """Stand in for the API while another thread is importing it."""


class _Tracing:
    """Creates spans with the tracer provider of the application."""

    def __init__(self, provider: TracerProvider) -> None:
        # Imported here, because only applications that use OpenTelemetry have it.
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.context import Context  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self.provider = provider
        self._api = trace
        self._no_context = Context
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("pairbus", schema_url=_SCHEMA_URL)

    @contextmanager
    def sending(
        self, messages: Sequence[BrokeredMessage], path: str, endpoint: Endpoint, operation: str
    ) -> Iterator[list[TraceContext | None]]:
        kind = self._api.SpanKind
        is_carrying = [_carries_context(message) for message in messages]
        attributes = _attributes(operation, "send", path, endpoint, messages)
        if is_carrying == [False]:
            span = self._tracer.start_span(f"{operation} {path}", kind=kind.PRODUCER, attributes=attributes)
            contexts = [self._carrier(span)]
        else:
            created = [
                None if carries else self._created(message, path, endpoint)
                for message, carries in zip(messages, is_carrying, strict=True)
            ]
            links = [
                self._link(self._given(message)) if one is None else self._api.Link(one.get_span_context())
                for message, one in zip(messages, created, strict=True)
            ]
            contexts = [None if one is None else self._carrier(one) for one in created]
            span = self._tracer.start_span(
                f"{operation} {path}", kind=kind.CLIENT, attributes=attributes, links=_some(links)
            )
        with self._ending([span]):
            yield contexts

    @contextmanager
    def receiving(self, path: str, endpoint: Endpoint) -> Iterator[Note]:
        """Start the span when the messages are there, since it is linked to them."""
        started_ns = time.time_ns()
        received: list[ReceivedMessage] = []

        def start() -> Span:
            return self._tracer.start_span(
                f"receive {path}",
                kind=self._api.SpanKind.CLIENT,
                attributes=_attributes("receive", "receive", path, endpoint, received),
                links=self._links(received),
                start_time=started_ns,
            )

        try:
            yield received.extend
        except Exception:
            with self._ending([start()]):
                raise
        if received:
            start().end()

    @contextmanager
    def settling(
        self, messages: Sequence[ReceivedMessage], outcome: SettlementOutcome, path: str, endpoint: Endpoint
    ) -> Iterator[None]:
        operation = _DISPOSITIONS[outcome.status]
        attributes = _attributes(operation, "settle", path, endpoint, messages)
        attributes["messaging.servicebus.disposition_status"] = operation
        span = self._tracer.start_span(
            f"{operation} {path}",
            kind=self._api.SpanKind.CLIENT,
            attributes=attributes,
            links=self._links(messages),
        )
        with self._ending([span]):
            yield

    @contextmanager
    def moving(
        self, operation: str, payloads: Sequence[bytes], path: str, endpoint: Endpoint | None
    ) -> Iterator[Callable[[str], None]]:
        spans = []
        for payload in payloads:
            context = self._context(_properties_of(payload))
            spans.append(
                self._tracer.start_span(
                    f"{operation} {path}",
                    kind=self._api.SpanKind.CLIENT,
                    # Never the current span: a background task has that of the call that started it.
                    context=self._no_context() if context is None else context,
                    attributes=_attributes(operation, "send", path, endpoint),
                    links=_some([self._link(context)]),
                )
            )

        def note(queue: str) -> None:
            for span in spans:
                span.set_attribute(BACKLOG_QUEUE, queue)

        with self._ending(spans):
            yield note

    @contextmanager
    def processing(self, message: BrokeredMessage, path: str) -> Iterator[None]:
        context = self._given(message)
        span = self._tracer.start_span(
            f"process {path}" if path else "process",
            kind=self._api.SpanKind.CONSUMER,
            context=context,
            attributes=_attributes("process", "process", path, None, [message]),
            links=_some([self._link(context)]),
        )
        use_span = self._api.use_span(span, record_exception=False, set_status_on_exception=False)
        with self._ending([span]), use_span:
            yield

    @contextmanager
    def _ending(self, spans: list[Span]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            for span in spans:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._api.Status(self._api.StatusCode.ERROR, str(error)))
            raise
        finally:
            for span in spans:
                span.end()

    def _created(self, message: BrokeredMessage, path: str, endpoint: Endpoint) -> Span:
        attributes = _attributes("create", "create", path, endpoint, [message])
        span = self._tracer.start_span(f"create {path}", kind=self._api.SpanKind.PRODUCER, attributes=attributes)
        span.end()
        return span

    # Trace contexts.

    def _carrier(self, span: Span) -> TraceContext | None:
        """Return the application properties for a span; ``None`` if the tracer does not trace at all."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._api.set_span_in_context(span, self._no_context()))
        if TRACE_PARENT not in carrier:
            return None
        return {DIAGNOSTIC_ID: carrier[TRACE_PARENT], **carrier}

    def _given(self, message: object) -> Context | None:
        """Return the trace context that a message has, if it has one."""
        try:
            return self._context(getattr(message, "application_properties", None))
        except InvalidMessageError:
            return None  # an unreadable message

    def _context(self, properties: object) -> Context | None:
        if not isinstance(properties, Mapping):
            return None
        parent = _text(properties.get(TRACE_PARENT)) or _text(properties.get(DIAGNOSTIC_ID))
        if not parent:
            return None
        carrier = {TRACE_PARENT: parent, TRACE_STATE: _text(properties.get(TRACE_STATE))}
        context = self._propagator.extract(carrier, self._no_context())
        return context if self._api.get_current_span(context).get_span_context().is_valid else None

    def _links(self, messages: Iterable[object]) -> list[Link]:
        return _some([self._link(self._given(message)) for message in messages])

    def _link(self, context: Context | None) -> Link | None:
        return None if context is None else self._api.Link(self._api.get_current_span(context).get_span_context())


_tracing: _Tracing | None = None


def _some(links: Iterable[Link | None]) -> list[Link]:
    return [link for link in links if link is not None]


def _carries_context(message: object) -> bool:
    """Return whether a message has a trace context of its own, valid or not."""
    properties = getattr(message, "application_properties", None)
    return isinstance(properties, Mapping) and (TRACE_PARENT in properties or DIAGNOSTIC_ID in properties)


def _text(value: object) -> str:
    """Return a property as text: some peers send bytes."""
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return value if isinstance(value, str) else ""


def _properties_of(payload: bytes) -> Mapping[str, Any] | None:
    try:
        return Sections(payload).application_properties()
    except (ProtocolError, TypeError, ValueError):
        return None


def _attributes(
    operation: str, operation_type: str, path: str, endpoint: Endpoint | None, messages: Sequence[object] = ()
) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "servicebus",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation_type,
    }
    found = split_entity_path(path)
    if found is not None and found.subscription is not None:
        attributes["messaging.destination.name"] = found.entity
        attributes["messaging.destination.subscription.name"] = found.subscription
    elif path:
        attributes["messaging.destination.name"] = path
    if endpoint is not None:
        attributes["server.address"] = endpoint.host
        attributes["server.port"] = endpoint.amqp_port
    if len(messages) > 1:
        attributes["messaging.batch.message_count"] = len(messages)
    for message in messages[:1] if len(messages) == 1 else ():
        _describe(message, attributes)
    return attributes


def _describe(message: object, attributes: dict[str, str | int]) -> None:
    if not isinstance(message, BrokeredMessage):
        return
    try:
        attributes["messaging.message.id"] = str(message.message_id)
        if message.correlation_id is not None:
            attributes["messaging.message.conversation_id"] = str(message.correlation_id)
        if isinstance(message, ReceivedMessage):
            attributes["messaging.servicebus.message.delivery_count"] = message.delivery_count
            attributes["messaging.servicebus.message.enqueued_time"] = int(message.enqueued_time.timestamp())
    except InvalidMessageError:
        return  # an unreadable message
