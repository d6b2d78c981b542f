"""T2: a rule that allows platforms stops every backend whose models are of another platform."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.policy.ground import Ground, Road, by_a_load_request, refusal_of

RULE = '[[rule]]\nmodels = ["m"]\nplatforms = ["onnxruntime_onnx"]\n'
NOT_ALLOWED = "the policy does not allow platform 'python'; allowed: onnxruntime_onnx"

PROGRAMS = {
    "bare": b"",
    "named": b'backend: "python"',
    "by the file name": b'default_model_filename: "model.py"',
    "with an empty platform": b'backend: "python" platform: ""',
    "with a runtime": b'backend: "python" runtime: "onnxruntime"',
    "of another case": b'backend: "Python"',
    "with a space": b'backend: "python "',
}


@pytest.mark.parametrize("config", PROGRAMS.values(), ids=[name.replace(" ", "-") for name in PROGRAMS])
def test_no_road_leads_to_code_of_the_model(
    ground: Ground, road: Road, config: bytes, program: bytes, trap: Path
) -> None:
    ground.write({"1/model.py": program} | ({"config.pbtxt": config} if config else {}))
    refusal = road(ground, RULE)
    assert "the policy does not allow platform" in refusal
    assert not trap.exists()


def test_a_platform_that_contradicts_the_backend_is_refused(
    ground: Ground, road: Road, program: bytes, trap: Path
) -> None:
    ground.write({"config.pbtxt": b'backend: "python" platform: "onnxruntime_onnx"', "1/model.py": program})
    assert "the platform 'onnxruntime_onnx' is not one of the backend 'python'" in road(ground, RULE)
    assert not trap.exists()


def test_an_invented_platform_is_refused(ground: Ground, road: Road, program: bytes, trap: Path) -> None:
    ground.write({"config.pbtxt": b'backend: "python" platform: "mine"', "1/model.py": program})
    refusal = road(ground, '[[rule]]\nmodels = ["m"]\nplatforms = ["mine"]\n')
    assert "the platform 'mine' is not one of the backend 'python'" in refusal
    assert not trap.exists()


@pytest.mark.parametrize(
    ("disguise", "complaint"),
    [
        ('platform: "ensemble"', "the policy does not allow platform 'ensemble'"),
        ("", "ensemble scheduling cannot be set"),
        ('backend: "onnxruntime"', "ensemble scheduling cannot be set"),
        ('backend: "onnxruntime" platform: "onnxruntime_onnx"', "ensemble scheduling cannot be set"),
    ],
)
def test_an_ensemble_passes_for_nothing_else(
    ground: Ground, weights: Callable[[float], bytes], disguise: str, complaint: str
) -> None:
    ground.write({"1/model.onnx": weights(1)}, "member")
    tensor = "data_type: TYPE_FP32 dims: [-1, 4] }]"
    steps = (
        'ensemble_scheduling { step [{ model_name: "member" model_version: -1 input_map { key: "x" value: "a" } '
        f'output_map {{ key: "y" value: "b" }} }}] }} input [{{ name: "a" {tensor} output [{{ name: "b" {tensor}'
    )
    ground.write({"config.pbtxt": (disguise + steps).encode(), "1/.keep": b""})
    assert complaint in by_a_load_request(ground, RULE)
    only_backends = RULE.replace("platforms", "backends").replace("onnxruntime_onnx", "onnxruntime")
    assert complaint.replace("platform 'e", "backend 'e") in by_a_load_request(ground, only_backends)


def test_an_override_changes_nothing(ground: Ground, program: bytes, weights: Callable[[float], bytes]) -> None:
    ground.write({"1/model.onnx": weights(1), "1/model.py": program, "config.pbtxt": b'backend: "onnxruntime"'})
    core = ground.core(RULE)
    assert NOT_ALLOWED in refusal_of(lambda: core.load("m", config='{"backend": "python"}'))
    assert NOT_ALLOWED in refusal_of(lambda: core.load("m", config='{"default_model_filename": "model.py"}'))


def test_what_the_rule_allows_is_served(ground: Ground, road: Road, weights: Callable[[float], bytes]) -> None:
    ground.write({"1/model.onnx": weights(1)})
    assert road(ground, RULE) == ""


def test_a_backend_without_a_platform_is_allowed_by_its_name(ground: Ground, program: bytes, trap: Path) -> None:
    ground.write({"1/model.py": program})
    assert by_a_load_request(ground, RULE.replace("onnxruntime_onnx", "python")) == ""
    assert trap.exists()
