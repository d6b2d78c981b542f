"""Adapters as models of OpenAI's API: listed under ``MODEL:ADAPTER``, and asked under that name."""

import hashlib
import shutil
from collections.abc import Iterator

import httpx
import pytest
from openai import NotFoundError, OpenAI
from repoagent_server import KServeHttp
from repoagent_server.access.access_file import AccessFile

from llm.tests.backend.test_named_adapters import save_adapter
from llm.tests.backend.tiny import byte_level, write_decoder
from repoagent.server import Server

from .conftest import user


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    place = tmp_path_factory.mktemp("adapted")
    decoder = write_decoder(place / "decoder", byte_level())
    (decoder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    shutil.copytree(decoder, place / "models" / "m" / "1")
    (place / "models" / "m" / "config.pbtxt").write_text('backend: "llm"')
    save_adapter(place / "models" / "m" / "1" / "adapters" / "french", 1)
    with (
        Server(model_repository=str(place / "models")) as server,
        KServeHttp(server, KServeHttp.Options(port=0, allow_openai=True)) as front,
        OpenAI(base_url="http://{}:{}/v1".format(*front.address), api_key="any", max_retries=0) as client,
    ):
        yield client


def test_adapters_are_listed_behind_their_model(adapted: OpenAI) -> None:
    models = adapted.models.list().data
    assert [model.id for model in models] == ["m", "m:french"]
    assert (models[1].model_extra or {})["parent"] == "m"
    assert adapted.models.retrieve("m:french").id == "m:french"


def test_an_adapter_is_asked_by_its_name(adapted: OpenAI) -> None:
    texts = {}
    for name in ("m", "m:french"):
        made = adapted.completions.create(model=name, prompt="hello", temperature=0, max_tokens=10)
        chat = adapted.chat.completions.create(model=name, messages=user("hello"), temperature=0, max_tokens=10)
        response = adapted.responses.create(model=name, input="hello", temperature=0, max_output_tokens=10)
        assert made.model == chat.model == response.model == name
        texts[name] = (made.choices[0].text, chat.choices[0].message.content, response.output_text)
    assert texts["m"][0] != texts["m:french"][0]
    assert texts["m"][1] != texts["m:french"][1]
    assert texts["m:french"][1] == texts["m:french"][2]


@pytest.mark.parametrize("name", ["m:german", "m:", "n:french", ":french", "m:french:x"])
def test_no_other_name_is_one(adapted: OpenAI, name: str) -> None:
    with pytest.raises(NotFoundError) as raised:
        adapted.completions.create(model=name, prompt="hello")
    assert raised.value.code == "model_not_found"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Clients of ``m`` alone, and of what is called like an adapter of it."""
    place = tmp_path_factory.mktemp("guarded")
    decoder = write_decoder(place / "decoder", byte_level())
    shutil.copytree(decoder, place / "models" / "m" / "1")
    (place / "models" / "m" / "config.pbtxt").write_text('backend: "llm"')
    save_adapter(place / "models" / "m" / "1" / "adapters" / "french", 1)
    keys = {name: f'keys = ["sha256:{hashlib.sha256(name.encode()).hexdigest()}"]' for name in ("base", "behind")}
    (place / "access.toml").write_text(
        f'[clients.base]\n{keys["base"]}\nmodels = ["m"]\nrights = ["infer", "metadata"]\n'
        f'[clients.behind]\n{keys["behind"]}\nmodels = ["m:*"]\nrights = ["infer", "metadata"]\n'
    )
    (place / "access.toml").chmod(0o600)
    with (
        AccessFile(str(place / "access.toml")) as file,
        Server(model_repository=str(place / "models")) as server,
        KServeHttp(server, KServeHttp.Options(port=0, allow_openai=True), access=file.access) as front,
    ):
        yield "http://{}:{}".format(*front.address)


@pytest.mark.parametrize("name", ["m:french", "m%3Afrench"])
def test_the_rights_for_an_adapter_are_those_for_its_model(name: str, guarded: str) -> None:
    for client, status in (("base", 200), ("behind", 403)):
        shown = {"authorization": f"Bearer {client}"}
        assert httpx.get(f"{guarded}/v1/models/{name}", headers=shown).status_code == status
        body = {"model": "m:french", "prompt": "hello", "max_tokens": 1}
        assert httpx.post(f"{guarded}/v1/completions", headers=shown, json=body).status_code == status
