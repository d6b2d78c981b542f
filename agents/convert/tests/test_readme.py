"""The README keeps up with the code."""

from pathlib import Path

import pytest
from repoagent_convert.agent import PROVENANCE
from repoagent_convert.options import PARAMETERS, Level

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.parametrize("name", [*PARAMETERS, *Level, PROVENANCE])
def test_every_parameter_and_level_is_documented(name: str) -> None:
    assert f"`{name}`" in README
