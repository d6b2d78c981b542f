"""The contract: the life of a model with the agent."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from repoagent.api import Action, AgentModel
from repoagent.errors import AgentRefusedError
from repoagent.loader.chain import LoadedChain
from repoagent.testing.contract.subject import Subject
from repoagent.testing.remote import remote_source

__all__ = ["Life"]

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
