"""Reading policy.toml: what it may say, and that every typo is refused rather than passed over."""

from pathlib import Path

import pytest

from repoagent.errors import ConfigError
from repoagent.loader.policy.rules import AllowedAgent, DemandedAgent, Mode, read_policy

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
