"""``/v1/score`` and ``/v1/rerank``, over a model that embeds texts."""

import math
from typing import Any

import httpx
import numpy as np
import pytest
from repoagent_server.openai.embeddings import read_score

from repoagent.errors import InternalError

# ``letters`` makes of a text its length, and how often it has an a.
BANANA, A, NONE = (6, 3), (1, 1), (0, 0)


def cosine(one: tuple[int, int], other: tuple[int, int]) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(map(math.prod, zip(one, other, strict=True))) / lengths if lengths else 0


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
@pytest.mark.parametrize(
    ("firsts", "seconds", "wanted"),
    [
        ("banana", "a", [cosine(BANANA, A)]),
        ("banana", ["a", "banana", ""], [cosine(BANANA, A), 1, 0]),
        (["banana", "a"], ["a", "a"], [cosine(BANANA, A), 1]),
        (["a"], ["a"], [1]),
    ],
)
def test_a_score_is_the_cosine_of_two_vectors(
    http: httpx.Client, names: tuple[str, str], firsts: Any, seconds: Any, wanted: list[float]
) -> None:
    body = {"model": "letters", names[0]: firsts, names[1]: seconds}
    made = http.post("/v1/score", json=body).json()
    assert [item["score"] for item in made["data"]] == pytest.approx(wanted, abs=1e-9)
    assert [(item["index"], item["object"]) for item in made["data"]] == [(n, "score") for n in range(len(wanted))]
    assert (made["object"], made["model"], made["id"][:6]) == ("list", "letters", "score-")


@pytest.mark.parametrize(("top", "order"), [(None, [2, 0, 3, 1]), (0, [2, 0, 3, 1]), (1, [2]), (9, [2, 0, 3, 1])])
def test_the_best_documents_come_first(http: httpx.Client, top: int | None, order: list[int]) -> None:
    documents = ["banana", "xyz", "a", "banana"]
    made = http.post(
        "/v1/rerank", json={"model": "letters", "query": "aa", "documents": documents, "top_n": top}
    ).json()
    assert [result["index"] for result in made["results"]] == order
    assert [result["document"]["text"] for result in made["results"]] == [documents[index] for index in order]
    assert made["results"][0]["relevance_score"] == pytest.approx(1)
    assert made["id"].startswith("rerank-")


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        ("score", {"text_1": [], "text_2": "x"}, "text_1"),
        ("score", {"text_1": "x"}, "text_2"),
        ("score", {"text_1": ["x", "y"], "text_2": ["x", "y", "z"]}, "text_1"),
        ("score", {"text_1": "x", "text_2": ["x"] * 1025}, "text_2"),
        ("score", {"queries": "x", "documents": [1]}, "documents"),
        ("score", {"text_1": {"content": []}, "text_2": "x"}, "text_1"),
        ("score", {"text_1": "x", "text_2": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ("rerank", {"documents": ["x"]}, "query"),
        ("rerank", {"query": ["x"], "documents": ["x"]}, "query"),
        ("rerank", {"query": "x", "documents": "x"}, "documents"),
        ("rerank", {"query": "x", "documents": ["x"] * 1025}, "documents"),
        ("rerank", {"query": "x", "documents": ["x"], "top_n": -1}, "top_n"),
    ],
)
def test_what_makes_no_sense_is_named(http: httpx.Client, path: str, more: dict[str, Any], field: str) -> None:
    response = http.post(f"/v1/{path}", json={"model": "letters", **more})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(("model", "status"), [("sums", 400), ("none", 404)])
def test_other_models_are_refused(http: httpx.Client, model: str, status: int) -> None:
    response = http.post("/v1/rerank", json={"model": model, "query": "x", "documents": ["x"]})
    assert response.status_code == status


def test_vectors_without_a_cosine_are_a_fault_of_the_model() -> None:
    asked = read_score({"model": "m", "text_1": "x", "text_2": "y"})
    for other in ([1.0, 2.0, 3.0], [np.inf, 0.0], [np.nan, 0.0]):
        with pytest.raises(InternalError, match="model 'm' has returned"):
            asked.document([np.array([1.0, 2.0], np.float32), np.array(other, np.float32)], 0)
    large = np.array([3e38, 3e38], np.float32)
    assert b'"score":1' in asked.document([large, large], 0) or b'"score":0.99999' in asked.document([large, large], 0)
