"""The contract: an agent describes itself."""

import re
from collections.abc import Mapping

import pytest

from repoagent.loader.candidates import check_agent
from repoagent.loader.discovery import AgentRegistry
from repoagent.testing.contract.subject import Subject

__all__ = ["Documents"]


class Documents(Subject):
    """The API version, the documentation, the entry point."""

    def test_it_states_an_api_version_that_this_program_supports(self) -> None:
        assert check_agent(self.name, self.agent, "the class under test") is self.agent

    def test_it_has_a_docstring(self) -> None:
        assert (self.agent.__dict__.get("__doc__") or "").strip(), "`repoagent agents inspect` shows it"

    def test_the_readme_names_every_parameter(self) -> None:
        if self.readme is None or not self.parameters:
            pytest.skip("set readme and parameters")
        code = _code(self.readme.read_text(encoding="utf-8"))
        given = self.parameters.keys() if isinstance(self.parameters, Mapping) else [key for key, _ in self.parameters]
        # Of a parameter such as SHA256:path, the part before the colon is the name.
        names = {key: re.escape(key.partition(":")[0]) for key in given}
        missing = [key for key, name in names.items() if not re.search(rf"(?<![\w-]){name}(?![\w-])", code)]
        assert missing == [], f"{self.readme} does not name the parameter {', '.join(missing)} in `code` or a table"

    def test_it_is_offered_under_its_name(self) -> None:
        if self.entry_point is None:
            pytest.skip("set entry_point, if the package is installed where the tests run")
        assert AgentRegistry(None).load(self.entry_point) is self.agent


def _code(page: str) -> str:
    """The code spans and table rows of a page in Markdown: in running text a parameter is a word like others."""
    return "\n".join([*re.findall(r"`([^`\n]+)`", page), *re.findall(r"^\|.*", page, re.MULTILINE)])
