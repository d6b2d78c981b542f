"""What every agent promises, as tests to inherit: the life of a model with it, how its loads fail, where it writes.

It writes into its own directories only, no secret leaves it, and its README is true.
"""

import errno
import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from repoagent.api import Action, Agent, AgentModel
from repoagent.errors import AgentRefusedError
from repoagent.loader.candidates import check_agent
from repoagent.loader.chain import LoadedChain
from repoagent.loader.discovery import AgentRegistry
from repoagent.testing.contract.subject import Subject
from repoagent.testing.harness import AgentHarness, Outcome
from repoagent.testing.leftovers import files_holding
from repoagent.testing.remote import remote_source

_LOADED: Final = ["initialize", "model_initialize", "LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"]
_REFUSED: Final = ["initialize", "model_initialize", "LOAD", "LOAD_FAIL"]
_END: Final = ["model_finalize", "finalize"]
_SECONDS: Final = 60.0
_SHORTEST_SECRET: Final = 6
"""Shorter lines of a secret (a name, an ending) may show by chance."""


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


class _RefusingAgent(Agent):
    """Refuses every model."""

    api_version = 1

    def load(self, model: AgentModel) -> None:
        raise ValueError("refused by the agent after")


class Failures(Subject):
    """Refusals elsewhere, errors, cancellation, full disks."""

    def test_a_refusal_by_a_later_agent_leaves_nothing(self) -> None:
        with self.open_harness({"refusing": _RefusingAgent}) as harness:
            outcome = harness.run(self.write_model(self.good_model, "refusing"))
        assert "refused by the agent after" in str(outcome.error)
        assert "LOAD_FAIL" in outcome.calls(self.name)
        assert [action.error for action in outcome.report.entries[0].actions] == [None, None]
        assert outcome.left == ()

    def test_a_backend_that_cannot_load_the_model_leaves_nothing(self) -> None:
        with self.open_harness() as harness:
            chain = harness.load(self.write_model(self.good_model))
            chain.fail(RuntimeError("the backend failed"))
            assert [action.error for action in chain.report.entries[0].actions] == [None, None]
            assert harness.left_over() == []

    def test_an_error_at_any_call_leaves_nothing_and_the_next_load_is_fine(self) -> None:
        with self.open_harness() as harness:
            for point in self._calls(harness):
                error = OSError(errno.EIO, "Input/output error (injected)")
                outcome = self._run_with(harness, partial(harness.faults.fail, point, error))
                assert outcome.left == (), point
                assert not (self.agent.guard and outcome.loaded), (
                    f"a guard let the model pass after an error at {point}"
                )
                assert self._run_with(harness, lambda: None).error is None, f"the load after an error at {point}"

    def test_a_load_that_is_cancelled_at_any_call_is_refused_and_leaves_nothing(self) -> None:
        with self.open_harness() as harness:
            for point in self._calls(harness):
                outcome = self._run_with(harness, partial(harness.faults.cancel, point))
                # What the cache keeps is not made again, so that its calls are not reached again.
                assert not outcome.loaded or point not in outcome.passed, point
                assert outcome.left == (), point

    def test_long_work_is_given_up_when_the_load_is_cancelled(self) -> None:
        with self.open_harness() as harness:
            outcome = self._run_with(harness, partial(harness.faults.cancel, f"{self.name} LOAD"))
        load = outcome.report.entries[0].actions[0]
        assert load.action == "LOAD"
        assert outcome.left == ()
        if self.long_running:
            assert load.outcome == "cancelled", "long work looks at model.cancelled and raises CancelledError"

    def test_a_full_disk_leaves_nothing(self) -> None:
        with self.open_harness() as harness:
            harness.faults.room = 0
            outcome = self.run_good(harness)
        assert outcome.left == ()

    def _calls(self, harness: AgentHarness) -> list[str]:
        calls = self.calls_in_load(self.run_good(harness))
        if not calls:
            pytest.skip("in LOAD the agent asks its model for nothing that can fail")
        return calls

    def _run_with(self, harness: AgentHarness, plan: Callable[[], object]) -> Outcome:
        harness.faults.reset()
        plan()
        return self.run_good(harness)


class Life(Subject):
    """Loads, refusals, unloads and reloads."""

    def test_a_good_model_is_loaded_and_unloaded(self) -> None:
        outcome = self.try_good_model()
        assert outcome.error is None, f"the good model was refused: {outcome.error}"
        assert outcome.calls(self.name) == [*_LOADED, *_END]
        assert [(a.action, a.outcome) for a in outcome.report.entries[0].actions] == [
            (action, "ok") for action in ("LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE")
        ]
        assert outcome.left == ()

    def test_a_bad_model_is_refused_with_a_reason(self) -> None:
        with self.open_harness() as harness:
            outcome = self.run_bad(harness)
        if outcome is None:
            assert not self.agent.guard, "a guard refuses some models: set bad_model"
            pytest.skip("set bad_model, if there are models that the agent refuses")
        error = outcome.error
        assert isinstance(error, AgentRefusedError)
        assert error.agent == self.name
        assert error.reason not in ("", type(error.__cause__).__name__), "the exception has no text"
        assert outcome.calls(self.name) == [*_REFUSED, *_END]
        assert outcome.left == ()

    def test_unload_does_no_harm_the_second_time(self) -> None:
        kind = self.agent

        class HearsUnloadsTwice(kind):  # type: ignore[misc, valid-type]
            def model_action(self, model: AgentModel, action: Action) -> None:
                super().model_action(model, action)
                if action in (Action.UNLOAD, Action.UNLOAD_COMPLETE):
                    super().model_action(model, action)

        with self.open_harness({self.name: HearsUnloadsTwice}) as harness:
            outcome = self.run_good(harness)
        assert [action.error for action in outcome.report.entries[0].actions] == [None] * 4
        assert outcome.left == ()

    def test_a_model_is_reloaded_beside_the_one_that_serves(self) -> None:
        with self.open_harness() as harness:
            model = self.write_model(self.good_model)
            old = harness.load(model)
            old.complete()
            new = harness.load(model)
            old.unload()
            new.complete()
            old.unload_complete()
            assert _names(new) == sorted(harness.run(model).files)
            new.unload()
            new.unload_complete()
            assert harness.left_over() == []

    def test_two_models_are_loaded_at_once_with_one_object(self) -> None:
        with self.open_harness() as harness:
            together = threading.Barrier(2, timeout=_SECONDS)
            for point in (f"{self.name} LOAD", f"{self.name} LOAD #2"):
                harness.faults.at(point, together.wait)
            models = [self.write_model(self.good_model, name=name) for name in ("one", "two")]
            with ThreadPoolExecutor(2) as pool:
                chains = list(pool.map(harness.load, models))
            assert harness.faults.passed.count(f"{self.name} initialize") == 1
            assert f"{self.name} initialize #2" not in harness.faults.passed
            assert _names(chains[0]) == _names(chains[1])
            for chain in chains:
                chain.complete()
            for chain in chains:
                chain.unload()
                chain.unload_complete()
            assert harness.left_over() == []

    def test_a_remote_model_is_handled_or_refused(self) -> None:
        with self.open_harness() as harness:
            model = self.write_model(self.good_model)
            here, far = harness.run(model), harness.run(remote_source(model))
        assert far.left == ()
        if far.error is None:
            assert sorted(far.files) == sorted(here.files)
        else:
            assert isinstance(far.error, AgentRefusedError)


def _names(chain: LoadedChain) -> list[str]:
    root = chain.files.local_path()
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


class AgentContract(Life, Failures, Isolation, Documents):
    """Inherit it in a test file, name the agent and its parameters, and pytest proves the rest::

        class TestContract(AgentContract):
            agent = SizeLimitAgent
            parameters = {"max_bytes": "100"}
            good_model = {"1/model.onnx": bytes(50)}
            bad_model = {"1/model.onnx": bytes(200)}
            readme = Path(__file__).parents[1] / "README.md"

    An attribute that has to be computed may be a property. The attributes are those of
    :class:`~repoagent.testing.contract.subject.Subject`; the names of the inherited tests state what is proved. A test
    that has nothing to look at is skipped, with the attribute to set.
    """
