"""What resisted from the start: rules with ``backends``, pinned guards under races, and references to keys."""

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.hostile.policy.ground import Ground, Road, by_a_load_request, digest_list, refusal_of, sha256

RULE = '[[rule]]\nmodels = ["m"]\nbackends = ["onnxruntime"]\n'
PROGRAMS = {
    "bare": b"",
    "named": b'backend: "python"',
    "by the file name": b'default_model_filename: "model.py"',
    "with another platform": b'backend: "python" platform: "onnxruntime_onnx"',
    "with a runtime": b'backend: "python" runtime: "onnxruntime"',
    "of another case": b'backend: "OnnxRuntime"',
    "with a space": b'backend: "onnxruntime "',
    "an ensemble": b'platform: "ensemble"',
}


@pytest.mark.parametrize("config", PROGRAMS.values(), ids=[name.replace(" ", "-") for name in PROGRAMS])
def test_no_road_leads_round_a_list_of_backends(
    ground: Ground, road: Road, config: bytes, program: bytes, trap: Path
) -> None:
    ground.write({"1/model.py": program} | ({"config.pbtxt": config} if config else {}))
    assert road(ground, RULE) != ""
    assert not trap.exists()


@pytest.mark.slow
def test_a_swapped_file_never_passes_a_pinned_guard(ground: Ground, weights: Callable[[float], bytes]) -> None:
    files = {"config.pbtxt": b'backend: "onnxruntime" max_batch_size: 8\n', "1/model.onnx": weights(1)}
    directory = ground.write(files | {"SHA256SUMS": digest_list(files)})
    core = ground.core(
        f"{RULE}agents = []\n"
        'before = [{ agent = "checksum", parameters = '
        f'{{ manifest = "SHA256SUMS", "SHA256:SHA256SUMS" = "{sha256(digest_list(files))}" }} }}]\n'
    )
    evil, honest, place = ground.path / "evil", ground.path / "honest", directory / "1" / "model.onnx"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for content, source in ((weights(666), evil), (files["1/model.onnx"], honest)):
                source.write_bytes(content)
                os.replace(source, place)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        outcomes = [_served(core) for _ in range(60)]
    finally:
        stop.set()
        swapper.join()
    assert set(outcomes) <= {None, 1.0}


def _served(core: ServingCore) -> float | None:
    """What the model adds to its input, if it is loaded."""
    if refusal_of(lambda: core.load("m")):
        return None
    answer = core.infer(InferRequest(Asked("m", {"x": Tensor.of(np.zeros((1, 4), np.float32))})))
    core.unload("m")
    return float(answer.outputs["y"].array[0, 0])


@pytest.mark.parametrize("reference", ["exec:touch {trap}", "kbs:///../../x", "vault:kv/a%2F..%2Fb/c", "file:relative"])
def test_a_models_reference_to_a_key_runs_and_reads_nothing(ground: Ground, trap: Path, reference: str) -> None:
    entry = f'{{ name: "decrypt" parameters {{ key: "identity" value: "{reference.format(trap=trap)}" }} }}'
    ground.write(
        {"config.pbtxt": f"model_repository_agents {{ agents [ {entry} ] }}".encode(), "1/model.onnx.age": b"age"}
    )
    assert "agent 'decrypt'" in by_a_load_request(ground, "")
    assert not trap.exists()


# T2: a rule that allows platforms stops every backend whose models are of another platform.

PLATFORMS = '[[rule]]\nmodels = ["m"]\nplatforms = ["onnxruntime_onnx"]\n'
NOT_ALLOWED = "the policy does not allow platform 'python'; allowed: onnxruntime_onnx"
PROGRAM_FILES = {
    "bare": b"",
    "named": b'backend: "python"',
    "by the file name": b'default_model_filename: "model.py"',
    "with an empty platform": b'backend: "python" platform: ""',
    "with a runtime": b'backend: "python" runtime: "onnxruntime"',
    "of another case": b'backend: "Python"',
    "with a space": b'backend: "python "',
}


@pytest.mark.parametrize("config", PROGRAM_FILES.values(), ids=[name.replace(" ", "-") for name in PROGRAM_FILES])
def test_no_road_leads_to_code_of_the_model(
    ground: Ground, road: Road, config: bytes, program: bytes, trap: Path
) -> None:
    ground.write({"1/model.py": program} | ({"config.pbtxt": config} if config else {}))
    refusal = road(ground, PLATFORMS)
    assert "the policy does not allow platform" in refusal
    assert not trap.exists()


def test_a_platform_that_contradicts_the_backend_is_refused(
    ground: Ground, road: Road, program: bytes, trap: Path
) -> None:
    ground.write({"config.pbtxt": b'backend: "python" platform: "onnxruntime_onnx"', "1/model.py": program})
    assert "the platform 'onnxruntime_onnx' is not one of the backend 'python'" in road(ground, PLATFORMS)
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
    assert complaint in by_a_load_request(ground, PLATFORMS)
    only_backends = PLATFORMS.replace("platforms", "backends").replace("onnxruntime_onnx", "onnxruntime")
    assert complaint.replace("platform 'e", "backend 'e") in by_a_load_request(ground, only_backends)


def test_an_override_changes_nothing(ground: Ground, program: bytes, weights: Callable[[float], bytes]) -> None:
    ground.write({"1/model.onnx": weights(1), "1/model.py": program, "config.pbtxt": b'backend: "onnxruntime"'})
    core = ground.core(PLATFORMS)
    assert NOT_ALLOWED in refusal_of(lambda: core.load("m", config='{"backend": "python"}'))
    assert NOT_ALLOWED in refusal_of(lambda: core.load("m", config='{"default_model_filename": "model.py"}'))


def test_what_the_rule_allows_is_served(ground: Ground, road: Road, weights: Callable[[float], bytes]) -> None:
    ground.write({"1/model.onnx": weights(1)})
    assert road(ground, PLATFORMS) == ""


def test_a_backend_without_a_platform_is_allowed_by_its_name(ground: Ground, program: bytes, trap: Path) -> None:
    ground.write({"1/model.py": program})
    assert by_a_load_request(ground, PLATFORMS.replace("onnxruntime_onnx", "python")) == ""
    assert trap.exists()


# T5: what a guard verified in a file, a load request may not replace, unless the operator's rule lets it.

CONFIG = b'backend: "onnxruntime" max_batch_size: 8\n'
REFUSED = "the policy does not allow a load to bring a configuration of its own"
OVERRIDES = {
    "another backend": {"backend": "python"},
    "an interpreter": {"backend": "python", "parameters": {"EXECUTION_ENV_PATH": {"string_value": "/bin/sh"}}},
    "no batches": {"backend": "onnxruntime", "max_batch_size": 0},
    "the very same": {"backend": "onnxruntime", "max_batch_size": 8},
    "agents of its own": {"modelRepositoryAgents": {"agents": [{"name": "decrypt"}]}},
    "nothing": {},
}


@pytest.fixture
def pinned(ground: Ground, weights: Callable[[float], bytes]) -> str:
    files = {"config.pbtxt": CONFIG, "1/model.onnx": weights(1)}
    ground.write(files | {"SHA256SUMS": digest_list(files)})
    digest = sha256(digest_list(files))
    return (
        '[[rule]]\nmodels = ["m"]\nbefore = [{ agent = "checksum", parameters = { manifest = "SHA256SUMS", '
        f'"SHA256:SHA256SUMS" = "{digest}" }} }}]\n'
    )


@pytest.mark.parametrize("override", OVERRIDES.values(), ids=[name.replace(" ", "-") for name in OVERRIDES])
def test_no_override_is_taken(ground: Ground, pinned: str, override: dict[str, object]) -> None:
    core = ground.core(pinned)
    assert REFUSED in refusal_of(lambda: core.load("m", config=json.dumps(override)))
    assert not core.model_ready("m")
    core.load("m")
    assert core.model_config("m")["max_batch_size"] == 8


def test_no_contents_are_taken(ground: Ground, pinned: str) -> None:
    core = ground.core(pinned)
    files = {"1/model.onnx": (ground.repository / "m" / "1" / "model.onnx").read_bytes()}
    assert REFUSED in refusal_of(lambda: core.load("m", config="{}", files=files))


def test_a_model_that_serves_goes_on_after_the_refusal(ground: Ground, pinned: str) -> None:
    core = ground.core(pinned)
    core.load("m")
    assert REFUSED in refusal_of(lambda: core.load("m", config='{"max_batch_size": 4}'))
    assert core.model_ready("m")
    assert core.model_config("m")["max_batch_size"] == 8


def test_the_operator_can_allow_it(ground: Ground, pinned: str) -> None:
    core = ground.core(f"{pinned}overrides = true\n")
    core.load("m", config='{"backend": "onnxruntime", "max_batch_size": 4}')
    assert core.model_config("m")["max_batch_size"] == 4


def test_the_operator_can_forbid_it_without_a_guard(ground: Ground, pinned: str) -> None:
    core = ground.core('[[rule]]\nmodels = ["m"]\noverrides = false\n')
    assert REFUSED in refusal_of(lambda: core.load("m", config='{"backend": "onnxruntime"}'))


def test_without_a_guard_it_is_allowed(ground: Ground, pinned: str) -> None:
    core = ground.core('[[rule]]\nmodels = ["m"]\nbackends = ["onnxruntime"]\n')
    assert refusal_of(lambda: core.load("m", config='{"backend": "onnxruntime"}')) == ""


def test_in_mode_warn_it_is_logged(ground: Ground, pinned: str, caplog: pytest.LogCaptureFixture) -> None:
    core = ground.core(f'{pinned}mode = "warn"\n')
    with caplog.at_level(logging.WARNING):
        core.load("m", config='{"backend": "onnxruntime"}')
    assert REFUSED in caplog.text
