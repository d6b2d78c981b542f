"""T19, T20: a scan that the operator demands judges a file as the backend opens it, whatever it looks like."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from agents.scan.tests.test_corpus import code, external, onnx_besides, pickles
from repoagent.errors import RepoAgentError
from repoagent.testing import write_files
from tests.hostile.conftest import NewCore

POLICY = """
[[rule]]
models = ["*"]
after = [{ agent = "scan", parameters = { modelaudit = "off" } }]
"""
PICKLES = [(name, {"1/model.onnx": b"", "1/weights": content}) for name, content in pickles()]
FORMS = [*onnx_besides(), *code(), *PICKLES, *external()]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "files"), FORMS, ids=[name for name, _ in FORMS])
def test_a_model_with_code_in_it_is_refused_by_the_scan(
    repository: Path, new_core: NewCore, name: str, files: Mapping[str, bytes]
) -> None:
    write_files(repository / "m", {"1/labels.txt": b"", **files})
    core = new_core(policy=POLICY)
    with pytest.raises(RepoAgentError, match=r"agent 'scan'"):
        core.load("m")
    assert not core.model_ready("m"), name
