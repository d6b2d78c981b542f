"""Loads and unloads beside the list of models, with the rights of loads."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from repoagent_server import KServeHttp

from repoagent.server import ModelControlMode, Server


@pytest.fixture
def explicit(repository: Path) -> Iterator[str]:
    with (
        Server(model_repository=str(repository), model_control_mode=ModelControlMode.EXPLICIT) as server,
        KServeHttp(server, KServeHttp.Options(port=0, allow_openai=True)) as front,
    ):
        yield "http://{}:{}/v1".format(*front.address)


def test_a_model_is_loaded_and_unloaded(explicit: str) -> None:
    with OpenAI(base_url=explicit, api_key="any", max_retries=0) as client:
        assert not client.models.list().data
        assert httpx.post(f"{explicit}/models/parrot/load", timeout=60).json() == {"success": True}
        assert [model.id for model in client.models.list()] == ["parrot"]
        assert httpx.post(f"{explicit}/models/parrot/unload", timeout=60).json() == {"success": True}
        assert not client.models.list().data


def test_a_model_that_is_not_there_is_an_error_of_this_api(explicit: str) -> None:
    answer = httpx.post(f"{explicit}/models/nothing/load")
    assert answer.status_code == 400
    assert "nothing" in answer.json()["error"]["message"]
    assert httpx.get(f"{explicit}/models/parrot/load").status_code == 405


def test_a_server_that_loads_by_itself_refuses_it(http: httpx.Client) -> None:
    answer = http.post("/v1/models/parrot/unload")
    assert answer.status_code in (400, 503)
    assert answer.json()["error"]["message"]
    assert http.get("/v2/models/parrot/ready").status_code == 200
