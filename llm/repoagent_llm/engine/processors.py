"""Logits post-processors: the caller's functions, between the model and the choice of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.task import Task
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.types.decoding_config import LogitsPostProcessorConfig
from repoagent_llm.types.executor_errors import text_of
from repoagent_llm.types.request import Request

Rows = npt.NDArray[np.float32]


@dataclass(slots=True)
class Ready:
    """A task whose sequences get their next tokens; ``rows[i]``: the logits for ``sequences[i]``."""

    task: Task
    sequences: list[TokenSequence]
    rows: list[Rows]


class PostProcessors:
    """Runs them. A processor gets (request id, logits [1, beams, vocabulary], token ids of each beam, None for the
    CUDA stream, client id) and changes the logits in place; the batched one gets lists of these."""

    def __init__(self, config: LogitsPostProcessorConfig | None) -> None:
        self._named: dict[str, Callable[..., Any]] = dict((config and config.processor_map) or {})
        self._batched = config.processor_batched if config else None

    def run(self, ready: Sequence[Ready]) -> list[tuple[Task, BaseException]]:
        """Change the logits of all that asked for it. Returns the tasks whose processor raised, and what."""
        failures: list[tuple[Task, BaseException]] = []
        batch = []
        for item in ready:
            request = item.task.request
            if request.logits_post_processor_name == Request.BATCHED_POST_PROCESSOR_NAME:
                batch.append(item)
            elif request.logits_post_processor is not None or request.logits_post_processor_name is not None:
                failures += self._run_one(item)
        return failures + self._run_batch(batch) if batch else failures

    def _run_one(self, item: Ready) -> list[tuple[Task, BaseException]]:
        request = item.task.request
        processor = request.logits_post_processor or self._named[request.logits_post_processor_name or ""]
        logits, ids = _arguments(item)
        try:
            processor(item.task.id, logits, ids, None, request.client_id)
        except BaseException as error:  # the caller's code: whatever it raises fails its request only
            return [(item.task, error)]
        return []

    def _run_batch(self, batch: list[Ready]) -> list[tuple[Task, BaseException]]:
        assert self._batched is not None
        arguments = [_arguments(item) for item in batch]
        try:
            self._batched(
                [item.task.id for item in batch],
                [logits for logits, _ in arguments],
                [ids for _, ids in arguments],
                None,
                [item.task.request.client_id for item in batch],
            )
        except BaseException as error:  # the caller's code: whatever it raises fails the requests it was given
            return [(item.task, error) for item in batch]
        return []


def reason_of(error: BaseException) -> str:
    """What a processor raised. One that was written for tensors of a framework learns what it has been given."""
    text = text_of(error)
    if isinstance(error, AttributeError | TypeError):
        text += " (logits are NumPy arrays here; torch.from_numpy gives a tensor of torch's in the same memory)"
    return text


def _arguments(item: Ready) -> tuple[Rows, list[list[int]]]:
    """The logits of all sequences in one array; the sequences' rows become views of it."""
    logits = np.stack([rows[-1] for rows in item.rows])[None]
    item.rows = [logits[0, place : place + 1] for place in range(len(item.rows))]
    return logits, [list(sequence.tokens) for sequence in item.sequences]
