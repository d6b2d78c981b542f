"""The load of language models in a header, for load balancers."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from repoagent.serving.measuring.custom_metrics import REGISTRY, MetricKind

_ASKED = "endpoint-load-metrics-format"
_TOLD = "endpoint-load-metrics"


@pytest.fixture
def cache_blocks() -> Iterator[dict[str, Any]]:
    """The gauges that a language model makes: a quarter of 80 blocks of 64 tokens is in use."""
    family = REGISTRY.family("nv_trt_llm_kv_cache_block_metrics", "blocks of the cache", MetricKind.GAUGE)
    made = {}
    for kind, value in {"used": 20, "max": 80, "tokens_per": 64}.items():
        made[kind] = family.add({"kv_cache_block_type": kind, "model": "m", "version": "1"})
        made[kind].set(value)
    yield made
    for metric in made.values():
        family.remove(metric)
    REGISTRY.release(family)


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("text", "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=5120"),
        ("json", 'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":5120}}'),
        ("xml", None),
        (None, None),
    ],
)
def test_the_report_is_in_the_form_that_is_asked_for(
    client: httpx.Client, cache_blocks: dict[str, Any], route: str, form: str | None, told: str | None
) -> None:
    headers = {} if form is None else {_ASKED: form}
    response = client.post(f"/v2/models/str/{route}", json={"INPUT0": ["a"]}, headers=headers)
    assert response.status_code == 200
    assert response.headers.get(_TOLD) == told


def test_a_cache_without_blocks_is_not_in_use(client: httpx.Client, cache_blocks: dict[str, Any]) -> None:
    cache_blocks["max"].set(0)
    response = client.post("/v2/models/str/generate", json={"INPUT0": ["a"]}, headers={_ASKED: "json"})
    assert response.headers[_TOLD] == 'JSON {"named_metrics":{"kv_cache_utilization":0.0,"max_token_capacity":0}}'


def test_without_such_a_model_there_is_no_report(client: httpx.Client) -> None:
    response = client.post("/v2/models/str/generate", json={"INPUT0": ["a"]}, headers={_ASKED: "json"})
    assert (response.status_code, response.headers.get(_TOLD)) == (200, None)
