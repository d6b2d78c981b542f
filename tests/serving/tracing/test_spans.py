"""Spans, as a collector gets them: over a real socket, in OTLP."""

import queue
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import InferRequest, InferResponse, OutputClasses
from repoagent.serving.tracing.spans import SpanTraces
from repoagent.serving.tracing.trace_settings import SpanSettings, TraceSettings
from repoagent.serving.tracing.tracer import Tracer
from tests.file_server import FileServer, Request

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
RequestMaker = Callable[..., InferRequest]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-00"}


class Collector:
    """What an OpenTelemetry collector does with spans: takes them."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[tuple[str, ExportTraceServiceRequest]] = queue.SimpleQueue()
        self._server = FileServer()
        self._server.handlers.append(self._take)
        self.url = f"{self._server.url}/v1/traces"
        self.close = self._server.close

    def _take(self, request: Request) -> bool:
        self.requests.put((request.path, ExportTraceServiceRequest.FromString(request.body())))
        request.answer(200)
        return True

    def resource(self) -> tuple[dict[str, str], list[Any]]:
        """The attributes of the sender, and its spans, of all that has arrived."""
        attributes: dict[str, str] = {}
        spans = []
        while not self.requests.empty():
            path, request = self.requests.get()
            assert path == "/v1/traces"
            for resource in request.resource_spans:
                attributes |= {item.key: item.value.string_value for item in resource.resource.attributes}
                spans += [span for scope in resource.scope_spans for span in scope.spans]
        return attributes, spans

    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self.resource()[1]}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def settings(collector: Collector, **changes: Any) -> TraceSettings:
    spans = SpanSettings(url=collector.url, **changes.pop("spans", {}))
    fields = {"level": frozenset({"TIMESTAMPS"}), "rate": 1, "mode": "opentelemetry", **changes}
    return TraceSettings(spans=spans, **fields)


def attributes(span: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


def test_a_request_is_three_spans_with_tritons_names_attributes_and_events(
    collector: Collector, new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("m", {3: "1"})
    core = new_core(trace=settings(collector, spans={"resource": (("service.version", "7"),)}))
    core.load("m")
    core.infer(request_of("m", id="r1"))
    core.stop()
    resource, spans = collector.resource()
    assert (resource["service.name"], resource["service.version"]) == ("repoagent", "7")
    root, model, compute = (
        next(span for span in spans if span.name == name) for name in ("InferRequest", "m", "compute")
    )
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert (root.parent_span_id, model.parent_span_id, compute.parent_span_id) == (b"", root.span_id, model.span_id)
    assert attributes(model) == {
        "triton.model_name": "m",
        "triton.model_version": 3,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r1",
    }
    assert [event.name for event in model.events] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert [event.name for event in compute.events] == [
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]
    times = [root.start_time_unix_nano, model.start_time_unix_nano, compute.start_time_unix_nano]
    times += [event.time_unix_nano for event in compute.events]
    times += [compute.end_time_unix_nano, model.end_time_unix_nano, root.end_time_unix_nano]
    assert times == sorted(times)


def test_a_span_names_the_receipt_of_what_answers(collector: Collector, request_of: RequestMaker) -> None:
    tracer = SpanTraces(SpanSettings(url=collector.url))
    trace = tracer.trace(lambda: 1, None, held=False)
    request = request_of("m")
    request.classes = OutputClasses(batching=False, receipt="sha256:0a")
    trace.begin(request, 1, time.monotonic_ns())
    trace.end(request, time.monotonic_ns())
    tracer.close()
    assert attributes(collector.spans()["m"])["repoagent.attestation"] == "sha256:0a"


def test_texts_that_are_not_unicode_reach_the_collector_escaped(collector: Collector, request_of: RequestMaker) -> None:
    """One that could not be encoded would take the other spans of its batch with it."""
    tracer = SpanTraces(SpanSettings(url=collector.url))
    trace = tracer.trace(lambda: 1, None, held=False)
    request = request_of("m\udcff", id="r\udcff")
    request.call_id = "x\udcff"
    trace.begin(request, 1, time.monotonic_ns())
    trace.answer(InferResponse("m\udcff", "1", "", error=InternalError("text\udcff of a model")))
    trace.end(request, time.monotonic_ns())
    tracer.close()
    span = collector.spans()["m\\udcff"]
    found = attributes(span)
    names = ("triton.model_name", "triton.request_id", "x_request_id")
    assert [found[name] for name in names] == ["m\\udcff", "r\\udcff", "x\\udcff"]
    assert span.status.message == "text\\udcff of a model"


def test_the_members_of_an_ensemble_have_spans_in_its_span(
    collector: Collector, new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, ensemble_config: Any
) -> None:
    write_model("a", {1: "1"})
    write_model("b", {1: "10"})
    write_model("e", {}, ensemble_config(("a", {"x": "x"}, {"y": "t"}), ("b", {"x": "t"}, {"y": "y"})))
    core = new_core(trace=settings(collector))
    core.load("e")
    core.infer(request_of("e"))
    core.stop()
    _, found = collector.resource()
    spans = {span.name: span for span in found}
    assert sorted(span.name for span in found) == ["InferRequest", "a", "b", "compute", "compute", "e"]
    assert spans["e"].parent_span_id == spans["InferRequest"].span_id
    assert spans["a"].parent_span_id == spans["b"].parent_span_id == spans["e"].span_id
    assert attributes(spans["a"])["triton.trace_parent_id"] == attributes(spans["e"])["triton.trace_id"]
    assert {span.parent_span_id for span in found if span.name == "compute"} == {
        spans["a"].span_id,
        spans["b"].span_id,
    }


def test_a_request_with_a_span_of_the_clients_belongs_to_it_whatever_the_rate_is(
    collector: Collector, new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1"})
    core = new_core(trace=settings(collector, rate=0, count=0))
    core.load("m")
    core.infer(request_of("m"))
    core.infer(request_of("m", trace_context={"traceparent": "00-nonsense"}))
    core.infer(request_of("m", trace_context=PARENT))
    core.stop()
    _, spans = collector.resource()
    assert sorted(span.name for span in spans) == ["InferRequest", "compute", "m"]
    (root,) = (span for span in spans if span.name == "InferRequest")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, SPAN)


def test_an_error_is_the_status_of_the_models_span(
    collector: Collector,
    new_core: CoreMaker,
    write_model: ModelWriter,
    request_of: RequestMaker,
    scripted: Any,
    new_sender: Any,
) -> None:
    write_model("m", {1: "1"})
    core = new_core(trace=settings(collector))
    core.load("m")
    scripted.runners[0].error = RuntimeError("no such luck")
    with pytest.raises(RepoAgentError):
        core.infer(request_of("m"))
    sender = new_sender()
    core.submit(request_of("m", sender=sender))
    assert sender.final().error is not None
    core.stop()
    _, spans = collector.resource()
    models = [span for span in spans if span.name == "m"]
    assert [(span.status.code, span.status.message) for span in models] == [(2, "RuntimeError: no such luck")] * 2
    assert sum(span.name == "InferRequest" for span in spans) == 2


def test_every_so_many_requests_are_traced_and_settings_change_at_run_time(
    collector: Collector, new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1"})
    core = new_core(trace=settings(collector, rate=2))
    core.load("m")
    for _ in range(4):
        core.infer(request_of("m"))
    core.tracer.update({"trace_level": "OFF"})
    assert core.tracer.propagates
    assert not core.tracer.enabled
    core.infer(request_of("m", trace_context=PARENT))
    assert core.tracer.settings().to_dict()["trace_mode"] == "opentelemetry"
    with pytest.raises(UnsupportedError, match="the server was started with mode 'opentelemetry'"):
        core.tracer.update({"trace_mode": "triton"})
    core.stop()
    _, spans = collector.resource()
    assert sum(span.name == "InferRequest" for span in spans) == 2


def test_the_environment_names_the_service_and_settings_name_it_more_strongly(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=from-outside,team=vision")
    for spans, name in (({}, "from-outside"), ({"resource": (("service.name", "mine"),)}, "mine")):
        tracer = Tracer(settings(collector, spans=spans))
        trace = tracer.sample("m")
        assert trace is not None
        trace.release()
        tracer.close()
        resource, _ = collector.resource()
        assert (resource["service.name"], resource["team"]) == (name, "vision")


def test_batches_larger_than_the_queue_are_refused(collector: Collector) -> None:
    spans = {"bsp_max_queue_size": 10, "bsp_max_export_batch_size": 20}
    with pytest.raises(InvalidArgumentError, match=r"settings of trace mode 'opentelemetry': .*max_export_batch_size"):
        Tracer(settings(collector, spans=spans))


def test_missing_packages_are_named_with_what_to_install(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "repoagent.serving.tracing.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[otel\]'"):
        Tracer(settings(collector))
