"""What installing the kit does to other people's test runs."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from repoagent.testing import AgentHarness, FakeKeys, FaultInjection, KillHarness, ModelRepo

PROBE = """
import sys

def test_probe():
    loaded = [name for name in sys.modules if name.startswith("repoagent.")]
    assert loaded == ["repoagent.testing", "repoagent.testing.plugin"], loaded
    assert not {"numpy", "fsspec", "onnxruntime", "google.protobuf"} & set(sys.modules)
"""


def test_pytest_finds_the_fixtures_by_itself() -> None:
    (point,) = [point for point in entry_points(group="pytest11") if point.name == "repoagent"]
    assert point.value == "repoagent.testing.plugin"


def test_the_fixtures_are_of_the_documented_types(
    agent_harness: AgentHarness,
    model_repo: ModelRepo,
    fake_keys: FakeKeys,
    fault_injection: FaultInjection,
    kill_harness: KillHarness,
) -> None:
    assert agent_harness.keys is fake_keys
    assert agent_harness.faults is fault_injection
    assert isinstance(model_repo, ModelRepo)
    assert isinstance(kill_harness, KillHarness)


@pytest.mark.slow
def test_a_test_run_that_does_not_use_them_imports_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_probe.py").write_text(PROBE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:cloudcoil", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_name_that_the_kit_does_not_have_is_an_attribute_error() -> None:
    import repoagent.testing

    with pytest.raises(AttributeError, match="no attribute 'Harness'"):
        _ = repoagent.testing.Harness
