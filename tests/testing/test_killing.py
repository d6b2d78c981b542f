"""Children that die where they are told to."""

from pathlib import Path

import pytest

from repoagent.testing import KillHarness, ModelRepo
from repoagent.testing.killing import Child


@pytest.fixture
def model(model_repo: ModelRepo) -> Path:
    return model_repo.add("m", agents=["checksum"])


@pytest.mark.slow
def test_a_child_dies_at_the_point_and_leaves_what_it_had(kill_harness: KillHarness, model: Path) -> None:
    kill_harness.kill(model, "checksum LOAD")
    assert kill_harness.holding(b"weights") != []
    kill_harness.restart()
    assert kill_harness.holding(b"weights") == []
    assert kill_harness.left_over() == []


def test_a_child_that_is_not_killed_tells_what_it_passed(kill_harness: KillHarness, model: Path) -> None:
    passed = kill_harness.run(model)
    assert "after checksum UNLOAD_COMPLETE" in passed
    assert kill_harness.left_over() == []


def test_a_point_that_is_never_reached_is_an_error_that_lists_those_that_are(
    kill_harness: KillHarness, model: Path
) -> None:
    with pytest.raises(
        AssertionError, match=r"not killed at 'checksum LOAD_FAIL' .* passed:\n(.*\n)*  checksum LOAD\n"
    ):
        kill_harness.kill(model, "checksum LOAD_FAIL")


def test_a_load_that_fails_is_an_error_with_its_reason(kill_harness: KillHarness, model_repo: ModelRepo) -> None:
    model = model_repo.add("m", agents=["missing"])
    with pytest.raises(AssertionError, match="no such agent"):
        kill_harness.run(model)


def test_a_child_that_is_gone_is_an_error(tmp_path: Path, model: Path) -> None:
    with Child() as child, KillHarness(tmp_path / "gone", child) as harness:
        child._process.kill()
        child._process.wait()
        with pytest.raises(RuntimeError, match="the child process ended"):
            harness.run(model)
