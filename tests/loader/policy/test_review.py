"""What ``policy check`` warns of: each rule that does not hold against the model's owner, with what would."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.policy import read_policy, review

Review = Callable[..., Sequence[str]]

HOLDS = """
[[rule]]
models = ["*"]
before = [{ agent = "checksum", parameters = { trusted_manifest = "sums" } }]
agents = []
backends = ["onnxruntime"]
"""


@pytest.fixture
def warnings(tmp_path: Path) -> Review:
    def run(text: str) -> list[str]:
        (tmp_path / "policy.toml").write_text(text)
        return list(review(read_policy(tmp_path / "policy.toml"), AgentRegistry(None)))

    return run


def test_a_rule_that_holds_is_passed_over(warnings: Review) -> None:
    assert warnings(HOLDS) == []


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ('{ trusted_manifest = "sums" }', "{}", "agent 'checksum': it has no parameter"),
        ("trusted_manifest", "manifest", """add the parameter "SHA256:sums" """),
        ("trusted_manifest", '"MD5:config.pbtxt"', "MD5 of 'config.pbtxt' can be forged"),
        ("trusted_manifest", '"SHA256:1/model.onnx"', "such as a new version directory"),
        ("trusted_manifest", '"SHA256:1/model.onnx"', "no demanded guard covers every file"),
        ("trusted_manifest", '"nonsense"', "every load is refused: failed to parse key"),
        ("agents = []", "overrides = true\nagents = []", "overrides = true lets a load request replace"),
        ("agents = []", "", "the model may name any agent"),
        ("agents = []", 'mode = "warn"', 'mode = "warn" refuses nothing'),
        ('["*"]', '["a"]', "no rule is for every model"),
        ('[{ agent = "checksum", parameters = { trusted_manifest = "sums" } }]', "[]", "no demanded guard"),
        ('["onnxruntime"]', '["onnxruntime_onnx"]', "is a platform, whose backend is 'onnxruntime'"),
        ("backends", "platforms", "'onnxruntime' is a backend, whose platform is 'onnxruntime_onnx'"),
        (
            'before = [{ agent = "checksum", parameters = { trusted_manifest = "sums" } }]',
            'before = [{ agent = "decrypt", parameters = { identity = "file:/k", unencrypted = "copy" } }]',
            "leave out unencrypted = 'copy'",
        ),
    ],
)
def test_a_rule_that_does_not_hold_is_named_with_the_remedy(warnings: Review, old: str, new: str, warning: str) -> None:
    assert any(warning.strip() in line for line in warnings(HOLDS.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("limits", "warned"),
    [
        ("", "set backends or platforms"),
        ('backends = ["python"]', "a model of the backend 'python' can run code"),
        ('platforms = ["python"]', "a model of the backend 'python' can run code"),
        ('platforms = ["tensorrt_plan"]', "a model of the backend 'tensorrt' can run code"),
        ('backends = ["python"]\nplatforms = ["onnxruntime_onnx"]', None),
        ('backends = ["onnxruntime"]', None),
        ("backends = []", None),
    ],
)
def test_backends_that_bring_code_need_a_guard(warnings: Review, limits: str, warned: str | None) -> None:
    lines = warnings(f'[[rule]]\nmodels = ["*"]\nagents = []\n{limits}\n')
    code = [line for line in lines if "backend" in line]
    assert bool(code) == (warned is not None)
    assert warned is None or warned in code[0]


@pytest.mark.parametrize(
    ("earlier", "pattern", "hidden"),
    [
        ("*", "a", True),
        ("**", "a-*", True),
        ("?*", "a", True),
        ("a*", "a-?", True),
        ("a-*", "a-*", True),
        ("a-*", "a-[12]", True),
        ("a-*", "a*", False),
        ("?", "*", False),
        ("a?", "a*", False),
        ("a*b", "a*", False),
        ("[ab]", "a", True),
    ],
)
def test_a_rule_behind_a_wider_one_is_named(warnings: Review, earlier: str, pattern: str, hidden: bool) -> None:
    lines = warnings(HOLDS.replace('"*"', f'"{earlier}"') + f'[[rule]]\nmodels = ["{pattern}"]\nbackends = []\n')
    assert any("an earlier rule decides for" in line for line in lines) is hidden


@pytest.mark.parametrize(
    ("agents", "after", "named"),
    [
        ("[]", "[]", None),
        ("[]", '["convert"]', "convert"),
        ('["convert"]', "[]", "convert"),
        ('["fetch"]', "[]", "fetch"),
        ('["decrypt"]', "[]", None),
        ("[]", '["convert", { agent = "scan", parameters = { modelaudit = "off" } }]', None),
    ],
)
def test_what_replaces_verified_files_is_named(warnings: Review, agents: str, after: str, named: str | None) -> None:
    lines = warnings(HOLDS.replace("agents = []", f"agents = {agents}\nafter = {after}"))
    found = [line for line in lines if "puts files of its own" in line]
    assert bool(found) is (named is not None)
    assert named is None or f"agent '{named}' runs after 'checksum'" in found[0]


def test_a_rule_that_no_model_reaches_is_named(warnings: Review) -> None:
    lines = warnings(HOLDS + '[[rule]]\nmodels = ["a", "b"]\nbackends = []\n')
    assert lines == ["rule 2 (models a, b): an earlier rule decides for a, b; the first that matches a model counts"]
