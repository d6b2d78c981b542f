"""The README keeps up with the code."""

from pathlib import Path

import pytest
from repoagent_convert.agent import PARAMETERS, PROVENANCE
from repoagent_llm import plugin

from repoagent.converters import BUILT_IN_CONVERTERS
from repoagent.loader.converting.registry import resolve

README = (Path(__file__).parents[1] / "README.md").read_text()


CONVERTERS = {**BUILT_IN_CONVERTERS, **plugin.register_converters()}
OPTIONS = {name for target in CONVERTERS.values() for name in resolve(target).options}


@pytest.mark.parametrize("name", [*PARAMETERS, *sorted(OPTIONS), "basic", "extended", "all", PROVENANCE])
def test_every_parameter_and_level_is_documented(name: str) -> None:
    assert f"`{name}`" in README
