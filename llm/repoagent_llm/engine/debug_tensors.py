"""DebugTensors: what went into the last iterations and what came out, for ``get_latest_debug_tensors``."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.scheduler import Work
from repoagent_llm.runner.protocol import RunnerInfo, Segment, StepResult
from repoagent_llm.types.decoding_config import DebugConfig
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.stats import DebugTensorsPerIteration

_INPUTS: Final = ("input_ids", "sequence_length")
_OUTPUTS: Final = ("logits",)
_REQUESTS: Final = "request_ids"


def graph_tensors(config: DebugConfig | None) -> tuple[str, ...]:
    """The tensors of the graph that must be outputs of the runner."""
    if config is None:
        return ()
    return tuple(name for name in config.debug_tensor_names if name not in (*_INPUTS, *_OUTPUTS, _REQUESTS))


class DebugTensors:
    """Keeps the tensors of ``debug_tensors_max_iterations`` iterations; older ones are dropped."""

    def __init__(self, config: DebugConfig | None, info: RunnerInfo) -> None:
        config = config or DebugConfig()
        self._graph = graph_tensors(config)
        for name in self._graph:
            if name not in info.extra_outputs:
                raise CheckError(
                    f"DebugConfig.debug_tensor_names: {name!r} is not an output of the runner "
                    f"({', '.join(info.extra_outputs) or 'it has no extra ones'})"
                )
        named = set(config.debug_tensor_names)
        self._inputs = [name for name in _INPUTS if config.debug_input_tensors or name in named]
        self._outputs = [name for name in _OUTPUTS if config.debug_output_tensors or name in named]
        self.active = bool(named or self._inputs or self._outputs)
        self._lock = threading.Lock()
        self._kept: deque[DebugTensorsPerIteration] = deque(maxlen=config.debug_tensors_max_iterations)

    def ask(self, segments: Sequence[Segment]) -> list[Segment]:
        """The segments, with the tensors of the graph asked for."""
        return [replace(item, extras=tuple(dict.fromkeys((*item.extras, *self._graph)))) for item in segments]

    def keep(self, iteration: int, works: Sequence[Work], result: StepResult) -> None:
        """Note an iteration, before the positions of its sequences move on."""
        segments = [work.segment for work in works]
        tensors: dict[str, npt.NDArray[Any]] = {_REQUESTS: np.array([work.task.id for work in works], np.int64)}
        if "input_ids" in self._inputs:
            tensors["input_ids"] = np.concatenate([segment.tokens for segment in segments])
        if "sequence_length" in self._inputs:
            lengths = [work.sequence.computed + len(work.segment.tokens) for work in works]
            tensors["sequence_length"] = np.array(lengths, np.int32)
        if self._outputs:
            tensors["logits"] = np.concatenate([result.logits[rows] for rows in result.rows])
        for name in self._graph:
            tensors[name] = np.concatenate([extras[name] for extras in result.extras])
        with self._lock:
            self._kept.append(DebugTensorsPerIteration(iteration, tensors))

    def take(self) -> list[DebugTensorsPerIteration]:
        """What was kept since the last call."""
        with self._lock:
            taken = list(self._kept)
            self._kept.clear()
            return taken
