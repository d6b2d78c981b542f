"""KServe's REST and gRPC clients from PyPI, unmodified, in one process with the server, imported in either order."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("kserve") is None, reason="kserve is not installed: it is one of the extra 'dev'"
    ),
]

_KINDS = ("BOOL", "UINT8", "INT32", "INT64", "UINT64", "FP32", "FP64")
_VALUES = [
    [f"OUTPUT{index}", kind, [[False, True, True]] if kind == "BOOL" else [[0, 1, 3]]]
    for index, kind in enumerate(_KINDS)
]
_HALF = [["OUTPUT0", "FP16", [0.5, -2.0]]]


def _write(repository: Path, name: str, kinds: tuple[str, ...], max_batch_size: int) -> None:
    (repository / name / "1").mkdir(parents=True)
    tensors = "".join(
        f'{way}put {{ name: "{way.upper()}PUT{index}" data_type: TYPE_{kind} dims: [-1] }}\n'
        for index, kind in enumerate(kinds)
        for way in ("in", "out")
    )
    config = f'backend: "identity"\nmax_batch_size: {max_batch_size}\n{tensors}'
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module", params=["ours", "kserve"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What KServe's clients got, with this package or theirs imported first."""
    repository = tmp_path_factory.mktemp("repository")
    _write(repository, "types", _KINDS, 4)
    _write(repository, "half", ("FP16",), 0)
    _write(repository, "texts", ("STRING",), 4)
    program = Path(__file__).with_name("kserve_program.py")
    done = subprocess.run(
        [sys.executable, str(program), request.param, str(repository)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_health(found: dict[str, Any]) -> None:
    for client in ("rest", "grpc"):
        assert [found[client][what] for what in ("live", "ready", "model")] == [True, True, True]
    assert found["rest"]["no model"] is False


def test_rest_inference_in_json_in_binary_and_mixed(found: dict[str, Any]) -> None:
    rest = found["rest"]
    assert rest["json"] == rest["binary"] == rest["mixed"] == _VALUES
    assert (rest["json header"], rest["binary header"]) == (False, True)
    assert rest["half"] == _HALF
    assert rest["dict"] == ["a", "é"]


def test_grpc_inference_with_raw_and_typed_contents(found: dict[str, Any]) -> None:
    grpc = found["grpc"]
    assert grpc["raw"] == grpc["contents"] == _VALUES
    assert grpc["half"] == _HALF


def test_ids_names_and_parameters_come_back(found: dict[str, Any]) -> None:
    # Its REST client does not read the version.
    expected = {"param0": "an example string parameter", "param1": 42, "param2": False}
    assert found["rest"]["texts"] == ["r2", "texts", None, ["a", "é"], expected]
    assert found["grpc"]["texts"] == ["r2", "texts", "1", ["a", "é"], 42]


def test_errors_have_their_statuses_and_texts(found: dict[str, Any]) -> None:
    unknown = "Request for unknown model: 'nosuch' is not found"
    status, text = found["rest"]["unknown"]
    assert (status, text.partition(",")[0]) == (404, unknown)
    status, text = found["rest"]["wrong"]
    assert status == 400
    assert "unexpected inference output 'OUTPUT1' for model 'texts'" in text
    assert found["grpc"]["unknown"] == ["NOT_FOUND", unknown]
    assert found["grpc"]["wrong"] == ["INVALID_ARGUMENT", "unexpected inference output 'OUTPUT1' for model 'texts'"]
