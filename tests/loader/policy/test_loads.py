"""A policy at work in real loads: whatever way a model comes in, it cannot get round it."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.api import AgentModel
from repoagent.config import read_text
from repoagent.errors import AgentError, ConfigError, InternalError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.policy import DemandedAgent, Mode, Policy, PolicyPlanner, Rule
from repoagent.loader.policy.rules import AllowedAgent, read_policy
from repoagent.storage.repositories.sources import MemorySource

Guarded = Callable[..., Any]


@pytest.fixture
def guarded(make_bench: Callable[..., Any], known_agents: AgentRegistry) -> Guarded:
    """A loader whose policy puts agent "guard" before every model's own agents."""

    def make(mode: Mode = Mode.ENFORCE, **fields: Any) -> Any:
        rule = Rule(models=("*",), mode=mode, before=(DemandedAgent("guard"),), **fields)
        return make_bench(planner=PolicyPlanner(Policy([rule]), known_agents))

    return make


def test_the_guard_runs_for_a_file_an_override_and_contents_sent_along(guarded: Guarded) -> None:
    bench = guarded(overrides=True)
    without_agents = read_text('name: "m" backend: "python"')
    sent = MemorySource("m", {"config.pbtxt": b'name: "m"', "1/model.txt": b"weights"})
    file = bench.model("a")
    for source, override in ((file, None), (file, without_agents), (sent, None), (sent, without_agents)):
        bench.agents.events.clear()
        bench.loader.load(source, override=override).fail(RuntimeError("enough"))
        assert "guard LOAD" in bench.agents.events


def test_a_refusing_guard_refuses_the_load(guarded: Guarded) -> None:
    bench = guarded()
    bench.agents.raise_at("guard LOAD")
    with pytest.raises(AgentError, match="agent 'guard': guard LOAD fails"):
        bench.load("a")
    assert "a LOAD" not in bench.agents.events


@pytest.mark.parametrize("call", ["guard Init", "guard MInit", "guard LOAD"])
def test_in_mode_warn_a_failing_guard_is_reported_and_the_load_goes_on(
    guarded: Guarded, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = guarded(Mode.WARN)
    bench.agents.raise_at(call)
    with caplog.at_level(logging.WARNING):
        chain = bench.load("a")
        chain.complete()
    assert "its policy only warns" in caplog.text
    assert chain.report.outcome == "loaded"
    assert f"{call} fails" in str(chain.report.to_dict())
    chain.unload()
    chain.unload_complete()
    told = [event for event in bench.agents.events if event.startswith("guard")]
    expected = {
        "guard Init": ["Init", "Fini"],
        "guard MInit": ["Init", "MInit", "MFini", "Fini"],
        "guard LOAD": ["Init", "MInit", "LOAD", "LOAD_FAIL", "MFini", "Fini"],
    }[call]
    assert told == [f"guard {name}" for name in expected]
    assert bench.left_over() == []


def test_a_missing_guard_is_only_reported_in_mode_warn(guarded: Guarded) -> None:
    bench = guarded(Mode.WARN)
    bench.agents.unknown.add("guard")
    assert bench.load("a").report.outcome == "loading"
    strict = guarded()
    strict.agents.unknown.add("guard")
    with pytest.raises(AgentError, match="no such agent"):
        strict.load("a")


def test_a_backend_that_an_agent_switches_to_is_judged_too(guarded: Guarded) -> None:
    bench = guarded(backends=("onnxruntime",))

    switched: list[str] = []

    def switch(model: AgentModel, _: object) -> None:
        if not switched:
            switched.append(model.location)
            place = model.acquire_location()
            config = model.config
            assert config is not None
            config.backend = "python"
            model.write_config(config)
            model.update_location(place)

    bench.agents.does["a"] = switch
    source = bench.model("a", extra='backend: "onnxruntime"')
    with pytest.raises(InternalError, match="does not allow backend 'python'"):
        bench.loader.load(source)
    assert bench.agents.events.count("guard LOAD_FAIL") == 1
    assert bench.left_over() == []


def test_a_model_cannot_see_the_policys_parameters_in_its_configuration(
    make_bench: Callable[..., Any], known_agents: AgentRegistry
) -> None:
    rule = Rule(models=("*",), before=(DemandedAgent("guard", (("level", "operator only"),)),))
    bench = make_bench(planner=PolicyPlanner(Policy([rule]), known_agents))
    seen = []
    bench.agents.does["guard"] = lambda model, _: seen.append(list(model.parameters.items()))
    chain = bench.load("a")
    assert seen == [[("level", "operator only")]]
    assert "operator only" not in str(chain.config)


# Reading policy.toml: what it may say, and that every typo is refused rather than passed over.

WHOLE = """
mode = "warn"

[[rule]]
models = ["fraud-*"]
mode = "enforce"
before = [{ agent = "checksum", parameters = { manifest = "SHA256SUMS" } }, "verify"]
after = [{ agent = "scan", parameters = [["path", "1"], ["path", "2"]] }]
agents = ["decrypt", { name = "convert", distribution = "repoagent-convert", version = "0.1.*" }]
backends = ["onnxruntime"]
platforms = ["onnxruntime_onnx"]
trust_roots = { ngc = "root.pem" }

[[rule]]
models = ["*"]
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "policy.toml"
    path.write_text(text)
    return path


def test_everything_a_rule_can_say_is_read(tmp_path: Path) -> None:
    (tmp_path / "root.pem").write_text("a certificate")
    first, second = read_policy(write(tmp_path, WHOLE)).rules
    assert first.mode is Mode.ENFORCE
    assert first.before == (DemandedAgent("checksum", (("manifest", "SHA256SUMS"),)), DemandedAgent("verify"))
    assert first.after == (DemandedAgent("scan", (("path", "1"), ("path", "2"))),)
    assert first.agents == (AllowedAgent("decrypt"), AllowedAgent("convert", "repoagent-convert", "0.1.*"))
    assert first.backends == ("onnxruntime",)
    assert first.platforms == ("onnxruntime_onnx",)
    assert first.trust_roots == {"ngc": tmp_path / "root.pem"}
    assert second.mode is Mode.WARN
    assert second.agents is None


def test_the_first_matching_rule_decides(tmp_path: Path) -> None:
    (tmp_path / "root.pem").write_text("a certificate")
    policy = read_policy(write(tmp_path, WHOLE))
    assert policy.rule_for("fraud-eu") is policy.rules[0]
    assert policy.rule_for("other") is policy.rules[1]


def test_a_model_that_no_rule_is_for_is_not_touched(tmp_path: Path) -> None:
    policy = read_policy(write(tmp_path, '[[rule]]\nmodels = ["a"]'))
    assert policy.rule_for("b").mode is Mode.OFF


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rule = 3", "expected a list"),
        ("rules = []", "unknown key 'rules'"),
        ("[[rule]]\nmode = 'warn'", 'it needs "models"'),
        ("[[rule]]\nmodels = ['a']\nmode = 'enforced'", "off, warn or enforce"),
        ("[[rule]]\nmodels = ['a']\nbefor = []", "unknown key 'befor'"),
        ("[[rule]]\nmodels = ['a']\nbefore = [{agnt = 'x'}]", "unknown key 'agnt'"),
        ("[[rule]]\nmodels = ['a']\nbefore = [{agent = 'x', parameters = {k = 3}}]", "parameters must be"),
        ("[[rule]]\nmodels = ['a']\nbackends = 'python'", "expected a list"),
        ("[[rule]]\nmodels = ['a']\nagents = [{name = 'x', record_sha256 = 'abc'}]", "64 lower-case"),
        ("[[rule]]\nmodels = ['a']\nagents = [{name = 'x', version = 1}]", "must be a text"),
        ("[[rule]]\nmodels = ['a']\ntrust_roots = {r = 'nosuch.pem'}", "there is no file"),
        ("[[rule]\n", "not a TOML file"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.toml") as raised:
        read_policy(write(tmp_path, text))
    assert complaint in str(raised.value)


def test_a_missing_policy_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_policy(tmp_path / "policy.toml")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ('conversions = "shared-only"', 'needs "builders"'),
        ('conversions = "shared"', "must be one of build, prefer-shared, shared-only"),
        ('builders = { ci = "none.pem" }', "there is no file"),
        ('builders = { ci = "ci.pem" }\nbuilders_needed = 2', "a number from 1 to 1"),
        ('builders = { ci = "ci.pem" }\nbuilders_needed = true', "a number from 1 to 1"),
    ],
)
def test_builders_that_could_never_be_trusted_are_refused(tmp_path: Path, keys: str, reason: str) -> None:
    (tmp_path / "ci.pem").write_text("key")
    (tmp_path / "policy.toml").write_text(f'[[rule]]\nmodels = ["*"]\n{keys}\n')
    with pytest.raises(ConfigError, match=reason):
        read_policy(tmp_path / "policy.toml")


def test_builders_are_preferred_where_a_rule_names_them(tmp_path: Path) -> None:
    (tmp_path / "ci.pem").write_text("key")
    text = '[[rule]]\nmodels = ["a"]\nbuilders = { ci = "ci.pem" }\n[[rule]]\nmodels = ["*"]\n'
    (tmp_path / "policy.toml").write_text(text)
    policy = read_policy(tmp_path / "policy.toml")
    assert (policy.rule_for("a").conversions, policy.rule_for("a").builders_needed) == ("prefer-shared", 1)
    assert policy.rule_for("b").conversions == "build"
