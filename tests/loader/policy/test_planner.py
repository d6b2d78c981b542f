"""What a policy does to the chain that a model asks for."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from repoagent.config import ModelConfig
from repoagent.errors import AgentError, InternalError
from repoagent.loader.policy import PolicyPlanner
from repoagent.programs import program_path

MakePlanner = Callable[[str], PolicyPlanner]
MakeConfig = Callable[..., ModelConfig]


def test_demanded_agents_run_around_the_models_own(planner: MakePlanner, config: MakeConfig) -> None:
    plan = planner('[[rule]]\nmodels = ["*"]\nbefore = ["b"]\nafter = ["c"]').plan("m", config("a"))
    assert [(entry.name, entry.origin, entry.required) for entry in plan] == [
        ("b", "policy", True),
        ("a", "config", True),
        ("c", "policy", True),
    ]


def test_demanded_agents_run_for_a_model_without_a_configuration(planner: MakePlanner) -> None:
    plan = planner('[[rule]]\nmodels = ["*"]\nbefore = [{agent = "b", parameters = {k = "v"}}]').plan("m", None)
    assert [(entry.name, list(entry.parameters.items())) for entry in plan] == [("b", [("k", "v")])]


def test_an_agent_that_is_not_allowed_is_refused_before_it_is_imported(
    planner: MakePlanner, config: MakeConfig
) -> None:
    strict = planner('[[rule]]\nmodels = ["*"]\nagents = ["b"]')
    with pytest.raises(AgentError, match="agent 'a': not allowed for model 'm': the policy allows only: b"):
        strict.plan("m", config("a"))
    assert [entry.name for entry in strict.plan("m", config("b"))] == ["b"]


LIMITED = '[[rule]]\nmodels = ["*"]\nbackends = ["onnxruntime"]\n'


@pytest.mark.parametrize(
    ("rule", "command", "refused"),
    [
        ('[[rule]]\nmodels = ["other"]\nbackends = []', "vllm", ""),
        ('[[rule]]\nmodels = ["*"]', "vllm", ""),
        (LIMITED, "vllm", "neither judges a command"),
        (LIMITED, None, "neither judges a command"),
        (f'{LIMITED}commands = ["vllm"]', "vllm", ""),
        (f'{LIMITED}commands = ["vllm"]', None, ""),
        (f'{LIMITED}commands = ["vllm"]', "/opt/bin/vllm", "does not allow command '/opt/bin/vllm'; allowed: vllm"),
        (f'{LIMITED}commands = ["{{model}}/serve"]', "{model}/serve", ""),
        (f'{LIMITED}commands = ["serve"]', "{model}/serve", "does not allow command '{model}/serve'"),
        (f'{LIMITED}commands = ["/opt/bin/vllm"]', "/opt/bin/vllm", ""),
        (f'{LIMITED}commands = ["/opt/bin/vllm"]', "/tmp/vllm", "does not allow command '/tmp/vllm'"),
        ('[[rule]]\nmodels = ["*"]\ncommands = ["vllm"]', "prepare", "does not allow command 'prepare'"),
        (f'mode = "warn"\n{LIMITED}', "vllm", ""),
    ],
)
def test_a_command_is_allowed_by_name(planner: MakePlanner, rule: str, command: str | None, refused: str) -> None:
    if refused:
        with pytest.raises(InternalError, match=refused):
            planner(rule).admit_command("m", command)
    else:
        planner(rule).admit_command("m", command)


def test_a_name_allows_what_path_leads_to_and_nothing_else_of_that_name(
    planner: MakePlanner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may have a program of the name, and the directory in which the command is started, too."""
    for name in ("bin", "model", "later"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vllm").touch(0o755)
    (tmp_path / "link").symlink_to("bin")
    monkeypatch.chdir(tmp_path / "model")
    monkeypatch.setenv("PATH", f".::model:{tmp_path}/bin:{tmp_path}/later")
    rule = planner(f'{LIMITED}commands = ["vllm", "{tmp_path}/link/other", "bin/other"]')
    for word in ("vllm", "../bin/vllm", f"{tmp_path}/link/vllm", f"{tmp_path}/bin/other"):
        rule.admit_command("m", program_path(word))
    for word in ("./vllm", "../later/vllm", f"{tmp_path}/model/vllm", "../bin/other2", "other", "bin/other"):
        with pytest.raises(InternalError, match="does not allow command"):
            rule.admit_command("m", program_path(word))


def test_an_empty_list_allows_no_agent(planner: MakePlanner, config: MakeConfig) -> None:
    with pytest.raises(AgentError, match="no agent"):
        planner('[[rule]]\nmodels = ["*"]\nagents = []').plan("m", config("a"))


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ('distribution = "other"', "it comes from some-agents, the policy wants distribution other"),
        ('version = "1.3.*"', "its version is 1.2.3, the policy wants 1.3.*"),
        ('version = "1.2"', "its version is 1.2.3, the policy wants 1.2"),
    ],
)
def test_an_allowed_agent_can_be_pinned(planner: MakePlanner, config: MakeConfig, entry: str, complaint: str) -> None:
    with pytest.raises(AgentError) as raised:
        planner(f'[[rule]]\nmodels = ["*"]\nagents = [{{ name = "a", {entry} }}]').plan("m", config("a"))
    assert complaint in str(raised.value)


def test_pins_that_fit_let_the_agent_through(planner: MakePlanner, config: MakeConfig) -> None:
    pinned = '[[rule]]\nmodels = ["*"]\nagents = [{ name = "a", distribution = "some-agents", version = "1.2.*" }]'
    assert [entry.name for entry in planner(pinned).plan("m", config("a"))] == ["a"]


@pytest.mark.parametrize(
    ("rule", "fields", "complaint"),
    [
        ('backends = ["onnxruntime"]', {"backend": "python"}, "does not allow backend 'python'; allowed: onnxruntime"),
        ('backends = ["python"]', {"platform": "onnxruntime_onnx"}, "does not allow backend 'onnxruntime'"),
        ("platforms = []", {"platform": "onnxruntime_onnx"}, "does not allow platform 'onnxruntime_onnx'"),
    ],
)
def test_backends_and_platforms_are_limited(
    planner: MakePlanner, config: MakeConfig, rule: str, fields: dict[str, str], complaint: str
) -> None:
    strict = planner(f'[[rule]]\nmodels = ["*"]\n{rule}')
    with pytest.raises(InternalError) as raised:
        strict.plan("m", config(**fields))
    assert complaint in str(raised.value)
    with pytest.raises(InternalError, match="the policy does not allow"):
        strict.admit("m", config(**fields))


def test_warn_only_logs(planner: MakePlanner, config: MakeConfig, caplog: pytest.LogCaptureFixture) -> None:
    lenient = planner('[[rule]]\nmodels = ["*"]\nmode = "warn"\nagents = []\nbackends = []\nbefore = ["b"]')
    with caplog.at_level(logging.WARNING):
        plan = lenient.plan("m", config("a", backend="python"))
    assert [(entry.name, entry.required) for entry in plan] == [("b", False), ("a", True)]
    assert "agent 'a': not allowed" in caplog.text
    assert "backend 'python'" in caplog.text


def test_off_changes_nothing(planner: MakePlanner, config: MakeConfig) -> None:
    plan = planner('[[rule]]\nmodels = ["*"]\nmode = "off"\nagents = []\nbackends = []\nbefore = ["b"]').plan(
        "m", config("a", backend="python")
    )
    assert [entry.name for entry in plan] == ["a"]


def test_the_models_own_agents_may_use_the_operators_trust_roots(
    planner: MakePlanner, config: MakeConfig, tmp_path: object
) -> None:
    from pathlib import Path

    root = Path(str(tmp_path)) / "root.pem"
    root.write_text("a certificate")
    (entry,) = planner('[[rule]]\nmodels = ["*"]\ntrust_roots = { ngc = "root.pem" }').plan("m", config("a"))
    assert entry.trust_roots == {"ngc": root}
