"""ResultMaker: the fast way to the responses of a stream gives what the general way gives."""

import pytest
from repoagent_llm import FinishReason, Request
from repoagent_llm.engine.logits import LogitsRules
from repoagent_llm.engine.results import ResultMaker
from repoagent_llm.engine.sampler import Sampler
from repoagent_llm.engine.sampling_group import SamplingGroup
from repoagent_llm.engine.task import Task, TaskTimes
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.types.request import SamplingConfig
from repoagent_llm.types.result import Response


def _task() -> Task:
    request = Request([4, 5], 8, streaming=True, client_id=7)
    sampler = Sampler(SamplingConfig())
    group = SamplingGroup(TokenSequence(0, [4, 5], 2, sampler), [sampler])
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
