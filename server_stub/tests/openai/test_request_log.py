"""The request log of OpenAI's API: a line for each request, with what it cost and nothing of what was said."""

import json
import os
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.shared.request_log import RequestLog

from repoagent.server import Server

from .conftest import user
from .test_chat import ANSWER, PROMPT

PATIENCE: Final = 120
Lines = Callable[[int], list[dict[str, Any]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A pipe: what reads it waits for lines."""
    path = tmp_path / "requests.log"
    os.mkfifo(path)
    return path


@pytest.fixture
def pipe(path: Path) -> Iterator[int]:
    """The end that is read."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.fixture
def logged(server: Server, path: Path, pipe: int) -> Iterator[httpx.Client]:
    """A client of a front end with a request log."""
    del pipe  # It is open before the log is.
    with ExitStack() as stack:
        log = RequestLog(path)
        stack.callback(log.close)
        front = HttpFrontend(Endpoint(port=0), api_service(Served(server.core, request_log=log), openai=True))
        stack.callback(front.stop)
        front.start()
        yield stack.enter_context(httpx.Client(base_url="http://{}:{}".format(*front.bind()), timeout=PATIENCE))


@pytest.fixture
def lines(pipe: int) -> Lines:
    """The lines of the log, once there are so many."""

    def read(count: int) -> list[dict[str, Any]]:
        text = ""
        while text.count("\n") < count:
            readable, _, _ = select.select([pipe], [], [], PATIENCE)
            assert readable, text
            piece = os.read(pipe, 1 << 16)
            assert piece, f"the log is closed: {text}"
            text += piece.decode("ascii")
        assert ANSWER not in text
        assert PROMPT not in text
        return [json.loads(line) for line in text.splitlines()]

    return read


def _ask(client: httpx.Client, path: str = "chat/completions", **body: Any) -> httpx.Response:
    return client.post(f"/v1/{path}", json=body, headers={"x-request-id": "r-1"})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path_", ["chat/completions", "completions"])
def test_an_answer_has_its_line(logged: httpx.Client, lines: Lines, stream: bool, path_: str) -> None:
    prompt = {"messages": user(PROMPT)} if path_ == "chat/completions" else {"prompt": f"<s>{PROMPT}"}
    more = {"stream_options": {"include_usage": True}} if stream else {}
    answer = _ask(logged, path_, model="sums", temperature=0, stream=stream, max_tokens=12, **prompt, **more)
    (line,) = lines(1)
    shown = {name: line[name] for name in ("client", "model", "version", "protocol", "status", "request")}
    assert shown == {
        "client": "",
        "model": "sums",
        "version": "1",
        "protocol": "http",
        "status": 200,
        "request": "r-1",
    }
    assert (line["bytes_in"], line["bytes_out"]) == (len(answer.request.content), len(answer.content))
    assert line["milliseconds"] > 0
    document = json.loads(answer.text.splitlines()[-4].removeprefix("data: ") if stream else answer.text)
    usage = document["usage"]
    assert (line["tokens_in"], line["tokens_out"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert line["tokens_out"] == 12


def test_prompts_and_choices_are_counted_together(logged: httpx.Client, lines: Lines) -> None:
    _ask(logged, "completions", model="sums", prompt=["1+1:", "2+2:"], n=2, max_tokens=3, temperature=1)
    (line,) = lines(1)
    assert line["tokens_out"] == 12


def test_a_stream_without_usage_has_its_tokens_in_the_log(logged: httpx.Client, lines: Lines) -> None:
    _ask(logged, model="sums", messages=user(PROMPT), stream=True, temperature=0)
    (line,) = lines(1)
    assert (line["tokens_in"], line["tokens_out"]) == (7, len(ANSWER))


def test_a_stream_that_the_client_breaks_off_has_what_was_made_by_then(logged: httpx.Client, lines: Lines) -> None:
    body = {"model": "narrow", "messages": user("1"), "temperature": 2, "ignore_eos": True, "stream": True}
    with logged.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        for number, _ in enumerate(answer.iter_lines()):
            if number > 20:
                break
    (line,) = lines(1)
    assert (line["model"], line["version"], line["status"]) == ("narrow", "1", 200)
    assert 0 < line["tokens_out"] < 30_000
    assert line["bytes_out"] > 0


def test_embeddings_have_their_line(logged: httpx.Client, lines: Lines) -> None:
    answer = _ask(logged, "embeddings", model="letters", input=["banana", "x"])
    (line,) = lines(1)
    assert (line["model"], line["version"], line["status"]) == ("letters", "1", 200)
    assert line["bytes_out"] == len(answer.content)
    assert "tokens_out" not in line


@pytest.mark.parametrize(
    ("body", "status", "model"),
    [
        ({"model": "none", "messages": user(PROMPT)}, 404, "none"),
        ({"model": "letters", "messages": user(PROMPT)}, 400, "letters"),
        ({"model": "sums", "messages": [{"role": "user", "content": {"secret": PROMPT}}]}, 400, "sums"),
        ({"model": "parrot", "messages": user("fail"), "stream": True}, 500, "parrot"),
    ],
)
def test_an_error_has_its_line(
    logged: httpx.Client, lines: Lines, body: dict[str, Any], status: int, model: str
) -> None:
    answer = _ask(logged, **body)
    assert answer.status_code == status
    (line,) = lines(1)
    assert (line["status"], line["model"], line["bytes_out"]) == (status, model, len(answer.content))
    assert "tokens_out" not in line


def test_a_fault_in_the_middle_of_a_stream_keeps_the_status_that_it_began_with(
    logged: httpx.Client, lines: Lines
) -> None:
    answer = _ask(logged, model="parrot", messages=user("fail later"), stream=True)
    (line,) = lines(1)
    assert (line["status"], line["model"], line["bytes_out"]) == (200, "parrot", len(answer.content))


def test_lists_of_models_have_no_line(logged: httpx.Client, lines: Lines) -> None:
    assert logged.get("/v1/models").status_code == 200
    _ask(logged, model="none", messages=user("x"))
    assert [line["status"] for line in lines(1)] == [404]
