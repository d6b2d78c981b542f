"""What an operator of one server is used to: OpenAI's API, metrics, the page for people, and both logs."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import tritonclient.grpc
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from deploy.ray.tests.kit import PATIENCE, App, World, await_true, tensor
from repoagent.audit.lines import verify

_KEYS: Final = {"reader": "reader-0123456789abcdef0123456789abcdef", "owner": "owner-0123456789abcdef0123456789abcdef"}
_ASK: Final = {"model": "elmbrook", "max_tokens": 6, "temperature": 0.0}
_PROMPT: Final = "The lighthouse of Elmbrook"
_CHAT: Final = {**_ASK, "messages": [{"role": "user", "content": _PROMPT}]}


@pytest.fixture(scope="module")
def app(world: World) -> App:
    world.copy("examples/chat/repository/elmbrook")
    world.model("plain", 1.0, {})
    world.model("secret", 2.0, {})
    file = world.root / "access.toml"
    digests = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in _KEYS.items()}
    file.write_text(
        f'[clients.reader]\nkeys = ["sha256:{digests["reader"]}"]\nmodels = ["elmbrook", "plain"]\n'
        f'rights = ["infer", "metadata"]\n[clients.owner]\nkeys = ["sha256:{digests["owner"]}"]\nmodels = ["*"]\n'
        'rights = ["infer", "metadata", "manage"]\n'
    )
    file.chmod(0o600)
    logs = {"request_log": str(world.root / "requests"), "audit_log": str(world.root / "audit")}
    return world.run(min_replicas=2, access=str(file), allow_openai=True, allow_ui=True, **logs)


@pytest.fixture
def reader(app: App) -> Iterator[httpx.Client]:
    with _client(app, "reader") as client:
        yield client


@pytest.fixture
def owner(app: App) -> Iterator[httpx.Client]:
    with _client(app, "owner") as client:
        yield client


def _headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {_KEYS[name]}"}


def _client(app: App, name: str) -> httpx.Client:
    return httpx.Client(base_url=app.url, headers=_headers(name), timeout=PATIENCE)


# -- OpenAI's API -----------------------------------------------------------------------------------------------------


def test_chat_and_completions_answer_as_documents_and_as_streams(reader: httpx.Client) -> None:
    chat = reader.post("/v1/chat/completions", json=_CHAT)
    assert chat.status_code == 200, chat.text
    text = chat.json()["choices"][0]["message"]["content"]
    assert text
    with reader.stream("POST", "/v1/chat/completions", json={**_CHAT, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    assert len(events) > 3
    assert "".join(deltas) == text
    completion = reader.post("/v1/completions", json={**_ASK, "prompt": _PROMPT})
    assert completion.json()["choices"][0]["text"]


def test_models_that_make_texts_are_listed(reader: httpx.Client) -> None:
    assert reader.get("/v1/models/elmbrook").json()["id"] == "elmbrook"
    assert [entry["id"] for entry in reader.get("/v1/models").json()["data"]] == ["elmbrook"]


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        (json.dumps({**_CHAT, "model": "plain"}), 400, "plain"),
        (json.dumps({**_CHAT, "model": "a/../b"}), 403, "a/../b"),
        (json.dumps({**_CHAT, "model": 7}), 400, "model"),
        (json.dumps({**_CHAT, "model": ""}), 404, ""),
        ("[]", 400, "must be an object"),
        ("no JSON", 400, "JSON"),
        (json.dumps({**_CHAT, "filler": "x" * (1 << 18)}), 200, ""),
    ],
)
def test_errors_are_those_of_openai(reader: httpx.Client, asked: str, status: int, text: str) -> None:
    answer = reader.post("/v1/chat/completions", content=asked, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    if status != 200:
        assert text in answer.json()["error"]["message"]


def test_a_model_that_is_not_there_and_one_of_others(app: App, owner: httpx.Client, reader: httpx.Client) -> None:
    missing = owner.post("/v1/chat/completions", json={**_CHAT, "model": "nosuch"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    streamed = owner.post("/v1/chat/completions", json={**_CHAT, "model": "nosuch", "stream": True})
    assert streamed.status_code == 404, streamed.text
    others = reader.post("/v1/chat/completions", json={**_CHAT, "model": "secret"})
    assert (others.status_code, "secret" in others.json()["error"]["message"]) == (403, True)
    assert httpx.post(f"{app.url}/v1/chat/completions", json=_CHAT, timeout=PATIENCE).status_code == 401


# -- metrics and the page ---------------------------------------------------------------------------------------------


def test_the_metrics_of_every_replica_are_on_one_page(app: App, owner: httpx.Client, reader: httpx.Client) -> None:
    assert reader.post("/v2/models/plain/infer", json=_inputs()).status_code == 200
    assert reader.get("/metrics").status_code == 403
    page = owner.get("/metrics")
    assert page.status_code == 200
    families = {family.name: family for family in text_string_to_metric_families(page.text)}
    samples = families["nv_inference_request_success"].samples
    assert {sample.labels["model"] for sample in samples} >= {"plain"}
    replicas = {sample.labels["replica"] for family in families.values() for sample in family.samples}
    assert len(replicas) == 2
    assert page.text.count("# TYPE nv_inference_request_success ") == 1


def test_the_page_for_people(app: App, owner: httpx.Client) -> None:
    page = owner.get("/ui/")
    assert page.status_code == 200
    assert "default-src" in page.headers["content-security-policy"]
    session = owner.get("/ui/session").json()
    assert (session["client"], session["explicit"]) == ("owner", True)
    assert set(session["manage"]) == {"elmbrook", "plain", "secret"}


# -- the logs ---------------------------------------------------------------------------------------------------------


def _inputs() -> dict[str, Any]:
    return {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


def test_each_request_has_a_line_in_the_log_of_its_ingress(app: App, world: World, reader: httpx.Client) -> None:
    reader.post("/v2/models/plain/infer", json=_inputs(), headers={"x-request-id": "over-http"})
    reader.post("/v1/chat/completions", json=_CHAT, headers={"x-request-id": "over-openai"})
    reader.post("/v2/models/secret/infer", json=_inputs(), headers={"x-request-id": "denied"})
    with app.grpc() as client:
        for model, name in (("plain", "over-grpc"), ("secret", "denied-grpc")):
            headers = {**_headers("reader"), "x-request-id": name}
            try:
                client.infer(model, [tensor(tritonclient.grpc)], headers=headers)
            except InferenceServerException:
                assert model == "secret"
    wanted = {"over-http", "over-openai", "denied", "over-grpc", "denied-grpc"}

    def found() -> dict[str, dict[str, Any]]:
        return {line["request"]: line for line in _lines(world.root / "requests")}

    await_true(lambda: wanted <= set(found()), "a line of each")
    lines = found()
    assert {name: (lines[name]["model"], lines[name]["status"]) for name in wanted} == {
        "over-http": ("plain", 200),
        "over-openai": ("elmbrook", 200),
        "denied": ("secret", 403),
        "over-grpc": ("plain", 0),
        "denied-grpc": ("secret", 7),
    }
    assert {lines[name]["client"] for name in wanted} == {"reader"}
    assert all(lines[name]["bytes_in"] > 0 for name in ("over-http", "over-openai", "over-grpc"))
    assert all(_KEYS["reader"] not in json.dumps(line) for line in lines.values())


def test_the_audit_logs_tell_who_loaded_and_who_was_denied(app: App, world: World, owner: httpx.Client) -> None:
    assert owner.post("/v2/repository/models/plain/load", headers={"x-request-id": "by-http"}).status_code == 200
    with app.grpc() as client:
        client.unload_model("plain", headers={**_headers("owner"), "x-request-id": "by-grpc"})
        with pytest.raises(InferenceServerException):
            client.unload_model("plain", headers=_headers("reader"))
    folder = world.root / "audit"

    def acts(event: str) -> list[dict[str, Any]]:
        return [line for line in _lines(folder) if line["event"] == event]

    await_true(lambda: any(line["who"].get("client") == "reader" for line in acts("denied")), "the denial")
    assert any(line["who"].get("request") == "by-http" and line["who"]["client"] == "owner" for line in acts("load"))
    assert any(line["who"].get("request") == "by-grpc" and line["who"]["via"] == "grpc" for line in acts("unload"))
    files = sorted(folder.glob("*.jsonl"))
    assert {file.name.partition("-")[0] for file in files} == {"ingress", "replica"}
    for file in files:
        verify([file])  # raises where the chain is broken
    text = "".join(file.read_text() for file in files)
    assert _KEYS["owner"] not in text
    assert {line["result"] for line in acts("server")} == {"started"}
