"""T5: what a guard verified in a file, a load request may not replace, unless the operator's rule lets it."""

import json
import logging
from collections.abc import Callable

import pytest

from tests.hostile.policy.ground import Ground, digest_list, refusal_of, sha256

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
