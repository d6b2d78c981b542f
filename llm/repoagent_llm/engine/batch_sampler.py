"""BatchSampler: chooses for all requests of a step at once; what it cannot choose, the ``Sampler`` of each does."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine import token_sampling_graph
from repoagent_llm.engine.scheduler import Plan
from repoagent_llm.engine.task import Task
from repoagent_llm.engine.token_sampling_graph import Way, drawing_session
from repoagent_llm.runner.protocol import StepResult

#: A larger top-k is faster found row by row, without sorting.
MOST_DRAWN: Final = 64
# Numbers with which a token is drawn that the first may not have drawn.
_TRIES: Final = 4
Rows = npt.NDArray[np.float32]


class _Lot:
    """Requests that are drawn for in one run, step after step: with top-k, or with top-p alone."""

    def __init__(self, tasks: Sequence[Task], places: Sequence[int], rows: Sequence[int], vocab_size: int) -> None:
        """``places``: the number of each task's work in the plan; ``rows``: that of its row of logits."""
        self._vocab_size = vocab_size
        self._samplers = [task.group.sequences[0].sampler for task in tasks]
        self._places = places
        self._rows = np.array(rows)
        self._together = list(rows) == list(range(rows[0], rows[0] + len(rows)))
        self._logits: Rows | None = None
        shape = len(tasks), 1
        self._drawn = np.zeros(shape, np.int64)
        self._uniform = np.zeros(shape)
        self._top_p = np.array([sampler.top_p for sampler in self._samplers]).reshape(shape)
        self._steady_top_p = all(sampler.steady for sampler in self._samplers)
        self._feeds = {
            token_sampling_graph.TEMPERATURE: np.array([task.rules.temperature for task in tasks], np.float32).reshape(
                shape
            ),
            token_sampling_graph.TOP_P: self._top_p,
            token_sampling_graph.UNIFORM: self._uniform,
        }
        top_k = np.array([sampler.top_k for sampler in self._samplers]).reshape(shape)
        if top_k.any():
            self._feeds |= {token_sampling_graph.LARGEST: top_k.max(axis=0), token_sampling_graph.LAST_KEPT: top_k - 1}
        self._way = Way.TOP_K if top_k.any() else Way.TOP_P
        self._session = drawing_session(vocab_size, self._way)
        self._binding = self._session.io_binding()
        for name, array in self._feeds.items():
            self._bind(name, array)
        self._binding.bind_output(token_sampling_graph.DRAWN, "cpu", 0, np.int64, shape, self._drawn.ctypes.data)

    def draw(self, logits: Rows, tokens: list[int | None]) -> None:
        """Set ``tokens`` at this lot's places; None where the plain way must choose."""
        self._take(logits)
        self._uniform[:, 0] = [sampler.peek()[0] for sampler in self._samplers]
        if not self._steady_top_p:
            self._top_p[:, 0] = [sampler.top_p for sampler in self._samplers]
        self._run()
        left = []
        for number, (sampler, token) in enumerate(zip(self._samplers, self._drawn.ravel().tolist(), strict=True)):
            if token >= 0:
                sampler.accept(token)
                tokens[self._places[number]] = token
            else:
                tokens[self._places[number]] = None
                left.append(number)
        if left and self._way is Way.TOP_P:
            self._draw_again(left, tokens)

    def _draw_again(self, left: list[int], tokens: list[int | None]) -> None:
        """Where top-p may have refused a token, draw from the same rows with several numbers."""
        samplers = [self._samplers[number] for number in left]
        feeds = {name: array.take(left, axis=0) for name, array in self._feeds.items()}
        feeds[token_sampling_graph.LOGITS] = self._taken.take(left, axis=0)
        feeds[token_sampling_graph.UNIFORM] = np.array([sampler.peek(_TRIES)[:_TRIES] for sampler in samplers])
        for number, sampler, (token, used) in zip(left, samplers, self._run_again(feeds), strict=True):
            if token >= 0:
                sampler.accept(token, used)
                tokens[self._places[number]] = token

    def _take(self, logits: Rows) -> None:
        """Bind the rows where they lie, or a copy of them."""
        if self._together and logits is self._logits:
            return
        self._logits = logits
        start = int(self._rows[0])
        self._taken = logits[start : start + len(self._rows)] if self._together else logits.take(self._rows, axis=0)
        self._bind(token_sampling_graph.LOGITS, self._taken)

    def _bind(self, name: str, array: npt.NDArray[Any]) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def _run_again(self, feeds: dict[str, npt.NDArray[Any]]) -> list[tuple[int, int]]:
        (drawn,) = drawing_session(self._vocab_size, Way.TOP_P_AGAIN).run(None, feeds)
        pairs: list[tuple[int, int]] = drawn.tolist()
        return pairs


class BatchSampler:
    """Chooses for all works of a plan; what it prepares for a round is kept as long as the round."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._plan: Plan | None = None
        self._lots: list[_Lot] = []
        self._plainly: list[int] = []

    def forget(self) -> None:
        """Let go of the round."""
        self._plan, self._lots = None, []

    def choose(self, plan: Plan, result: StepResult) -> list[int | None]:
        """The next token for each work; None where it has none yet, or must be chosen in the plain way."""
        if plan is not self._plan:
            self._prepare(plan, result)
        tokens: list[int | None]
        if result.argmax is None:
            tokens = [None] * len(plan.works)
        elif plan.round is not None:
            tokens = result.argmax.tolist()
        else:
            largest = result.argmax.tolist()
            tokens = [largest[rows.start] if rows.stop > rows.start else None for rows in result.rows]
        for place in self._plainly:
            tokens[place] = None
        for lot in self._lots:
            lot.draw(result.logits, tokens)
        return tokens

    def _prepare(self, plan: Plan, result: StepResult) -> None:
        self._plan = plan if plan.round is not None else None
        self._plainly = []
        drawn: dict[bool, list[int]] = {}
        for place, work in enumerate(plan.works):
            task = work.task
            if task.drawn and work.complete and not task.drafts:
                drawn.setdefault(task.group.sequences[0].sampler.top_k > 0, []).append(place)
            elif not task.plain or not work.complete or task.drafts:
                self._plainly.append(place)
        self._lots = [
            _Lot(
                [plan.works[place].task for place in places],
                places,
                [result.rows[place].start for place in places],
                self._vocab_size,
            )
            for places in drawn.values()
        ]
