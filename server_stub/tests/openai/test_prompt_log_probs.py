"""Log-probabilities of prompts, as harnesses that score texts ask for them: ``echo`` with ``logprobs``, and vLLM's
``prompt_logprobs``."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tokenizers
from openai import BadRequestError, OpenAI
from repoagent_server.openai.answer import ChoicesAnswer
from repoagent_server.openai.completion_request import CompletionAnswer

from .conftest import Token, user

PROMPT = "47+85:"


def of(made: Any) -> tuple[list[str], list[Any]]:
    (choice,) = made.choices
    return choice.logprobs.tokens, choice.logprobs.token_logprobs


@pytest.fixture(scope="module")
def written(client: OpenAI) -> Any:
    return client.completions.create(model="sums", prompt=PROMPT, temperature=0, max_tokens=6, logprobs=2)


def test_what_was_generated_scores_the_same_as_a_prompt(client: OpenAI, written: Any) -> None:
    text = written.choices[0].text
    made: Any = client.completions.create(model="sums", prompt=PROMPT + text, echo=True, logprobs=2, max_tokens=0)
    tokens, scores = of(made)
    wanted_tokens, wanted_scores = of(written)
    assert made.choices[0].text == PROMPT + text
    assert (tokens[-len(wanted_tokens) :], scores[0]) == (wanted_tokens, None)
    assert scores[-len(wanted_scores) :] == pytest.approx(wanted_scores, abs=1e-3)
    assert made.choices[0].logprobs.top_logprobs[0] is None
    assert made.choices[0].logprobs.text_offset[1] == len(tokens[0])
    assert made.usage is not None
    assert (made.usage.completion_tokens, made.choices[0].finish_reason) == (0, "length")


def test_what_follows_has_its_own_behind_them(client: OpenAI, written: Any) -> None:
    made = client.completions.create(model="sums", prompt=PROMPT, echo=True, logprobs=2, max_tokens=6, temperature=0)
    tokens, scores = of(made)
    wanted_tokens, wanted_scores = of(written)
    assert made.choices[0].text == PROMPT + written.choices[0].text
    assert tokens[-len(wanted_tokens) :] == wanted_tokens
    assert scores[-len(wanted_scores) :] == pytest.approx(wanted_scores, abs=1e-3)


def test_streamed_is_whole(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "sums", "prompt": PROMPT, "echo": True, "logprobs": 1, "temperature": 0}
    whole = client.completions.create(**asked)
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True) if chunk.choices]
    assert "".join(chunk.text for chunk in chunks) == whole.choices[0].text
    assert [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.tokens or ()] == of(whole)[0]


def test_prompts_of_tokens_are_echoed(client: OpenAI, token: Token) -> None:
    tokens = [token(character) for character in PROMPT]
    scored = client.completions.create(model="sums", prompt=[tokens, tokens], echo=True, logprobs=1, max_tokens=1)
    assert [choice.text[: len(PROMPT)] for choice in scored.choices] == [PROMPT, PROMPT]
    plain = client.completions.create(model="sums", prompt=tokens, echo=True, max_tokens=0)
    assert (plain.choices[0].text, plain.choices[0].logprobs) == (PROMPT, None)


def test_tokens_from_the_cache_are_counted(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "sums", "prompt": "12+34:46, 12+34:46, 12+34:46, 12+34:", "max_tokens": 1}
    usages = [client.completions.create(**asked).usage for _ in range(2)]
    assert usages[1] is not None
    details = usages[1].prompt_tokens_details
    assert details is None or 0 < (details.cached_tokens or 0) < usages[1].prompt_tokens


@pytest.fixture(scope="module")
def wanted(http: httpx.Client, repository: Path) -> Any:
    """What vLLM writes of ``PROMPT`` with two alternatives, made of the logits that the model answers with."""
    body = {"text_input": PROMPT, "max_tokens": 1, "return_context_logits": True}
    logits = np.array(http.post("/v2/models/sums/generate", json=body).json()["context_logits"], np.float64)
    tokenizer = tokenizers.Tokenizer.from_file(str(repository / "sums" / "1" / "tokenizer.json"))
    tokens = tokenizer.encode(PROMPT).ids
    rows = logits.reshape(len(tokens), -1)
    rows -= np.log(np.exp(rows).sum(1, keepdims=True))
    found: list[Any] = [None]
    for row, token in zip(rows, tokens[1:], strict=False):
        order = np.argsort(-row, kind="stable").tolist()
        found.append(
            {
                str(each): {
                    "logprob": pytest.approx(row[each], abs=1e-5),
                    "rank": order.index(each) + 1,
                    "decoded_token": tokenizer.decode([each], skip_special_tokens=False),
                }
                for each in dict.fromkeys([token, *order[:2]])
            }
        )
    return found


def ids_of(entries: list[Any]) -> list[list[str]]:
    return [list(entry or ()) for entry in entries]


@pytest.mark.parametrize("more", [{}, {"max_tokens": 0}, {"echo": True, "logprobs": 1}, {"n": 3, "temperature": 1}])
def test_prompt_logprobs_have_ids_and_ranks_as_those_of_vllm(http: httpx.Client, wanted: Any, more: Any) -> None:
    body = {"model": "sums", "prompt": [PROMPT, "7+8:"], "max_tokens": 2, "prompt_logprobs": 2, **more}
    choices = http.post("/v1/completions", json=body).json()["choices"]
    texts = more.get("n", 1)
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [len(wanted)] * texts + [5] * texts
    for choice in choices[:texts]:
        assert choice["prompt_logprobs"] == wanted
        assert ids_of(choice["prompt_logprobs"]) == ids_of(wanted)
    if "echo" in more:  # That has as many alternatives as 'logprobs'.
        assert all(len(each) <= 2 for each in choices[0]["logprobs"]["top_logprobs"][1:])
    else:
        assert choices[0]["logprobs"] is None


def test_a_chat_has_them_once_for_all_choices(http: httpx.Client, wanted: Any) -> None:
    body = {"model": "sums", "messages": user(PROMPT), "max_tokens": 2, "n": 2, "prompt_logprobs": 2}
    made = http.post("/v1/chat/completions", json=body).json()
    assert not any("prompt_logprobs" in choice for choice in made["choices"])
    entries = made["prompt_logprobs"]
    assert entries[0] is None
    assert len(entries) == made["usage"]["prompt_tokens"]
    assert [ids[0] for ids in ids_of(entries[-3:])] == [ids[0] for ids in ids_of(wanted[-3:])]
    assert all(1 <= each["rank"] <= 99 for entry in entries[1:] for each in entry.values())


def test_many_are_written_beside_the_event_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    write = ChoicesAnswer.document

    def document(answer: ChoicesAnswer) -> bytes:
        threads.append(threading.current_thread().name)
        return write(answer)

    monkeypatch.setattr(ChoicesAnswer, "document", document)
    text, body = "12+34:46, " * 8, {"model": "sums", "max_tokens": 0, "prompt_logprobs": 20}
    (few,) = http.post("/v1/completions", json={**body, "prompt": text}).json()["choices"]
    many = http.post("/v1/completions", json={**body, "prompt": [text] * 16}).json()["choices"]
    assert [each["prompt_logprobs"] for each in many] == [few["prompt_logprobs"]] * 16
    assert threads[0] != threads[1]


MANY: Any = {"model": "sums", "prompt": ["12+34:46, " * 8] * 16, "echo": True, "logprobs": 20}
MANY |= {"max_tokens": 3, "temperature": 0}


def test_a_stream_that_echoes_many_lets_the_loop_answer_others(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing overtakes what is written beside the loop: the texts are those of the whole answer."""
    take, beside, answered = ChoicesAnswer.take, threading.Event(), threading.Event()

    def taken(answer: ChoicesAnswer, *arguments: Any, **more: Any) -> bytes:
        if threading.current_thread().name != "http":
            beside.set()
            assert answered.wait(60)
        return take(answer, *arguments, **more)

    monkeypatch.setattr("repoagent_server.http.openai_answers.LONG_JSON", 1 << 12)
    monkeypatch.setattr(ChoicesAnswer, "take", taken)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(http.post, "/v1/completions", json={**MANY, "stream": True})
        assert beside.wait(60)
        assert http.get("/v2/health/live").status_code == 200
        answered.set()
        lines = asking.result().text.splitlines()
    monkeypatch.undo()
    found = [""] * 16
    for line in lines:
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
            found[choice["index"]] += choice["text"]
    assert found == [choice["text"] for choice in http.post("/v1/completions", json=MANY).json()["choices"]]


def test_what_fails_beside_the_loop_is_an_error_of_openai(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent_server.http.openai_answers.LONG_JSON", 0)
    monkeypatch.setattr(CompletionAnswer, "_echoed", lambda *_: 1 / 0)
    for stream in (False, True):
        response = http.post("/v1/completions", json={**MANY, "stream": stream})
        assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")


def test_none_of_the_others_leaves_the_token_of_the_prompt(http: httpx.Client, wanted: Any) -> None:
    body = {"model": "sums", "prompt": PROMPT, "max_tokens": 0, "prompt_logprobs": 0}
    (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    first = [entry and dict([next(iter(entry.items()))]) for entry in wanted]
    assert choice["prompt_logprobs"] == first
    del body["prompt_logprobs"]
    assert "prompt_logprobs" not in http.post("/v1/completions", json=body).json()["choices"][0]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "streams have none"),
        ({"prompt_logprobs": -1}, "from 0 to 20"),
        ({"prompt_logprobs": 21}, "from 0 to 20"),
        ({"prompt_logprobs": True}, "from 0 to 20"),
        ({"prompt_logprobs": "2"}, "from 0 to 20"),
    ],
)
def test_what_vllm_refuses_is_refused_by_name(http: httpx.Client, path: str, more: Any, text: str) -> None:
    response = http.post(f"/v1/{path}", json={"model": "sums", "prompt": PROMPT, "messages": user(PROMPT), **more})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "prompt_logprobs")
    assert text in error["message"]


def test_a_route_and_a_model_without_them_refuse_them(http: httpx.Client) -> None:
    asked: list[tuple[str, Any]] = [
        ("responses", {"model": "sums", "input": PROMPT}),
        ("completions", {"model": "parrot", "prompt": PROMPT}),
    ]
    for path, body in asked:
        response = http.post(f"/v1/{path}", json={**body, "prompt_logprobs": 1})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")
    response = http.post("/v1/completions", json={"model": "parrot", "prompt": PROMPT, "echo": True, "logprobs": 1})
    assert response.json()["error"]["param"] in ("echo", "logprobs")


def test_more_than_the_limit_are_refused_in_openai_form(client: OpenAI, http: httpx.Client) -> None:
    """The limit is that of the model's texts together, also for ``echo`` of tokens."""
    asked: Any = {"model": "narrow", "prompt": [5] * 20_000, "echo": True, "logprobs": 20, "max_tokens": 0}
    response = http.post("/v1/completions", json=asked)
    assert response.status_code == 400
    assert (
        "420000 log-probabilities of prompts, more than 262144; --limit-log-probs"
        in response.json()["error"]["message"]
    )
    with pytest.raises(BadRequestError, match="--limit-log-probs"):
        client.completions.create(**asked, stream=True)
