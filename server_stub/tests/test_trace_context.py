"""The span that a client names in its headers reaches the tracer, over HTTP and gRPC, with NVIDIA's clients."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served, trace_context
from repoagent_server.shared.grpc_options import GrpcOptions

from repoagent.serving.tracing.trace_settings import SpanSettings, TraceSettings
from repoagent.serving.tracing.tracer import Tracer

_HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}


@pytest.fixture
def spans(core: Any) -> Iterator[None]:
    """Tracing that makes spans of requests with a context; the core of these tests traces nothing."""
    spans = SpanSettings(url="http://127.0.0.1:9/v1/traces")
    core.tracer = Tracer(TraceSettings(level=frozenset({"TIMESTAMPS"}), rate=0, mode="opentelemetry", spans=spans))
    yield
    core.tracer.close()


@pytest.fixture
def grpc_port(core: Any) -> Iterator[int]:
    frontend = GrpcFrontend(Served(core), GrpcOptions(port=0))
    frontend.start()
    yield frontend.bind()[1]
    frontend.stop()


def inputs(module: Any) -> list[Any]:
    tensor = module.InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
    return [tensor]


@pytest.mark.usefixtures("spans")
def test_it_comes_with_a_request_over_http(core: Any, start: Any) -> None:
    host, port = start().bind()
    with http_client.InferenceServerClient(f"{host}:{port}") as client:
        client.infer("ident", inputs(http_client), headers=dict(_HEADERS))
        client.infer("ident", inputs(http_client))
    assert [request.trace_context for request in core.requests] == [_HEADERS, None]


@pytest.mark.usefixtures("spans")
def test_it_comes_with_a_generate_request(core: Any, client: httpx.Client) -> None:
    client.post("/v2/models/str/generate", json={"INPUT0": "a"}, headers={"TraceParent": _HEADERS["traceparent"]})
    assert [request.trace_context for request in core.requests] == [{"traceparent": _HEADERS["traceparent"]}]


@pytest.mark.usefixtures("spans")
def test_it_comes_with_a_request_over_grpc(core: Any, grpc_port: int) -> None:
    with grpc_client.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
        client.infer("ident", inputs(grpc_client), headers=dict(_HEADERS))
        client.infer("ident", inputs(grpc_client))
    assert [request.trace_context for request in core.requests] == [_HEADERS, None]


@pytest.mark.usefixtures("spans")
def test_it_comes_with_every_request_of_a_stream(core: Any, grpc_port: int) -> None:
    from tritonclient.grpc import aio

    async def ask() -> None:
        async def requests() -> Any:
            for _ in range(2):
                yield {"model_name": "ident", "inputs": inputs(grpc_client)}

        client = aio.InferenceServerClient(f"127.0.0.1:{grpc_port}")
        async for _, error in client.stream_infer(requests(), headers=dict(_HEADERS)):
            assert error is None
        await client.close()

    asyncio.run(ask())
    assert [request.trace_context for request in core.requests] == [_HEADERS, _HEADERS]


def test_nobody_looks_at_headers_without_spans(core: Any, client: httpx.Client) -> None:
    client.post("/v2/models/str/generate", json={"INPUT0": "a"}, headers=dict(_HEADERS))
    assert [request.trace_context for request in core.requests] == [None]


def test_other_headers_are_no_context() -> None:
    assert trace_context([(b"Host", b"x"), (b"X-Trace", b"y")]) is None
    assert trace_context([(b"TRACEPARENT", b"p"), ("tracestate", "s")]) == {"traceparent": "p", "tracestate": "s"}
