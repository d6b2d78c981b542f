"""ResultMaker: the fast way to the responses of a stream gives what the general way gives."""

import numpy as np
import pytest
from repoagent_llm import FinishReason, Request
from repoagent_llm.engine.logits import LogitsRules
from repoagent_llm.engine.results import ResultMaker
from repoagent_llm.engine.sampling_group import SamplingGroup
from repoagent_llm.engine.task import Task, TaskTimes
from repoagent_llm.types.request import EngineRequest, OutputConfig, SamplingConfig
from repoagent_llm.types.result import Response


def _task() -> Task:
    request = EngineRequest.of(Request([4, 5], 8, streaming=True, client_id=7))
    group = SamplingGroup([4, 5], SamplingConfig())
    return Task(3, request, 0.5, TaskTimes(0.0), group, LogitsRules.of(request), 8, streams_tokens=True)


def _seen(response: Response) -> tuple[int, int | None, dict[str, object]]:
    return response.request_id, response.client_id, dict(response.result.__dict__)


@pytest.mark.parametrize("tokens", [[], [6], [6, 7, 8]])
@pytest.mark.parametrize("reason", [FinishReason.NOT_FINISHED, FinishReason.LENGTH, FinishReason.CANCELLED])
@pytest.mark.parametrize("sent", [0, 1])
def test_both_ways_agree(tokens: list[int], reason: FinishReason, sent: int) -> None:
    fast, general = _task(), _task()
    general.streams_tokens = False
    maker = ResultMaker(normalize_log_probs=True)
    for task in (fast, general):
        sequence = task.group.sequences[0]
        sequence.tokens += tokens
        sequence.reason, sequence.sent, task.iterations = reason, min(sent, len(tokens)), len(tokens)
    for _ in range(2):  # the second time nothing is owed
        left, right = ([_seen(item) for item in maker.collect(task, 5)] for task in (fast, general))
        assert left == right
        states = ((task.group.sequences[0].sent, task.group.sequences[0].answered) for task in (fast, general))
        assert len(set(states)) == 1


def test_a_backend_gets_the_log_probs_of_new_tokens_alone() -> None:
    """All so far, with each token, are the square of a long text."""
    task = _task()
    task.streams_tokens, task.request.output_config = False, OutputConfig(return_log_probs=True)
    vars(task.request)["new_log_probs"] = True
    task.prompt_alternatives, task.prompt_log_probs = 0, [(-1.0, 1, [])]
    sequence, maker, found = task.group.sequences[0], ResultMaker(normalize_log_probs=True), []
    for number in range(3):
        sequence.tokens.append(6)
        sequence.log_probs.append(-float(number))
        (response,) = maker.collect(task, 5)
        found.append(response.result.log_probs)
        assert vars(response.result)["prompt_log_probs"] is task.prompt_log_probs
    assert found == [[[-0.0]], [[-1.0]], [[-2.0]]]


@pytest.mark.parametrize("all_again", [False, True])
def test_alternatives_that_were_sent_are_forgotten_unless_they_are_sent_again(all_again: bool) -> None:
    task = _task()
    task.streams_tokens, task.request.output_config = False, OutputConfig(return_log_probs=True)
    task.request.return_all_generated_tokens, task.alternatives = all_again, 1
    sequence, maker, found = task.group.sequences[0], ResultMaker(normalize_log_probs=True), []
    for number in range(3):
        sequence.tokens.append(6)
        sequence.alternatives.append([(number, -1.0)])
        (response,) = maker.collect(task, 5)
        found.append([entry[0][0] for entry in vars(response.result)["top_log_probs"][0]])
    assert found == ([[0], [0, 1], [0, 1, 2]] if all_again else [[0], [1], [2]])
    assert len(sequence.alternatives) == (3 if all_again else 0)


def test_the_logits_of_a_prompt_are_joined_once_for_all_results() -> None:
    task = _task()
    task.streams_tokens, task.request.output_config = False, OutputConfig(return_context_logits=True)
    task.context_logits = [np.zeros((1, 8), np.float32), np.ones((1, 8), np.float32)]
    maker, found = ResultMaker(normalize_log_probs=True), []
    for _ in range(2):
        task.group.sequences[0].tokens.append(6)
        (response,) = maker.collect(task, 5)
        found.append(response.result.context_logits)
    assert found[0] is found[1]
    assert found[0].shape == (2, 8)
