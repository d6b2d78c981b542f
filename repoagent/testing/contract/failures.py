"""The contract: whatever goes wrong, nothing is left behind and nothing passes that should not."""

import errno
from collections.abc import Callable
from functools import partial

import pytest

from repoagent.api import Agent, AgentModel
from repoagent.testing.contract.subject import Subject
from repoagent.testing.harness import AgentHarness, Outcome

__all__ = ["Failures"]


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
                outcome = self._run_with(harness, partial(harness.faults.fail, point, _input_output_error()))
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


def _input_output_error() -> OSError:
    return OSError(errno.EIO, "Input/output error (injected)")
