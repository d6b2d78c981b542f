"""The contract: an agent writes into its own directories only, no secret leaves it, its README is true."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from repoagent.loader.candidates import check_agent
from repoagent.loader.discovery import AgentRegistry
from repoagent.testing.contract.subject import Subject
from repoagent.testing.harness import AgentHarness, Outcome
from repoagent.testing.leftovers import files_holding


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


_SHORTEST_SECRET = 6
"""Shorter lines of a secret (a name, an ending) may show by chance."""


class Isolation(Subject):
    """The model's directory, temporary files, logs, reports and errors."""

    def test_the_models_own_directory_stays_as_it_was(self) -> None:
        with self.open_harness() as harness:
            for files in (self.good_model, self.bad_model):
                if files is not None:
                    model = self.write_model(files)
                    before = _tree(model)
                    harness.run(model)
                    assert _tree(model) == before

    def test_the_digests_that_it_states_are_those_of_its_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("repoagent.loader.agent_model.EntryModel.digests_wanted", True)
        with self.open_harness() as harness:
            chain = harness.load(self.write_model(self.good_model))
            wrong = [
                path
                for path, digest in (chain.digests() if chain.private else {}).items()
                if hashlib.sha256(chain.files.bytes(path)).hexdigest() != digest
            ]
            assert wrong == [], "an agent writes nothing to a file after keep_digests, nor to a location handed on"

    def test_nothing_is_left_in_temporary_home_and_working_directory(self) -> None:
        with self.open_harness() as harness:
            self.run_good(harness)
            self.run_bad(harness)
        assert sorted(self.scratch.rglob("*")) == []

    def test_no_secret_is_logged_reported_or_raised(self) -> None:
        if not self.secrets:
            pytest.skip("set secrets, if the agent has any")
        with self.open_harness() as harness:
            for outcome in self._outcomes(harness):
                shown = _all_text(outcome)
                assert [name for name, secret in self.secrets.items() if _shows(secret, shown)] == []

    def test_no_secret_and_no_plaintext_reaches_a_disk(self) -> None:
        hidden = [*self.secrets.values(), *([] if self.plaintext is None else [self.plaintext])]
        if not hidden:
            pytest.skip("set secrets and plaintext, if the agent has any")
        with self.open_harness() as harness:
            chain = harness.load(self.write_model(self.good_model))
            chain.complete()
            disk = (harness.workspace, harness.cache, self.scratch)
            assert [files_holding(secret, *disk) for secret in hidden] == [[] for _ in hidden]
            chain.unload()
            chain.unload_complete()
            assert [files_holding(secret, *disk, harness.memory) for secret in hidden] == [[] for _ in hidden]

    def _outcomes(self, harness: AgentHarness) -> Iterator[Outcome]:
        good = self.run_good(harness)
        yield good
        bad = self.run_bad(harness)
        if bad is not None:
            yield bad
        for point in self.calls_in_load(good):
            harness.faults.reset()
            harness.faults.fail(f"after {point}")
            yield self.run_good(harness)


def _tree(root: Path) -> dict[str, tuple[int, int, str]]:
    return {str(path.relative_to(root)): _state(path) for path in sorted(root.rglob("*"))}


def _state(path: Path) -> tuple[int, int, str]:
    status = path.lstat()
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return status.st_mode, status.st_mtime_ns, content


def _all_text(outcome: Outcome) -> str:
    return "\n".join([outcome.log, outcome.report.to_json(), str(outcome.report), str(outcome.error), outcome.config])


def _shows(secret: bytes, text: str) -> bool:
    lines = [line.strip().decode(errors="replace") for line in secret.splitlines()]
    return any(len(line) >= _SHORTEST_SECRET and not line.startswith("#") and line in text for line in lines)
