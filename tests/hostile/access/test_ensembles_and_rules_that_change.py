"""T21. An ensemble brings no model into service that its owner may not load, and does not answer through one."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from repoagent_server.access.access_file import AccessFile
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from repoagent.audit import Actor
from repoagent.errors import RepoAgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.policy import read_policy, review
from repoagent.serving.core import ServingCore
from server_stub.tests.access.conftest import PATIENCE, Guarded, client, client_of, tables
from server_stub.tests.conftest import Objects, objects
from server_stub.tests.served import identity
from tests.hostile.conftest import NewCore

ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [-1] } output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling { step [ { model_name: "b-secret" model_version: -1
  input_map { key: "INPUT0" value: "X" } output_map { key: "OUTPUT0" value: "Y" } } ] }
"""


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key"}


@pytest.mark.slow
def test_a_client_loads_no_ensemble_whose_steps_it_may_not_load(guarded: Guarded) -> None:
    guarded.write(*tables(guarded.issuer), client("owner", models="fraud-*"), client("both", models="fraud-* shared"))
    load = "/v2/repository/models/fraud-all/load"
    with httpx.Client(base_url=guarded.http, timeout=60) as http:
        for name in ("fraud-all", "shared"):
            assert http.post(f"/v2/repository/models/{name}/unload", headers=bearer("root")).status_code == 200
        refused = http.post(load, headers=bearer("owner"))
        assert refused.status_code == 400, refused.text
        assert "step 'shared', and client 'owner' lacks the right 'manage'" in refused.json()["error"]
        with (
            grpc_client.InferenceServerClient(guarded.grpc) as asked,
            pytest.raises(InferenceServerException, match="lacks the right 'manage'"),
        ):
            asked.load_model("fraud-all", headers=bearer("owner"))
        assert http.get("/v2/models/shared/ready", headers=bearer("root")).status_code == 400
        assert http.post(load, headers=bearer("both")).status_code == 200
        assert http.get("/v2/models/shared/ready", headers=bearer("root")).status_code == 200


@pytest.fixture
def on_demand(new_core: NewCore, repository: Path, tmp_path: Path) -> Iterator[tuple[ServingCore, httpx.Client]]:
    """A server that loads on demand ``a-mine``, an ensemble of ``b-secret``."""
    (repository / "a-mine").mkdir()
    (repository / "a-mine" / "config.pbtxt").write_text(ENSEMBLE)
    identity(repository, "b-secret", "FP32", batch=8)
    access = tmp_path / "access.toml"
    owner, both = client("owner", models="a-*"), client("both", models="a-* b-secret", rights="infer")
    access.write_text("\n".join((owner, both)))
    core = new_core(on_demand=True)
    with AccessFile(access) as file, client_of(api_service(Served(core, access=file.access))) as http:
        http.timeout = 60
        yield core, http


def ask(http: httpx.Client, name: str) -> httpx.Response:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    return http.post("/v2/models/a-mine/infer", headers=bearer(name), json={"inputs": [tensor]})


def test_a_request_loads_no_ensemble_on_demand_whose_steps_its_client_may_not_have_loaded(
    on_demand: tuple[ServingCore, httpx.Client],
) -> None:
    core, http = on_demand
    for _ in range(2):
        refused = ask(http, "owner")
        assert refused.status_code >= 400
        assert "step 'b-secret', and client 'owner' lacks the right 'infer'" in refused.json()["error"]
    assert not core.index(ready_only=True)
    # One client's refusal is not another's, and who may infer with what is loaded needs no rights for its steps.
    for name in ("both", "owner"):
        assert ask(http, name).status_code == 200


def test_a_client_that_waits_for_the_load_of_another_is_not_refused_with_it(
    on_demand: tuple[ServingCore, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    core, http = on_demand
    begun, joined = threading.Event(), threading.Event()
    demand = core._demand
    load, start = demand._load, demand.start

    def held(name: str, asker: Actor | None) -> None:
        begun.set()
        assert joined.wait(60)
        load(name, asker)

    def noted(name: str, asker: Actor | None = None) -> Future[None]:
        future = start(name, asker)
        if asker is not None and asker.client == "both":
            joined.set()
        return future

    monkeypatch.setattr(demand, "_load", held)
    monkeypatch.setattr(demand, "start", noted)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, http, "owner")
        assert begun.wait(60)
        second = pool.submit(ask, http, "both")
        assert second.result(60).status_code == 200
        assert "client 'owner' lacks" in first.result(60).json()["error"]


@pytest.mark.parametrize(("members", "loads"), [('["a-*"]', False), ("[]", False), ('["a-*", "b-secret"]', True)])
def test_the_policy_names_the_steps_that_an_ensemble_may_have(
    new_core: NewCore, repository: Path, members: str, loads: bool
) -> None:
    (repository / "a-mine" / "1").mkdir(parents=True)
    (repository / "a-mine" / "config.pbtxt").write_text(ENSEMBLE)
    (repository / "b-secret" / "1").mkdir(parents=True)
    (repository / "b-secret" / "config.pbtxt").write_text(
        'backend: "python" max_batch_size: 8 input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1] } '
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }'
    )
    (repository / "b-secret" / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    core = new_core(policy=f'[[rule]]\nmodels = ["a-*"]\nmembers = {members}\n')
    if loads:
        core.load("a-mine")
        return
    with pytest.raises(RepoAgentError, match="the policy does not allow member 'b-secret'; allowed: "):
        core.load("a-mine")
    assert not core.index(ready_only=True)


def test_the_check_of_a_policy_names_a_rule_that_lets_ensembles_reach_others(tmp_path: Path) -> None:
    def warned(rule: str) -> bool:
        (tmp_path / "policy.toml").write_text(f"[[rule]]\n{rule}\n")
        warnings = review(read_policy(tmp_path / "policy.toml"), AgentRegistry(None))
        return any("any model of the server as a step" in warning for warning in warnings)

    assert warned('models = ["a-*"]')
    assert warned('models = ["a-*"]\nbackends = ["ensemble"]')
    assert not warned('models = ["a-*"]\nmembers = ["a-*"]')
    assert not warned('models = ["a-*"]\nbackends = ["onnxruntime"]')
    assert not warned('models = ["*"]')


# Calls that were opened before their client lost its rights, and go on afterwards, are judged by the new rules.

__all__ = ["objects"]
_METADATA = [("x-api-key", "leaving-key")]
_ROOT = [("x-api-key", "root-key")]
_SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture
def channel(guarded: Guarded) -> Iterator[grpc.Channel]:
    guarded.write(*tables(guarded.issuer), client("leaving"))
    with grpc.insecure_channel(guarded.grpc) as channel:
        yield channel
    guarded.write(*tables(guarded.issuer))


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryIndex", "LogSettings", "ModelConfig"])
def test_a_call_that_sends_its_message_after_its_key_is_gone_is_refused(
    guarded: Guarded, channel: grpc.Channel, method: str
) -> None:
    messages: dict[str, Any] = {
        "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name="shared"),
        "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
        "LogSettings": service_pb2.LogSettingsRequest(),
        "ModelConfig": service_pb2.ModelConfigRequest(name="shared"),
    }
    go_on = threading.Event()

    def late() -> Iterator[Any]:
        go_on.wait(PATIENCE)
        yield messages[method]

    begin = channel.stream_unary(f"{_SERVICE}{method}", lambda message: message.SerializeToString(), bytes)
    call = begin.future(late(), metadata=_METADATA)
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    stub.ServerMetadata(service_pb2.ServerMetadataRequest(), metadata=_METADATA)  # comes after the headers of the call
    guarded.write(*tables(guarded.issuer))
    go_on.set()
    assert call.exception(PATIENCE).code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_stream_whose_client_lost_the_right_names_no_shared_memory(
    guarded: Guarded, channel: grpc.Channel, objects: Objects
) -> None:
    objects.make("secret", 16, np.arange(4, dtype=np.float32).tobytes())
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    region = service_pb2.SystemSharedMemoryRegisterRequest(name="late", key=objects.key("secret"), byte_size=16)
    stub.SystemSharedMemoryRegister(region, metadata=_ROOT)
    message = service_pb2.ModelInferRequest(model_name="shared")
    tensor = message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    tensor.parameters["shared_memory_region"].string_param = "late"
    tensor.parameters["shared_memory_byte_size"].int64_param = 16
    go_on = threading.Semaphore(1)
    over = threading.Event()

    def messages() -> Iterator[Any]:
        while go_on.acquire(timeout=PATIENCE) and not over.is_set():
            yield message

    answers = stub.ModelStreamInfer(messages(), metadata=_METADATA)
    try:
        assert next(answers).infer_response.raw_output_contents
        guarded.write(*tables(guarded.issuer), client("leaving", rights="infer"))
        go_on.release()
        answer = next(answers)
        assert "shared memory needs the right 'manage'" in answer.error_message
        assert not answer.infer_response.raw_output_contents
    finally:
        over.set()
        go_on.release()
        answers.cancel()
        stub.SystemSharedMemoryUnregister(service_pb2.SystemSharedMemoryUnregisterRequest(), metadata=_ROOT)
