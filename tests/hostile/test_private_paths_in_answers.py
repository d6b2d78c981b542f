"""T9: no answer names a private place of this machine, whatever failed and over whichever way it is asked."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.shared.grpc_options import GrpcOptions
from tritonclient.utils import InferenceServerException

from llm.tests.backend.tiny import byte_level
from repoagent.audit.log import AuditLog
from repoagent.public_text import hide, hide_url, public_text, public_values
from repoagent.serving.core import ServingCore
from repoagent.serving.measuring.prometheus import Family, render
from tests.hostile.conftest import NewCore

_PRIVATE = re.compile(r"/dev/shm|/proc/self|/tmp/")

AGENT = """
from repoagent.api import Agent, InternalError

class Chatty(Agent):
    api_version = 1

    def load(self, model):
        place = model.acquire_location(confidential=True)
        model.report(note=f"working in {place}")
        raise InternalError(f"cannot read '{place}/1/model.onnx': something, and {model.location}/1 as well")
"""

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError(f"the model in {__file__} fails")
"""


@dataclass
class Clients:
    """A core asked over HTTP and gRPC."""

    core: ServingCore
    http: httpx.Client
    grpc: grpc_client.InferenceServerClient
    private: tuple[str, ...]

    def load(self, name: str) -> list[str]:
        """All that is said of a load that fails."""
        said = [self.http.post(f"/v2/repository/models/{name}/load", json={}).text]
        with pytest.raises(InferenceServerException) as raised:
            self.grpc.load_model(name)
        said.append(str(raised.value))
        said.append(self.http.post("/v2/repository/index", json={}).text)
        said.append(str(self.grpc.get_model_repository_index()))
        said.append(self.http.get(f"/v2/repository/models/{name}/report").text)
        return said

    def check(self, said: list[str]) -> str:
        """Nothing private is in them."""
        for text in said:
            assert not any(place in text for place in self.private), text
            assert not _PRIVATE.search(text), text
        return "\n".join(said)


@pytest.fixture
def clients(new_core: NewCore, tmp_path: Path, workspace: Path, repository: Path) -> Iterator[Callable[..., Clients]]:
    with ExitStack() as stack:

        def make(**options: object) -> Clients:
            core = new_core(allow_swap=True, **options)
            http = HttpFrontend(Endpoint("127.0.0.1", 0), api_service(Served(core)))
            grpc = GrpcFrontend(Served(core), GrpcOptions(port=0))
            for front in (http, grpc):
                stack.callback(front.stop)
                front.start()
            asks = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{http.bind()[1]}", timeout=60))
            client = grpc_client.InferenceServerClient(f"127.0.0.1:{grpc.bind()[1]}")
            stack.callback(client.close)
            return Clients(core, asks, client, (str(workspace), str(repository), str(tmp_path)))

        yield make


def test_an_agent_names_its_directory_in_memory(
    clients: Callable[..., Clients], tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "agents" / "chatty").mkdir(parents=True)
    (tmp_path / "agents" / "chatty" / "agent.py").write_text(AGENT)
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(
        'backend: "onnxruntime" model_repository_agents { agents [{ name: "chatty" }] }'
    )
    ours = clients(repoagent_directory=tmp_path / "agents")
    said = ours.check(ours.load("m"))
    assert "cannot read '1/model.onnx'" in said
    assert "m/1 as well" in said


def test_a_decrypted_language_model_is_broken(
    clients: Callable[..., Clients], tmp_path: Path, repository: Path, decoder_folder: Path
) -> None:
    identity = X25519Identity.generate()
    (tmp_path / "model.key").write_text(identity.export())
    folder = Path(shutil.copytree(decoder_folder, repository / "m" / "1"))
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "model.onnx").write_bytes(b"this is no graph")
    for path in sorted(folder.iterdir()):
        encrypt_file(path, path.with_name(path.name + ".age"), [identity.recipient])
        path.unlink()
    (repository / "m" / "config.pbtxt").write_text(
        'backend: "llm" model_repository_agents { agents [{ name: "decrypt" parameters { key: "identity" '
        f'value: "file:{tmp_path / "model.key"}" }} }}] }}'
    )
    ours = clients()
    said = ours.load("m")
    assert "1/model.onnx" in ours.check(said)


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["model.onnx", "model.onnx.data", "genai_config.json", "tokenizer.json"])
def test_a_file_of_a_language_model_is_broken(
    broken: str, clients: Callable[..., Clients], repository: Path, decoder_folder: Path
) -> None:
    folder = Path(shutil.copytree(decoder_folder, repository / "m" / "1"))
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / broken).write_bytes(b"broken")
    (repository / "m" / "config.pbtxt").write_text('backend: "llm"')
    ours = clients()
    ours.check(ours.load("m"))


def test_an_onnx_model_lacks_its_weights(
    clients: Callable[..., Clients], repository: Path, decoder_folder: Path
) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    shutil.copy(decoder_folder / "model.onnx", repository / "m" / "1" / "model.onnx")
    (repository / "m" / "1" / "neighbour").write_bytes(b"")
    (repository / "m" / "config.pbtxt").write_text('backend: "onnxruntime"')
    ours = clients()
    ours.check(ours.load("m"))


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["process", "in-process"])
def test_a_python_model_names_its_file(execution: str, clients: Callable[..., Clients], repository: Path) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.py").write_text(MODEL)
    (repository / "m" / "config.pbtxt").write_text(
        'backend: "python" output { name: "y" data_type: TYPE_FP32 dims: [1] } '
        'input { name: "x" data_type: TYPE_FP32 dims: [1] } '
        f'parameters {{ key: "EXECUTION" value {{ string_value: "{execution}" }} }}'
    )
    ours = clients()
    ours.core.load("m")
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    said = [ours.http.post("/v2/models/m/infer", json=body).text]
    given = grpc_client.InferInput("x", [1], "FP32")
    given.set_data_from_numpy(np.ones(1, np.float32))
    with pytest.raises(InferenceServerException) as raised:
        ours.grpc.infer("m", [given])
    assert "1/model.py fails" in ours.check([*said, str(raised.value)])


def test_a_repository_that_is_gone(clients: Callable[..., Clients], repository: Path) -> None:
    (repository / "m").mkdir()
    ours = clients()
    shutil.rmtree(repository)
    said = [ours.http.post("/v2/repository/index", json={}).text]
    said.append(ours.http.post("/v2/repository/models/m/load", json={}).text)
    ours.check(said)


class TestPublicText:
    """The filter itself."""

    @pytest.fixture(autouse=True)
    def places(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "alias").symlink_to("real")
        hide(tmp_path / "alias", "workspace", depth=2)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("cannot read PLACE/a/b/1/model.onnx: no", "cannot read 1/model.onnx: no"),
            ("in 'PLACE/a/b/1/x'.", "in '1/x'."),
            ("PLACE/a/b", "<workspace>"),
            ("PLACE has no room", "<workspace> has no room"),
            ("(PLACE/a/b/c), [PLACE/a/b/d]", "(c), [d]"),
            ("PLACE-other/x", "PLACE-other/x"),
            ("nothing of it", "nothing of it"),
        ],
    )
    @pytest.mark.parametrize("name", ["alias", "real"])
    def test_a_place_goes_and_the_path_in_the_model_stays(
        self, name: str, text: str, expected: str, tmp_path: Path
    ) -> None:
        place = str(tmp_path / name)
        assert public_text(text.replace("PLACE", place)) == expected.replace("PLACE", place)

    def test_a_document_is_made_public_all_through(self, tmp_path: Path) -> None:
        place = tmp_path / "real"
        document = {"a": [f"{place}/x/y/z", 1, None], "b": {"c": f"{place}"}}
        assert public_values(document) == {"a": ["z", 1, None], "b": {"c": "<workspace>"}}

    @pytest.mark.parametrize(
        ("url", "text", "expected"),
        [
            ("s3://http://host-a:9000/b1/models", "s3://http://host-a:9000/b1/models/m/1/x.onnx", "m/1/x.onnx"),
            ("s3://http://host-a:9000/b1/models", "cannot list s3://http://host-a:9000/b1/models: it", "R: it"),
            ("s3://http://host-a:9000/b1/models", 'connect to "http://host-a:9000/b1?prefix=models"', 'connect to "R"'),
            ("s3://http://host-a:9000/b1/models", "Cannot connect to host host-a:9000 ssl", "connect to host R ssl"),
            ("s3://b2/models", "FileNotFoundError: b2/models/m", "FileNotFoundError: m"),
            ("as://acc.blob.core.windows.net/c/m", "https://acc.blob.core.windows.net/c?x: timeout", "R: timeout"),
            ("https://user-models.example/dir", "ClientError: https://user-models.example/dir", "ClientError: R"),
        ],
    )
    def test_a_store_has_no_address_in_answers(self, url: str, text: str, expected: str) -> None:
        hide_url(url, "repository")
        assert public_text(text).endswith(re.sub(r"\bR\b", "<repository>", expected))


BYTES = """
import logging
import os
from repoagent.api import Agent, InternalError

CAFE = os.fsdecode(b"caf\\xe9")

class Foreign(Agent):
    api_version = 1

    def load(self, model):
        logging.getLogger("repoagent.foreign").warning("in %s", CAFE)
        model.report(note=CAFE, signer=CAFE, evidence={CAFE: CAFE})
        raise (InternalError if model.parameters.get("kind") == "ours" else OSError)(f"{CAFE} is missing")
"""
FOREIGN_MODEL = """
import os
import triton_python_backend_utils as pb_utils

CAFE = os.fsdecode(b"caf\\xe9")

class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_warn(CAFE)
        raise ValueError(f"{CAFE} is empty")
"""
ESCAPED = r"caf\udce9"


def write_foreign(models: Path, name: str | bytes, config: str) -> None:
    folder = Path(os.fsdecode(os.path.join(os.fsencode(models), os.fsencode(name))))
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(FOREIGN_MODEL)
    (folder / "config.pbtxt").write_text(
        'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [1] } '
        'output { name: "y" data_type: TYPE_FP32 dims: [1] } ' + config
    )


@pytest.mark.slow
def test_every_answer_is_unicode_whatever_texts_agents_models_and_files_bring(
    clients: Callable[..., Clients], tmp_path: Path, repository: Path
) -> None:
    """T26: one text that UTF-8 cannot hold broke the index of the whole server."""
    (tmp_path / "agents" / "foreign").mkdir(parents=True)
    (tmp_path / "agents" / "foreign" / "agent.py").write_text(BYTES)
    parameter = 'parameters { key: "kind" value: "ours" }'
    write_foreign(repository, "refused", f'model_repository_agents {{ agents [{{ name: "foreign" {parameter} }}] }}')
    write_foreign(repository, "broken", 'model_repository_agents { agents [{ name: "foreign" }] }')
    write_foreign(repository, "good", "")
    write_foreign(repository, b"caf\xe9", "")
    ours = clients(repoagent_directory=tmp_path / "agents", audit=AuditLog(tmp_path / "audit.log"))
    for name in ("refused", "broken"):
        for text in ours.load(name):
            assert f"{ESCAPED} is missing" in text.replace("\\\\", "\\"), (name, text)
        report = ours.http.get(f"/v2/repository/models/{name}/report").json()
        assert json.dumps(report, ensure_ascii=False).encode().count(b"caf\\\\udce9") >= 5, report
    names = {entry["name"] for entry in ours.http.post("/v2/repository/index", json={}).json()}
    assert names == {one.name for one in ours.grpc.get_model_repository_index().models}
    assert names == {"refused", "broken", "good"}
    ours.core.load("good")
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    assert ours.http.post("/v2/models/good/infer", json=body).json()["error"].count(f"{ESCAPED} is empty") == 1
    given = grpc_client.InferInput("x", [1], "FP32")
    given.set_data_from_numpy(np.ones(1, np.float32))
    with pytest.raises(InferenceServerException, match="udce9 is empty"):
        ours.grpc.infer("good", [given])
    cafe = os.fsdecode(b"caf\xe9")
    family = Family("cups", "counter", cafe, [((("kind", cafe),), 1.0)])
    assert render([family]).encode().count(rb"caf\\udce9") == 2
    for line in (tmp_path / "audit.log").read_text(encoding="utf-8").splitlines():
        json.dumps(json.loads(line), ensure_ascii=False).encode()
