"""Traces as OpenTelemetry spans, sent to a collector: the form of Triton's trace mode ``opentelemetry``.

This is the one module that imports OpenTelemetry, and it is imported only in that mode.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from repoagent.errors import InvalidArgumentError
from repoagent.public_text import writable
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.tracing.trace_settings import COMPUTE, SpanSettings

_SERVICE: Final = "repoagent"
_ROOT: Final = "InferRequest"


class _Pen:
    """Writes the spans of one trace, at moments of the monotonic clock, in the time on the wall: what collectors know.

    One difference between the two clocks holds for the whole trace, so that the order of what happened is kept.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._ahead_ns = time.time_ns() - time.monotonic_ns()

    def start(self, name: str, parent: Context | None, now_ns: int) -> Span:
        # An empty context, not None: what runs on this thread is not a parent.
        start_ns = now_ns + self._ahead_ns
        return self._tracer.start_span(name, parent or Context(), kind=SpanKind.SERVER, start_time=start_ns)

    def note(self, span: Span, name: str, now_ns: int) -> None:
        span.add_event(name, timestamp=now_ns + self._ahead_ns)

    def end(self, span: Span, now_ns: int) -> None:
        span.end(now_ns + self._ahead_ns)


class SpanTraces:
    """Makes traces, and sends their spans in batches from a thread of its own. Raises ``InvalidArgumentError`` if the
    settings of the batches make no sense."""

    def __init__(self, settings: SpanSettings) -> None:
        try:
            processor = BatchSpanProcessor(
                OTLPSpanExporter(endpoint=settings.url or None),
                max_queue_size=settings.bsp_max_queue_size,
                schedule_delay_millis=settings.bsp_schedule_delay,
                max_export_batch_size=settings.bsp_max_export_batch_size,
            )
        except ValueError as error:
            raise InvalidArgumentError(f"settings of trace mode 'opentelemetry': {error}") from error
        # A name from the environment is stronger than the default, and one from the settings than both.
        resource = Resource({"service.name": _SERVICE}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource.merge(Resource(dict(settings.resource))), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("repoagent")
        self._propagator = TraceContextTextMapPropagator()

    def parent(self, headers: Mapping[str, str]) -> Context | None:
        """The span of a client that ``traceparent`` in its headers names; None if there is none, or a broken one."""
        context = self._propagator.extract(headers)
        return context if get_current_span(context).get_span_context().is_valid else None

    def trace(self, next_id: Callable[[], int], parent: Context | None, *, held: bool) -> "SpanTrace":
        """A trace for one request. ``held``: see :class:`~repoagent.serving.tracing.tracer.FileTrace`."""
        pen = _Pen(self._tracer)
        return SpanTrace(pen, next_id, pen.start(_ROOT, parent, time.monotonic_ns()), held=held)

    def close(self) -> None:
        """Send what has been kept. If the collector does not answer, this takes as long as its exporter tries."""
        self._provider.shutdown()


class SpanTrace:
    """A :class:`RequestTrace`: a span for the model in ``outer``, its execution's in it.

    The requests to members that come of it have spans in the model's.
    """

    def __init__(
        self,
        pen: _Pen,
        next_id: Callable[[], int],
        outer: Span,
        *,
        held: bool = False,
        parent: "SpanTrace | None" = None,
    ) -> None:
        self.id = next_id()
        self._pen = pen
        self._next_id = next_id
        self._outer = outer
        self._held = held
        self._parent = parent
        self._span: Span | None = None

    def child(self) -> "SpanTrace":
        return SpanTrace(self._pen, self._next_id, self._span or self._outer, held=True, parent=self)

    def begin(self, request: InferRequest, version: int, now_ns: int) -> None:
        span = self._pen.start(writable(request.model_name), set_span_in_context(self._outer), now_ns)
        span.set_attribute("triton.model_name", writable(request.model_name))
        span.set_attribute("triton.model_version", version)
        span.set_attribute("triton.trace_id", self.id)
        span.set_attribute("triton.trace_parent_id", self._parent.id if self._parent is not None else 0)
        if request.asked.id:
            span.set_attribute("triton.request_id", writable(request.asked.id))
        if request.call_id:
            span.set_attribute("x_request_id", writable(request.call_id))
        if request.classes is not None and request.classes.receipt:
            span.set_attribute("repoagent.attestation", request.classes.receipt)
        self._pen.note(span, "REQUEST_START", now_ns)
        self._pen.note(span, "QUEUE_START", now_ns)
        self._span = span

    def answer(self, response: InferResponse) -> None:
        if response.error is not None and self._span is not None:
            self._span.set_status(Status(StatusCode.ERROR, writable(str(response.error))))

    def end(self, request: InferRequest, now_ns: int) -> None:
        span, times, pen = self._span, request.times, self._pen
        if span is not None:
            if times is not None:
                compute = pen.start("compute", set_span_in_context(span), times.start_ns)
                for name, moment_ns in zip(COMPUTE, times, strict=True):
                    pen.note(compute, name, moment_ns)
                pen.end(compute, times.end_ns)
            pen.note(span, "REQUEST_END", now_ns)
            pen.end(span, now_ns)
        if not self._held:
            self.release()

    def note(self, name: str, now_ns: int) -> None:
        """Something happened at ``now_ns`` (``time.monotonic_ns``)."""
        self._pen.note(self._outer, name, now_ns)

    def release(self) -> None:
        """Nothing more will be noted."""
        if self._parent is None:
            self._pen.end(self._outer, time.monotonic_ns())
