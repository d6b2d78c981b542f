"""The contract: the life of a model with the agent, and how its loads fail."""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import pytest

from repoagent.api import Action, Agent, AgentModel
from repoagent.errors import AgentRefusedError
from repoagent.loader.chain import LoadedChain
from repoagent.testing.contract.subject import Subject
from repoagent.testing.harness import AgentHarness, Outcome
from repoagent.testing.remote import remote_source


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


_LOADED: Final = ["initialize", "model_initialize", "LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"]
_REFUSED: Final = ["initialize", "model_initialize", "LOAD", "LOAD_FAIL"]
_END: Final = ["model_finalize", "finalize"]
_SECONDS: Final = 60.0


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
