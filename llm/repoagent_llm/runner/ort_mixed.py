"""OrtMixedRunner: one run for the rows that go on and a piece of a prompt, so that the weights are read once.

A step of rows alone takes somewhat longer than OrtGqaRunner's; one with a piece takes much less time.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent_llm.runner import surgery
from repoagent_llm.runner.binding import Run, bind_input, bind_output
from repoagent_llm.runner.decoder_spec import DecoderSpec
from repoagent_llm.runner.mixed_surgery import (
    ORDER,
    PIECE_INDEX,
    PIECE_LENGTHS,
    PIECE_TOTAL,
    ROW_INDEX,
    of_pieces,
)
from repoagent_llm.runner.ort_forms import OrtGqaRunner
from repoagent_llm.runner.prefill_grouping import places_wanted, rows_asked
from repoagent_llm.runner.protocol import Segment
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_errors import CheckError

_OF_PIECES = (PIECE_LENGTHS, PIECE_TOTAL, PIECE_INDEX)
_OF_ROWS = (surgery.LENGTHS, surgery.TOTAL, ROW_INDEX)


class OrtMixedRunner(OrtGqaRunner):
    """OrtGqaRunner on a graph changed by ``mix_runs``: all tokens in one line, those of pieces before those of rows."""

    _mixed = True

    def __init__(self, model: Path | DecoderSpec, options: RunnerOptions) -> None:
        """Load a folder, or what a specification names.

        Raises as OrtGqaRunner does, and ``CheckError`` for options that do not go together.
        """
        if options.extra_outputs or options.lora:
            raise CheckError("RunnerOptions.mixed goes with neither LoRA adapters nor additional outputs")
        super().__init__(model, options)
        spec = self._spec
        self._nowhere = np.zeros((1, spec.kv_heads, 1, spec.head_size), self._slab.data.dtype)

    def _bind(self, row: int, batch: int, width: int, first: int, asked: int) -> Run:
        whole = self._bind_tokens(batch * width, first, asked)
        half = self._bind_half(whole, 0, row, batch, width, pieces=width > 1)
        self._bind_nothing(whole, pieces=width == 1)
        places = np.arange(batch * width) + (width == 1)  # behind the token to throw away, or before it
        self._bind_order(whole, places)
        return half

    def _begin(
        self,
        segments: Sequence[Segment],
        single: list[int],
        groups: list[list[int]],
        rows: list[slice],
        extras: list[dict[str, npt.NDArray[Any]]],
    ) -> int:
        if not single or not groups or any(segments[i].embeddings is not None for i in groups[0]):
            return super()._begin(segments, single, groups, rows, extras)
        return self._mix(segments, single, groups.pop(0), rows)

    def _mix(self, segments: Sequence[Segment], single: list[int], group: list[int], rows: list[slice]) -> int:
        """One run for segments of one token and a group of pieces; how many rows of logits there are."""
        pieces = [segments[i] for i in group]
        where = {self._slab.row(segments[i].seq): i for i in single}
        asked, batch = rows_asked(segments, where), max(where) + 1
        start, width, wanted = self._extent(pieces)
        columns = len(pieces) * width
        whole = self._bind_tokens(columns + batch, 0, len(asked) + wanted)
        long = self._bind_half(whole, 0, start, len(pieces), width, pieces=True)
        short = self._bind_half(whole, columns, 0, batch, 1, pieces=False)
        self._bind_order(whole, np.arange(columns + batch))
        self._fill_pieces(long, start, pieces)
        lengths = self._slab.lengths[:batch].copy()
        lengths[start : start + len(pieces)] += width  # what they write while they sit out must not meet the pieces
        self._fill_rows(short, segments, where, lengths)
        whole.index[: len(asked)] = np.add(asked, columns)
        for place, row in enumerate(asked):
            rows[where[row]] = slice(place, place + 1)
        for i, places in zip(group, places_wanted(pieces, width, whole.index[len(asked) :]), strict=True):
            rows[i] = slice(len(asked) + places.start, len(asked) + places.stop)
        self._session.run_with_iobinding(whole.binding, self._run_options)
        for segment in (*pieces, *(segments[i] for i in single)):
            self._slab.lengths[self._slab.row(segment.seq)] += len(segment.tokens)
        return len(asked) + wanted

    def _token_places(self, line: int, columns: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
        return np.stack([np.zeros_like(columns), line * width + columns], axis=1)

    def _bind_tokens(self, count: int, first: int, asked: int) -> Run:
        """What rows and pieces have in common: tokens and positions [1, count], and rows of logits."""
        feeds = {"position_ids": np.zeros((1, count), np.int64)}
        run = Run(self._session.io_binding(), np.zeros((1, count), np.int64), np.zeros(asked, np.int64), feeds)
        bind_input(run.binding, "input_ids", run.tokens)
        if self._takes_positions:
            bind_input(run.binding, "position_ids", feeds["position_ids"])
        self._bind_ends(run, first)
        return run

    def _bind_half(self, whole: Run, offset: int, row: int, batch: int, width: int, *, pieces: bool) -> Run:
        """Rows [row, row + batch) of the cache and a view [batch, width] of the tokens from ``offset`` on."""
        span = slice(offset, offset + batch * width)
        feeds = self._feeds.arrays(batch, width)
        feeds["position_ids"] = whole.feeds["position_ids"][0, span].reshape(batch, width)
        index = np.arange(span.start, span.stop).reshape(batch, width)
        self._bind_where(whole, feeds[surgery.LENGTHS], feeds[surgery.TOTAL], index, pieces=pieces)
        self._bind_cache(whole.binding, slice(row, row + batch), pieces=pieces)
        return Run(whole.binding, whole.tokens[0, span].reshape(batch, width), whole.index, feeds, whole.kept)

    def _bind_nothing(self, whole: Run, *, pieces: bool) -> None:
        """Let the other half have one token, whose keys and values go nowhere."""
        self._bind_where(whole, np.zeros(1, np.int32), np.ones((), np.int32), np.zeros((1, 1), np.int64), pieces=pieces)
        self._bind_cache(whole.binding, None, pieces=pieces)

    def _bind_where(self, whole: Run, *arrays: npt.NDArray[Any], pieces: bool) -> None:
        """Lengths, the longest, and which tokens."""
        for name, array in zip(_OF_PIECES if pieces else _OF_ROWS, arrays, strict=True):
            bind_input(whole.binding, name, array)
            whole.kept.append(array)

    def _bind_cache(self, binding: Any, rows: slice | None, *, pieces: bool) -> None:
        for layer in range(self._spec.layers):
            names = zip(self._spec.past(layer), self._spec.present(layer), strict=True)
            for part, (past, present) in enumerate(names):
                window = self._nowhere if rows is None else self._slab.data[layer, part, rows]
                bind_input(binding, of_pieces(past) if pieces else past, window)
                bind_output(binding, of_pieces(present) if pieces else present, window)

    def _bind_order(self, whole: Run, order: npt.NDArray[np.int64]) -> None:
        order = order[None]
        bind_input(whole.binding, ORDER, order)
        whole.kept.append(order)
