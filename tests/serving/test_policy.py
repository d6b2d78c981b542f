"""The operator's policy in a running core: one test per way in which a model can come."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import ConfigError, RepoAgentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import InferRequest

CONFIG = 'name: "m" backend: "onnxruntime" max_batch_size: 8\n'
POLICY = '[[rule]]\nmodels = ["*"]\nbefore = [{ agent = "checksum", parameters = { manifest = "SHA256SUMS" } }]\n'
WITH_OVERRIDES = POLICY + "overrides = true\n"
REFUSED = "failed to load 'm', failed to poll from model repository: agent 'checksum': "

NewCore = Callable[..., ServingCore]


@pytest.fixture
def model(tmp_path: Path, add_constant: Callable[[float], bytes]) -> Path:
    """A good model that nobody has made digests for."""
    directory = tmp_path / "repository" / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").write_bytes(add_constant(1.0))
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory


@pytest.fixture
def guarded(tmp_path: Path, model: Path) -> Iterator[NewCore]:
    """Start a core over the repository with a policy that demands the checksum agent."""
    with ExitStack() as stack:

        def start(**options: Any) -> ServingCore:
            policy = tmp_path / "policy.toml"
            policy.write_text(options.pop("policy", POLICY))
            defaults: dict[str, Any] = {"control_mode": ControlMode.EXPLICIT, "exit_on_error": False}
            core = ServingCore(
                CoreOptions(
                    repositories=(str(model.parent),),
                    workspace_directory=tmp_path / "workspace",
                    agent_policy=policy,
                    **defaults | options,
                )
            )
            return stack.enter_context(core)

        yield start


def reason(core: ServingCore) -> str:
    (entry,) = core.index()
    return str(entry.get("reason"))


def test_at_the_start(guarded: NewCore) -> None:
    core = guarded(control_mode=ControlMode.NONE)
    assert not core.model_ready("m")
    assert "agent 'checksum'" in reason(core)


def test_by_a_load_request(guarded: NewCore) -> None:
    with pytest.raises(RepoAgentError) as raised:
        guarded().load("m")
    assert str(raised.value).startswith(REFUSED)


def test_by_an_overriding_configuration(guarded: NewCore) -> None:
    with pytest.raises(RepoAgentError) as raised:
        guarded(policy=WITH_OVERRIDES).load("m", config='{"backend": "onnxruntime", "max_batch_size": 4}')
    assert str(raised.value).startswith(REFUSED)


def test_by_contents_sent_along(guarded: NewCore, model: Path) -> None:
    files = {"1/model.onnx": (model / "1" / "model.onnx").read_bytes()}
    with pytest.raises(RepoAgentError) as raised:
        guarded(policy=WITH_OVERRIDES).load("m", config='{"backend": "onnxruntime", "max_batch_size": 4}', files=files)
    assert str(raised.value).startswith(REFUSED)


def test_by_polling(guarded: NewCore, tmp_path: Path, model: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    model.rename(elsewhere)
    core = guarded(control_mode=ControlMode.POLL, poll_seconds=3600)
    elsewhere.rename(model)
    core.poll()
    assert "agent 'checksum'" in reason(core)


def test_by_the_first_request_for_it(guarded: NewCore, request_of: Callable[..., InferRequest]) -> None:
    with pytest.raises(RepoAgentError) as raised:
        guarded(on_demand=True).infer(request_of("m"))
    assert "agent 'checksum': " in str(raised.value)


def test_as_a_member_of_an_ensemble(guarded: NewCore, model: Path) -> None:
    tensor = "data_type: TYPE_FP32 dims: [4]"
    (model.parent / "e").mkdir()
    (model.parent / "e" / "config.pbtxt").write_text(
        f'platform: "ensemble" max_batch_size: 8 input [{{ name: "a" {tensor} }}] output [{{ name: "b" {tensor} }}]'
        'ensemble_scheduling { step [{ model_name: "m" model_version: -1 input_map { key: "x" value: "a" }'
        ' output_map { key: "y" value: "b" } }] }'
    )
    (model.parent / "e" / "1").mkdir()
    core = guarded(policy=POLICY.replace('["*"]', '["m"]'))
    with pytest.raises(RepoAgentError):
        core.load("e")
    reasons = {entry["name"]: str(entry.get("reason")) for entry in core.index()}
    assert "agent 'checksum'" in reasons["m"]
    assert not core.model_ready("e")


def test_a_model_that_satisfies_the_policy_is_served(guarded: NewCore, model: Path) -> None:
    lines = [
        f"{hashlib.sha256((model / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("config.pbtxt", "1/model.onnx")
    ]
    (model / "SHA256SUMS").write_text("".join(lines))
    core = guarded()
    core.load("m")
    assert core.model_ready("m")
    report = core.report("m")
    assert report is not None
    assert [(entry.agent, entry.origin) for entry in report.entries] == [("checksum", "policy")]


def test_a_backend_that_the_policy_forbids(guarded: NewCore) -> None:
    core = guarded(policy='[[rule]]\nmodels = ["m"]\nbackends = ["python"]')
    with pytest.raises(RepoAgentError, match="the policy does not allow backend 'onnxruntime'; allowed: python"):
        core.load("m")


def test_a_wrong_policy_stops_the_server_before_anything_is_loaded(guarded: NewCore) -> None:
    with pytest.raises(ConfigError, match=r"policy\.toml: rule 1: unknown key 'befor'"):
        guarded(policy='[[rule]]\nmodels = ["*"]\nbefor = ["checksum"]')
