"""The same input gives the same bytes: in other directories, with another hash seed, on one core, on another day."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agents.convert.tests.trees.conftest import STORE
from tests import onnx_models

pytestmark = pytest.mark.slow

_DAY = """
import sys, time, runpy
later = time.time() + 8_640_000
time.time = lambda: later
sys.argv = ["repoagent", *sys.argv[1:]]
runpy.run_module("repoagent", run_name="__main__")
"""
CASES = {
    "as it is": ({"PYTHONHASHSEED": "0"}, []),
    # All at once: each conversion takes most of a second of a processor.
    "another hash seed, one core, another day and zone": (
        {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1", "TZ": "Pacific/Kiritimati", "LC_ALL": "C"},
        ["taskset", "-c", str(min(os.sched_getaffinity(0)))],
    ),
}


def convert(model: Path, pair: tuple[str, str], place: Path, case: str) -> dict[str, str]:
    """SHA-256 of each file that comes of ``model``; its statement has the time, and is left out."""
    environment, prefix = CASES[case]
    place.mkdir()
    source = Path(shutil.copy(model, place / model.name))
    start = ["-c", _DAY] if prefix else ["-m", "repoagent"]
    words = ["convert", str(source), "--from", pair[0], "--to", pair[1], "--output", str(place / "result.onnx")]
    command = [*prefix, sys.executable, *start, *words]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    made = [path for path in place.iterdir() if path != source and not path.name.endswith(".intoto.json")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}


@pytest.mark.parametrize("pair", [("onnx", "optimized"), ("onnx", "int8"), ("xgboost", "onnx"), ("lightgbm", "onnx")])
def test_a_conversion_depends_on_its_input_alone(pair: tuple[str, str], tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    if pair[0] == "onnx":
        model = onnx_models.save_model(onnx_models.perceptron(), tmp_path / "model.onnx")
    else:
        name = min(key for key in STORE if key.startswith(pair[0][0]) and key.endswith("/file"))
        model.write_bytes(bytes(STORE[name]))
    found = [convert(model, pair, tmp_path / f"place {number}", case) for number, case in enumerate(CASES)]
    assert found[0]
    assert found == [found[0]] * len(CASES)
