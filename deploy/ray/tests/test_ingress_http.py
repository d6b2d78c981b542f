"""OpenAI's API in an ingress, as far as no replica is asked."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray[serve] is not installed: `make ray` installs it")

from repoagent_ray.ingress_http import _Forward, _Passes
from repoagent_ray.replicas import Replicas
from repoagent_ray.wire import HttpCall, HttpHead
from repoagent_server.http.body import frame_of
from repoagent_server.http.messages import Request

from deploy.ray.tests.kit import PATIENCE
from repoagent.errors import UnavailableError

BODY = b'{"model": "m:a", "prompt": "x"}'


class _Handle:
    """In the place of Ray's: a repository has ``m`` and ``odd:name``."""

    def options(self, **_: Any) -> Any:
        return SimpleNamespace(options=self.options, remote=self._knows)

    async def _knows(self, name: str) -> bool:
        return name in ("m", "odd:name")


@pytest.mark.parametrize(
    ("name", "model"), [("m", "m"), ("m:a", "m"), ("m:a:b", "m"), ("odd:name", "odd:name"), ("n:a", "n"), ("", "")]
)
def test_an_adapter_belongs_to_its_model(name: str, model: str) -> None:
    async def found() -> str:
        handle: Any = _Handle()
        model: str = await Replicas(handle, asyncio.get_running_loop()).model_of(name)
        return model

    assert asyncio.run(found()) == model


@pytest.mark.parametrize("admitted", [True, False])
def test_the_rights_and_the_replicas_for_an_adapter_are_those_of_its_model(admitted: bool) -> None:
    asked: list[Any] = []

    async def model_of(_: str) -> str:
        return "m"

    async def once(_: str, model: str, call: HttpCall) -> HttpHead:
        asked.append((model, bytes(call.body)))
        return HttpHead(200, b"", [])

    def admit(_: Any, model: str, *, route: str) -> None:
        asked.append((model, route))
        if not admitted:
            raise UnavailableError("no")

    async def answered() -> Any:
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        replicas: Any = SimpleNamespace(model_of=model_of, once=once)
        exchange: Any = SimpleNamespace(respond=found.set_result, on_cancel=None)
        inference: Any = SimpleNamespace(admit=admit)
        request = Request(b"POST", b"/tokenize", [], frame_of([]), BODY)
        forward = _Forward(replicas, asyncio.get_running_loop(), guarded=True)
        _Passes(inference, inference, forward).on(request, {}, exchange)
        async with asyncio.timeout(PATIENCE):
            return (await found).status, request.model

    assert asyncio.run(answered()) == (200 if admitted else 503, "m")
    assert asked == [("m", "POST /tokenize"), ("m", BODY)][: 1 + admitted]


@pytest.mark.parametrize(
    ("path", "last"),
    [
        (b"/v1/responses", b'event: error\ndata: {"type":"error","code":"server_error","message":"gone","param":null,'),
        (b"/v1/responses?x", b'event: error\ndata: {"type":"error",'),
        (b"/v1/chat/completions", b'data: {"error":{"message":"gone",'),
    ],
)
def test_a_stream_whose_replica_is_gone_ends_with_an_event_of_its_route(path: bytes, last: bytes) -> None:
    """Clients of OpenAI's read what lies behind ``data:`` by its type."""

    async def stream(*_: Any) -> Any:
        yield HttpHead(200, b"", [], (b"event: a\ndata: {}\n\nevent: b\ndata: {}\n\n",))
        yield b"event: c\ndata: {}\n\n"
        raise UnavailableError("gone")

    async def written() -> list[bytes]:
        pieces: list[bytes] = []
        ended = asyncio.Event()
        exchange: Any = SimpleNamespace(begin=lambda _: None, write=pieces.append, end=ended.set, on_cancel=None)
        replicas: Any = SimpleNamespace(stream=stream)
        forward = _Forward(replicas, asyncio.get_running_loop(), guarded=True)
        forward.stream(Request(b"POST", path, [], frame_of([]), BODY), {"model": "m"}, exchange)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        return pieces

    found = asyncio.run(written())[-1]
    assert found.startswith(last)
    assert (b'"sequence_number":3}' in found) == path.startswith(b"/v1/responses")
