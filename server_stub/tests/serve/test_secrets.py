"""Secrets are planted wherever one could lie, and then looked for in everything that the server shows or writes."""

import json
from typing import Any, Final

import pytest
import tritonclient.grpc as grpc_client

IN_ENVIRONMENT: Final = "AGE-SECRET-KEY-1PLANTEDINTHEENVIRONMENTPLANTEDINTHEENVIRONMENTPLANTED"
IN_A_PARAMETER: Final = "AGE-SECRET-KEY-1PLANTEDINAPARAMETERPLANTEDINAPARAMETERPLANTEDINAPARAM"
A_PASSWORD: Final = "planted-password-7f3a"
A_TOKEN: Final = "planted-token-91cc"
SECRETS: Final = (IN_ENVIRONMENT, IN_A_PARAMETER, A_PASSWORD, A_TOKEN)

LEAKY_AGENT: Final = '''
from repoagent.api import Agent


class Leaky(Agent):
    """Uses a key and a password, and says nothing of them."""

    api_version = 1

    def load(self, model):
        assert model.key("env:PLANTED").decode().startswith("AGE-SECRET-KEY-")
        model.report(note=f"{len(model.parameters)} parameters: {model.parameters!r}")
        if model.parameters.get("refuse"):
            raise ValueError(f"refused with {model.parameters!r}")
'''


@pytest.fixture(scope="module")
def shown(world: Any) -> dict[str, str]:
    """Everything that a server with the planted secrets says, by where it says it."""
    world.agent("leaky", LEAKY_AGENT)
    secrets = {"password": A_PASSWORD, "api_token": A_TOKEN}
    extra = f'parameters {{ key: "db_password" value: {{ string_value: "{A_PASSWORD}" }} }}'
    world.model("served", [("leaky", secrets)], config=extra)
    world.model("refused", [("leaky", {**secrets, "refuse": "yes"})])
    world.model("literal", [("decrypt", {"identity": IN_A_PARAMETER})])
    server = world.start(
        "--model-control-mode=explicit", "--log-verbose=1", "--allow-metrics=true", "--metrics-port=0",
        env={"PLANTED": IN_ENVIRONMENT},
    ).wait_ready()  # fmt: skip
    found: dict[str, str] = {}
    for name in ("served", "refused", "literal"):
        found[f"load {name}"] = server.load(name).text
        found[f"report {name}"] = server.http.get(f"/v2/repository/models/{name}/report").text
    for path in ("/v2/models/served/config", "/v2/models/served", "/v2/models/served/stats", "/v2", "/metrics"):
        found[path] = server.http.get(path).text
    found["index"] = json.dumps(server.index())
    place = json.loads((world.root / "ready-0.json").read_text())["grpc"]
    with grpc_client.InferenceServerClient(f"{place['address']}:{place['port']}") as client:
        found["gRPC config"] = str(client.get_model_config("served"))
        found["gRPC index"] = str(client.get_model_repository_index())
    assert server.stop() == 0
    found["log"] = server.log
    return found


def test_the_scene_is_what_it_should_be(shown: dict[str, str]) -> None:
    assert shown["load served"] == ""
    assert "refused with Parameters(" in shown["load refused"]
    assert "agent 'decrypt'" in shown["load literal"]
    assert "db_password" in shown["/v2/models/served/config"]
    assert "<redacted>" in shown["/v2/models/served/config"]


@pytest.mark.parametrize("secret", SECRETS, ids=["environment", "parameter", "password", "token"])
def test_a_secret_is_shown_nowhere(shown: dict[str, str], secret: str) -> None:
    assert [where for where, text in shown.items() if secret in text] == []
