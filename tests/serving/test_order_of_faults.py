"""Which of two faults of a configuration the answer to a load names."""

from pathlib import Path

import pytest

from repoagent.errors import RepoAgentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ('name: "other" backend: "python" max_batch_size: -1', "unexpected directory name 'm' for model 'other'"),
        ('name: "m" backend: "python" input { name: "a" }', "there is no version directory"),
    ],
)
def test_the_name_is_checked_first_and_versions_before_tensors(
    tmp_path: Path, config: str, fault: str, strict: bool
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    options = CoreOptions(repositories=(str(tmp_path),), control_mode=ControlMode.EXPLICIT, strict_model_config=strict)
    with ServingCore(options) as core, pytest.raises(RepoAgentError, match=fault):
        core.load("m")
