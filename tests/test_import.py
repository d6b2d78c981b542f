"""What importing the package may cost, and what it may not pull in (docs/structure.md)."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAVY = ("onnxruntime", "grpc", "tensorrt", "s3fs", "fsspec", "google.protobuf", "numpy")


def _modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_importing_repoagent_pulls_in_nothing_heavy() -> None:
    assert not _modules_after("import repoagent").intersection(HEAVY)


def test_what_an_author_imports_pulls_in_nothing_heavy() -> None:
    assert not _modules_after("import repoagent.api").intersection(HEAVY)


def test_the_command_line_pulls_in_nothing_heavy_before_a_command_runs() -> None:
    assert not _modules_after("import repoagent.cli.main").intersection(HEAVY)


def test_the_server_pulls_in_nothing_of_tensorrt_or_cuda_before_a_model_needs_it() -> None:
    everything = "import repoagent.server, repoagent.executor, repoagent_server, repoagent.serving.backends.tensorrt"
    roots = {name.partition(".")[0].partition("_")[0] for name in _modules_after(everything)}
    assert not roots & {"tensorrt", "cuda"}
