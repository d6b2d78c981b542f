"""T21. An ensemble brings no model into service that its owner may not load, and does not answer through one."""

from pathlib import Path

import httpx
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from repoagent.errors import RepoAgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.policy import read_policy, review
from server_stub.tests.access.conftest import Guarded, client, tables
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
        for address in guarded.grpc.values():
            with (
                grpc_client.InferenceServerClient(address) as asked,
                pytest.raises(InferenceServerException, match="lacks the right 'manage'"),
            ):
                asked.load_model("fraud-all", headers=bearer("owner"))
        assert http.get("/v2/models/shared/ready", headers=bearer("root")).status_code == 400
        assert http.post(load, headers=bearer("both")).status_code == 200
        assert http.get("/v2/models/shared/ready", headers=bearer("root")).status_code == 200


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
