"""Spans that the code under test creates, recorded by the SDK of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once


class RecordedSpans:
    """The spans that have ended since the tracer provider was set."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


@contextmanager
def recorded_spans() -> Iterator[RecordedSpans]:
    """Set the tracer provider of the process for a test; afterwards there is none, as before."""
    spans = RecordedSpans()
    trace.set_tracer_provider(spans.provider)
    try:
        yield spans
    finally:
        spans.provider.shutdown()
        forget_tracer_provider()


def forget_tracer_provider() -> None:
    """Return to the state without a tracer provider; OpenTelemetry's own tests do it in this way, too."""
    trace._TRACER_PROVIDER = None
    trace._TRACER_PROVIDER_SET_ONCE = Once()


def context_of(span: ReadableSpan) -> tuple[int, int]:
    """Return the ids of the trace and of the span."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links_of(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def traceparent_of(span: ReadableSpan) -> str:
    """Return the trace context in the format of W3C."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
