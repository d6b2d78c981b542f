"""The API as an ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.asgi import AsgiApp

_BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'


@pytest.fixture
async def app(core: Any) -> AsyncIterator[AsgiApp]:
    app = AsgiApp(api_service(Served(core)), max_body=1000)
    yield app
    app.close()


@pytest.fixture
async def web(app: AsgiApp) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        yield client


async def test_answers_are_those_of_the_front_end(web: httpx.AsyncClient) -> None:
    assert (await web.get("/v2/health/live", headers={"Accept": "application/json"})).json() == {"live": True}
    assert (await web.get("/nope")).status_code == 404
    response = await web.post("/v2/models/ident/infer", content=_BODY)
    assert response.json()["outputs"][0]["data"] == [1.0, 2.0]
    assert response.headers["content-type"] == "application/json"
    assert (await web.post("/v2/repository/index")).status_code == 200
    assert (await web.head("/v2")).content == b""


async def test_binary_outputs_follow_the_json(web: httpx.AsyncClient) -> None:
    body = _BODY.replace(b"}]}", b'}],"parameters":{"binary_data_output":true}}')
    response = await web.post("/v2/models/ident/infer", content=body)
    tail = response.content[int(response.headers["inference-header-content-length"]) :]
    assert np.frombuffer(tail, np.float32).tolist() == [1, 2]


async def test_a_body_over_the_limit_is_refused(web: httpx.AsyncClient) -> None:
    response = await web.post("/v2/models/ident/infer", content=b" " * 1001)
    assert response.status_code == 400
    assert "exceeds the maximum allowed input size of 1000 bytes" in response.json()["error"]


async def test_a_host_that_repeats_ids_of_requests_itself_gets_none(core: Any) -> None:
    for repeats in (True, False):
        with AsgiApp(api_service(Served(core)), request_ids=repeats) as app:
            sent = await _call(app, "/v2/health/live", headers=[(b"x-request-id", b"mine")])
        assert ((b"x-request-id", b"mine") in sent[0]["headers"]) == repeats


async def test_an_answer_from_another_thread_arrives(core: Any, web: httpx.AsyncClient) -> None:
    core.gate.set()
    assert (await web.post("/v2/models/slow/infer", content=_BODY)).status_code == 200


async def test_below_a_mount_point_paths_are_relative_to_it(app: AsgiApp) -> None:
    sent = await _call(app, "/models-api/v2/health/live", root="/models-api")
    assert sent[0]["status"] == 200


@pytest.mark.parametrize(
    ("path", "raw", "root"),
    [
        ("/a b/v2/health/live", b"/a%20b/v2/health/live", "/a b"),
        ("/a/b/v2/health/live", b"/a/b/v2/health/live", "/a/b/"),
        ("/v2/health/live", b"/v2/health/live", "/taken-off-by-a-proxy"),
        ("/v2/health/live", b"/v2/health/live", "/v"),
        ("/a/v2/health/live", None, "/a"),
    ],
)
async def test_the_mount_point_is_taken_off_however_it_is_written(
    app: AsgiApp, path: str, raw: bytes | None, root: str
) -> None:
    assert (await _call(app, path, root=root, raw=raw))[0]["status"] == 200


async def test_the_mount_point_itself_is_no_route(app: AsgiApp) -> None:
    assert (await _call(app, "/a", root="/a"))[0]["status"] == 404


async def test_a_web_socket_is_refused(app: AsgiApp) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "websocket", "path": "/v2"}, None, send)  # type: ignore[arg-type]  # nothing is received
    assert sent == ["websocket.close"]


async def test_a_client_that_leaves_has_its_request_cancelled(core: Any, app: AsgiApp) -> None:
    assert await _call(app, "/v2/models/slow/infer", body=_BODY, leaves=True) == []
    assert core.requests[-1].cancelled


async def test_a_request_whose_client_leaves_within_its_body_is_not_executed(core: Any, app: AsgiApp) -> None:
    before = len(core.requests)
    events = iter([{"type": "http.request", "body": _BODY, "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(events)

    async def send(message: Any) -> None:
        raise AssertionError(f"{message} is sent to nobody")

    path = "/v2/models/ident/infer"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": []}
    await app(scope, receive, send)
    assert len(core.requests) == before


async def test_the_lifespan_is_answered(app: AsgiApp) -> None:
    events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(events)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def _call(
    app: AsgiApp,
    path: str,
    *,
    body: bytes = b"",
    root: str = "",
    raw: bytes | None = b"",
    leaves: bool = False,
    headers: Any = (),
) -> list[Any]:
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST" if body else "GET",
        "path": path,
        "raw_path": path.encode() if raw == b"" else raw,
        "root_path": root,
        "query_string": b"",
        "headers": list(headers),
    }
    messages = [{"type": "http.request", "body": body}, *([{"type": "http.disconnect"}] if leaves else [])]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent
