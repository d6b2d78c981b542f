"""The module that calls CUDA and TensorRT, executed: over imitations of their interfaces, in a process of its own.

It shows that calls, arguments, results, threads, handles and the order of ends are right as far as the documentation
goes. It shows nothing about CUDA and TensorRT themselves: see docs/gpu.md.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.platforms import INTERFACES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TWICE = [
    "tests/serving/backends/tensorrt/test_parity.py",
    "tests/serving/backends/tensorrt/test_runner.py",
    "llm/tests/runner/test_tensorrt.py",
    "tests/engines/gpu",
]
ONLY_HERE = "tests/engines/interfaces/over"


def run_tests(*names: str) -> set[str]:
    """Those that passed; none failed."""
    path = os.pathsep.join([str(Path(__file__).parent / "packages"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, INTERFACES: "1", "REPOAGENT_TENSORRT": "tensorrt"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rpfE", "-p", "no:cacheprovider", *names],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return {line.removeprefix("PASSED ") for line in done.stdout.splitlines() if line.startswith("PASSED ")}


# What both have runs in one process: its imports take longer than the tests do.
@pytest.mark.parametrize("names", [TWICE, [ONLY_HERE]], ids=["twice", "only here"])
def test_what_holds_over_the_stand_in_holds_over_the_interfaces(names: list[str]) -> None:
    passed = run_tests(*names)
    assert [name for name in names if not any(one.startswith(name) for one in passed)] == []
