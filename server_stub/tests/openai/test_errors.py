"""What goes wrong, in OpenAI's form; clients that leave; parts of the API that need a header."""

import json
import shutil
import socket
import subprocess
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from openai import APIError, BadRequestError, InternalServerError, NotFoundError, OpenAI, RateLimitError
from repoagent_server import KServeHttp, asgi_app
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend

from repoagent.server import Server
from repoagent.serving.measuring.custom_metrics import REGISTRY
from tests.waiting import until

from .conftest import user

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {"model": "narrow", "messages": user("1"), "temperature": 2, "extra_body": {"ignore_eos": True}}


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as caught:
        client.chat.completions.create(model="none", messages=user("x"))
    assert caught.value.code == "model_not_found"
    assert "The model 'none' does not exist" in caught.value.message


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"{}", b"[" * 5000, b'{"model": 1}', b'{"model": "m"}'])
def test_a_body_that_makes_no_sense_is_a_clients_error(path: str, body: bytes, http: httpx.Client) -> None:
    response = http.post(f"/v1/{path}", content=body)
    assert response.status_code in (400, 404)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_model_that_makes_no_text_is_named(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="model 'letters' does not generate text"):
        client.chat.completions.create(model="letters", messages=user("x"))
    with pytest.raises(BadRequestError, match="model 'chain' has no input 'messages'"):
        client.chat.completions.create(model="chain", messages=user("x"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_the_model_is_the_servers(stream: bool, client: OpenAI) -> None:
    with pytest.raises(InternalServerError, match="a fault of the model"):
        client.chat.completions.create(model="parrot", messages=user("fail"), stream=stream)


def test_a_fault_after_the_first_piece_is_an_event(client: OpenAI) -> None:
    stream = client.chat.completions.create(model="parrot", messages=user("fail later"), stream=True)
    texts = []
    with pytest.raises(APIError, match="a fault of the model"):
        texts += [chunk.choices[0].delta.content for chunk in stream]
    assert texts == []


def test_an_error_of_the_backend_is_a_clients_error(http: httpx.Client) -> None:
    body = {"model": "sums", "messages": user("x"), "logit_bias": {"99999": 1}}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("logit_bias")


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_no_token_spells_is_a_clients_error(stream: bool, http: httpx.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"const": "日本"}}}
    body = {"model": "sums", "messages": user("x"), "response_format": form, "max_tokens": 40, "stream": stream}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == (200 if stream else 400)
    *_, last = [line for line in response.text.splitlines() if line]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["type"] == "invalid_request_error"
    assert "choosing a token failed" in error["message"]


def _used_blocks(model: str) -> float:
    return _metric("nv_trt_llm_kv_cache_block_metrics", model, kv_cache_block_type="used")


def _waiting(model: str) -> float:
    return _metric("nv_trt_llm_request_metrics", model, request_type="waiting")


def _metric(name: str, model: str, **labels: str) -> float:
    wanted = {"model": model, **labels}.items()
    return sum(metric.value for metric in REGISTRY.series(name) if wanted <= metric.labels.items())


def test_a_full_queue_is_429_and_a_client_that_leaves_makes_room(client: OpenAI, url: str) -> None:
    """One request runs and one waits; then there is no room. Both are given up by closing their connections."""
    held = [_hold(url)]
    held[0].recv(200)  # It runs.
    held.append(_hold(url))
    until(lambda: _waiting("narrow") == 1)
    refusals: list[RateLimitError] = []

    def refused() -> bool:
        before = len(refusals)
        try:
            client.chat.completions.create(max_tokens=1, **LONG)
        except RateLimitError as error:
            refusals.append(error)
        return len(refusals) > before

    assert refused()
    assert refusals[0].response.headers["retry-after"] == "1"
    assert refusals[0].type == "rate_limit_error"
    until(lambda: _used_blocks("narrow") > 0)
    for one in held:
        one.close()
    until(lambda: not refused())
    until(lambda: _used_blocks("narrow") == 0)


def _hold(url: str) -> socket.socket:
    """A stream that is not read, of a text that does not end soon."""
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    body = json.dumps({**LONG, "stream": True, "ignore_eos": True, "extra_body": None, "max_tokens": 25_000}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    connection = socket.create_connection((address.hostname, address.port))
    connection.sendall(head + body)
    return connection


def test_other_methods_and_paths_are_refused(http: httpx.Client) -> None:
    response = http.get("/v1/chat/completions")
    assert response.status_code == 405
    assert response.json()["error"]["message"] == "Method Not Allowed"
    assert http.post("/v1/batches", json={}).status_code == 404


def test_without_the_flag_the_routes_name_it(server: Server) -> None:
    with KServeHttp(server, KServeHttp.Options(port=0)) as front:
        base = "http://{}:{}/v1".format(*front.address)
        with OpenAI(base_url=base, api_key="any", max_retries=0) as client:
            with pytest.raises(NotFoundError, match="start it with --allow-openai=true"):
                client.models.list()
            with pytest.raises(NotFoundError, match="start it with --allow-openai=true"):
                client.completions.create(model="sums", prompt="1+1:")
        for method in ("GET", "POST"):
            answer = httpx.request(method, f"{base}/chat/completions")
            assert (answer.status_code, "--allow-openai" in answer.json()["error"]["message"]) == (404, True)
        assert httpx.post(f"{base}/responses", json={}).status_code == 404


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/batches", "/v1/chat"])
def test_a_path_that_does_not_exist_is_told_in_openais_form(path: str, http: httpx.Client) -> None:
    """F21."""
    for method in ("GET", "POST"):
        answer = http.request(method, path, json={})
        assert answer.status_code == 404
        assert "no such path" in answer.json()["error"]["message"]


def test_a_route_that_is_off_waits_for_no_body(server: Server) -> None:
    with KServeHttp(server, KServeHttp.Options(port=0)) as front, socket.create_connection(front.address) as client:
        client.settimeout(60)
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        )
        answer = client.makefile("rb").readline()
    assert answer == b"HTTP/1.1 404 Not Found\r\n"


@pytest.mark.parametrize("openai", [False, True])
def test_restricted_parts_hide_whether_the_api_is_on(server: Server, openai: bool) -> None:
    secret = Restriction("authorization", b"Bearer open sesame")
    parts = {Api.INFERENCE: secret, Api.MODEL_REPOSITORY: secret}
    front = HttpFrontend(Endpoint("127.0.0.1", 0), api_service(Served(server.core), openai=openai, restrictions=parts))
    front.start()
    try:
        base = "http://{}:{}/v1".format(*front.bind())
        for path in ("chat/completions", "completions", "embeddings", "models", "models/sums"):
            answer = httpx.post(f"{base}/{path}", json={"model": "sums"})
            assert answer.status_code == 403
            assert answer.json()["error"]["message"] == "This API is restricted, expecting header 'authorization'"
    finally:
        front.drain(5)
        front.stop()


def test_restricted_parts_need_their_header(server: Server) -> None:
    """The client's API key can be the secret: it is sent as a header."""
    secret = Restriction("authorization", b"Bearer open sesame")
    service = api_service(
        Served(server.core), openai=True, restrictions={Api.INFERENCE: secret, Api.MODEL_REPOSITORY: secret}
    )
    front = HttpFrontend(Endpoint("127.0.0.1", 0), service)
    front.start()
    try:
        base = "http://{}:{}/v1".format(*front.bind())
        with OpenAI(base_url=base, api_key="open sesame", max_retries=0) as client:
            assert client.models.list().data
            assert client.completions.create(model="sums", prompt="1+1:", max_tokens=2).choices
        for path in ("chat/completions", "completions", "embeddings"):
            response = httpx.post(f"{base}/{path}", json={"model": "sums"})
            assert response.status_code == 403
            assert response.json()["error"]["type"] == "permission_error"
        for path in ("models", "models/sums"):
            assert httpx.get(f"{base}/{path}", headers={"authorization": "Bearer x"}).status_code == 403
    finally:
        front.drain(5)
        front.stop()


async def test_the_application_for_other_servers_has_them(server: Server) -> None:
    with asgi_app(server, allow_openai=True) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            asked = {"model": "sums", "messages": user("47+85:"), "temperature": 0}
            whole = await client.post("/v1/chat/completions", json=asked)
            assert whole.json()["choices"][0]["message"]["content"] == " 7+5=12, 4+8+1=13. 132"
            stream = await client.post("/v1/chat/completions", json={**asked, "stream": True})
            assert stream.text.endswith("data: [DONE]\n\n")


def test_pieces_come_as_they_are_made(url: str) -> None:
    """As a stock client sees them that does not know of events."""
    connection = _hold(url)
    received = b""
    while received.count(b"data: ") < 3:
        piece = connection.recv(4096)
        assert piece
        received += piece
    assert b"[DONE]" not in received
    assert b"\r\nContent-Type: text/event-stream" in received
    connection.close()


def test_a_stock_curl_shows_pieces_as_they_are_made(url: str) -> None:
    if (curl := shutil.which("curl")) is None:
        pytest.skip("curl is not installed")
    body = {**LONG, "stream": True, "ignore_eos": True, "extra_body": None, "max_tokens": 25_000}
    command = [
        curl,
        "-sN",
        f"{url}/v1/chat/completions",
        "-H",
        "Content-Type: application/json",
        "-d",
        json.dumps(body),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        events = [line for line in (process.stdout.readline() for _ in range(6)) if line.strip()]
        assert process.poll() is None
        process.terminate()
    assert len(events) == 3
    assert all(event.startswith(b"data: {") for event in events)


def test_a_body_of_millions_of_objects_is_refused(http: httpx.Client) -> None:
    response = http.post(
        "/v1/chat/completions", content=b'{"model":"parrot","messages":[' + b"{}," * (1 << 21) + b"{}]}"
    )
    assert response.status_code == 400
    assert "more than 2097152 objects" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"model": "x" * 1_000_000}, "model"),
        ({"model": "sums:" + "x" * 1_000_000}, "model"),
        ({"logit_bias": {"9" * 1_000_000: "x"}}, "logit_bias." + "9" * 245),
    ],
)
def test_an_error_repeats_little_of_what_a_client_sends(http: httpx.Client, more: Any, field: str) -> None:
    """A name of 64 MB came back twice, and was written to the log."""
    body = {"model": "sums", "messages": [{"role": "user", "content": "x"}], **more}
    response = http.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert len(response.content) < 2000


@pytest.mark.parametrize("depth", [150, 5000, 200_000])
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_a_schema_of_a_tool_that_is_nested_without_end_is_refused(http: httpx.Client, path: str, depth: int) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": "DEEP"}}
    tool = {"type": "function", **function} if path == "responses" else {"type": "function", "function": function}
    prompt = {"input": "x"} if path == "responses" else {"messages": user("x")}
    body = json.dumps({"model": "sums", **prompt, "tools": [tool], "tool_choice": "required"})
    response = http.post(f"/v1/{path}", content=body.replace('"DEEP"', '{"a":' * depth + "{}" + "}" * depth))
    assert response.status_code == 400
    assert "nesting depth exceeds" in response.json()["error"]["message"]
