"""OrtRunner: a decoder on ONNX Runtime's CPU provider, its cache updated in place.

A step is one decode run over the packed rows, and runs for the longer pieces of prompts: fresh ones of like length
together, others alone. Arrays and bindings of
decode runs are kept for each size, so that a step only fills in a few integers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from repoagent_llm.runner import surgery
from repoagent_llm.runner.binding import FormFeeds, LogitRows, Run, bind_input, bind_output
from repoagent_llm.runner.decoder_spec import DecoderSpec
from repoagent_llm.runner.memory import bytes_per_token, new_slab, sequence_length
from repoagent_llm.runner.prefill_grouping import group_prompts, is_single, places_wanted, rows_asked, rows_wanted
from repoagent_llm.runner.protocol import (
    AdapterWeights,
    DecodeRound,
    LoraShape,
    RunnerInfo,
    Segment,
    Seq,
    StepResult,
)
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.runner.session import make_session
from repoagent_llm.runner.slab import AdapterRows, Slab, SlabRunner, lora_sites

_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
# Bindings of decode runs that are kept. One takes some 50 KiB at 24 layers, and one ms to make.
_KEPT_RUNS = 256


@dataclass(slots=True)
class _Layout:
    """Where the sequences of a round lie; kept while the same ones go on.

    ``grow``: 1 for each of the first ``len(lengths)`` rows that takes a token. ``longest``: the largest length; None
    where a row sits out, so that it must be looked for.
    """

    round: DecodeRound
    version: int
    rows: npt.NDArray[np.intp]
    lengths: npt.NDArray[np.int64]
    grow: npt.NDArray[np.int64]
    longest: int | None
    run: Run
    result: StepResult


class OrtRunner(SlabRunner):
    """A ModelRunner over a session and a slab; what differs between the two graph forms is in ``feeds``."""

    _slab: Slab
    _mixed = False  # whether its graph is changed by mix_runs

    def __init__(self, spec: DecoderSpec, options: RunnerOptions, feeds: FormFeeds) -> None:
        self._run_options = options.run_options or ort.RunOptions()
        self._session = make_session(spec, options, mixed=self._mixed)
        self._spec = spec
        self._feeds = feeds
        inputs = {item.name: item for item in self._session.get_inputs()}
        self._takes_positions = "position_ids" in inputs
        dtype = np.dtype(_DTYPES[inputs[spec.past(0)[0]].type])
        length = sequence_length(spec, options, inputs[spec.past(0)[0]].shape[2])
        self._slab = new_slab(spec, options.max_sequences, length, dtype, wipe=feeds.reads_masked)
        sites = lora_sites(inputs)
        self._adapters = AdapterRows(sites, options.max_sequences, dtype)
        self._info = RunnerInfo(
            vocab_size=spec.vocab_size,
            max_seq_len=length,
            max_sequences=options.max_sequences,
            kv_bytes_per_token=bytes_per_token(spec, dtype),
            dtype=dtype.name,
            end_ids=spec.end_ids,
            extra_outputs=options.extra_outputs,
            lora=LoraShape(spec.layers, spec.kv_heads * spec.head_size, sites) if sites else None,
            hidden_size=spec.hidden_size if surgery.PROMPT_ROWS in inputs else None,
        )
        self._no_embeddings = np.zeros((0, 2), np.int64), np.zeros((0, spec.hidden_size), dtype)
        self._rows_out = LogitRows(options.max_sequences, spec.vocab_size)
        self._decode_runs: dict[tuple[int, int, bool], Run] = {}
        self._layout: _Layout | None = None

    def end(self) -> None:
        """See EndableRunner: ONNX Runtime looks before every node."""
        self._run_options.terminate = True

    def renew(self) -> None:
        """See EndableRunner."""
        self._run_options.terminate = False

    def close(self) -> None:
        """See ModelRunner."""
        self._decode_runs.clear()
        self._session = None

    def free(self, seq: Seq) -> None:
        """See ModelRunner."""
        if self._info.lora is not None:
            self._adapters.put(self._slab.row(seq), None)
        super().free(seq)

    def adapt(self, seq: Seq, weights: AdapterWeights) -> None:
        """See AdaptableRunner."""
        self._bind_anew(self._adapters.put(self._slab.row(seq), weights))
        self._layout = None

    def _bind_anew(self, replaced: bool) -> None:
        if replaced:
            self._forget_bindings()

    def fork(self, seq: Seq) -> Seq | None:
        """See ModelRunner."""
        copy = super().fork(seq)
        if copy is not None and self._info.lora is not None:
            self._bind_anew(self._adapters.put(self._slab.row(copy), self._adapters.held(self._slab.row(seq))))
        return copy

    def step(self, segments: Sequence[Segment]) -> StepResult:
        """See ModelRunner."""
        if self._slab.gaps:
            self._close_gaps()
        if isinstance(segments, DecodeRound):
            return self._step_round(segments)
        return self._step_any(segments)

    def _close_gaps(self) -> None:
        for source, target in self._slab.close_gaps():
            if self._info.lora is not None:
                self._bind_anew(self._adapters.move(source, target))

    def _step_round(self, segments: DecodeRound) -> StepResult:
        """What most steps are. The same as ``_step_any``, but faster."""
        layout = self._layout
        if layout is None or layout.round is not segments or layout.version != self._slab.version:
            layout = self._layout = self._lay_out(segments)
        longest = int(layout.lengths.max()) if layout.longest is None else layout.longest
        if longest >= self._info.max_seq_len:
            self._slab.check_room(segments, self._info.max_seq_len)
        run = layout.run
        run.tokens.put(layout.rows, segments.tokens)  # indexing with an array would let go of the interpreter
        run.index[:] = layout.rows
        self._feeds.fill(run.feeds, layout.lengths, longest, 1)
        self._slab.note(0, len(layout.lengths), 1)
        self._session.run_with_iobinding(run.binding, self._run_options)
        np.add(layout.lengths, layout.grow, out=layout.lengths)
        if layout.longest is not None:
            layout.longest += 1
        return layout.result

    def _lay_out(self, segments: DecodeRound) -> _Layout:
        rows = [self._slab.row(segment.seq) for segment in segments]
        batch, count = max(rows) + 1, len(rows)
        grow = np.zeros(batch, np.int64)
        grow[rows] = 1
        lengths = self._slab.lengths[:batch]
        logits, argmax = self._rows_out.logits[:count], self._rows_out.argmax[:count]
        return _Layout(
            segments,
            self._slab.version,
            np.array(rows, np.intp),
            lengths,
            grow,
            int(lengths.max()) if count == batch else None,
            self._decode_run(batch, count),
            StepResult(logits, [slice(place, place + 1) for place in range(count)], argmax, [{}] * count),
        )

    def _step_any(self, segments: Sequence[Segment]) -> StepResult:
        """Any mixture of pieces."""
        self._slab.check_room(segments, self._info.max_seq_len)
        self._layout = None
        if self._rows_out.ensure(sum(map(rows_wanted, segments))):
            self._forget_bindings()
        rows = [slice(0, 0)] * len(segments)
        extras: list[dict[str, npt.NDArray[Any]]] = [{} for _ in segments]
        single = [i for i, segment in enumerate(segments) if is_single(segment)]
        longer = [i for i, segment in enumerate(segments) if not is_single(segment)]
        grouped = group_prompts([self._piece(segments[i]) for i in longer])
        groups = [[longer[place] for place in group] for group in grouped]
        done = self._begin(segments, single, groups, rows, extras)
        for group in groups:
            done += self._read(segments, group, done, rows, extras)
        return StepResult(self._rows_out.logits[:done], rows, self._rows_out.argmax[:done], extras)

    def _begin(
        self,
        segments: Sequence[Segment],
        single: list[int],
        groups: list[list[int]],
        rows: list[slice],
        extras: list[dict[str, npt.NDArray[Any]]],
    ) -> int:
        """The run for segments of one token; how many rows of logits there are. May take groups that go along."""
        return self._decode(segments, single, rows, extras) if single else 0

    def _piece(self, segment: Segment) -> tuple[int, int, bool]:
        row = self._slab.row(segment.seq)
        return row, len(segment.tokens), self._slab.lengths[row] == 0

    def _decode(
        self,
        segments: Sequence[Segment],
        single: list[int],
        rows: list[slice],
        extras: list[dict[str, npt.NDArray[Any]]],
    ) -> int:
        """One run over rows 0 to the last one wanted; rows between that sit out write behind their end."""
        where = {self._slab.row(segments[i].seq): i for i in single}
        asked = rows_asked(segments, where)
        run = self._decode_run(max(where) + 1, len(asked))
        lengths = self._slab.lengths[: len(run.tokens)]
        self._fill_rows(run, segments, where, lengths)
        run.index[:] = asked
        names = tuple({name for i in single for name in segments[i].extras})
        found = self._execute(run, names)
        for place, row in enumerate(asked):
            rows[where[row]] = slice(place, place + 1)
        for row, i in where.items():
            lengths[row] += 1
            extras[i] = {name: found[name][row].copy() for name in segments[i].extras}
        return len(asked)

    def _fill_rows(
        self, run: Run, segments: Sequence[Segment], where: Mapping[int, int], lengths: npt.NDArray[np.int64]
    ) -> None:
        """The tokens of rows 0 to the last one wanted; ``where``: the segment of a row."""
        for row in range(len(lengths)):
            run.tokens[row, 0] = segments[where[row]].tokens[0] if row in where else 0
        self._feeds.fill(run.feeds, lengths, int(lengths.max()), 1)
        self._slab.note(0, len(lengths), 1)

    def _decode_run(self, batch: int, asked: int) -> Run:
        key = (batch, asked, self._adapters.any(0, batch))
        run = self._decode_runs.pop(key, None) or self._bind(0, batch, 1, 0, asked)
        self._decode_runs[key] = run  # behind all others: the first is the one unused longest
        if len(self._decode_runs) > _KEPT_RUNS:
            del self._decode_runs[next(iter(self._decode_runs))]
        return run

    def _read(
        self,
        segments: Sequence[Segment],
        group: list[int],
        first: int,
        rows: list[slice],
        extras: list[dict[str, npt.NDArray[Any]]],
    ) -> int:
        """One run for longer pieces of neighbouring rows, padded to the longest; how many rows of logits there are."""
        pieces = [segments[i] for i in group]
        row, width, wanted = self._extent(pieces)
        run = self._bind(row, len(group), width, first, wanted)
        self._fill_pieces(run, row, pieces)
        for i, places in zip(group, places_wanted(pieces, width, run.index), strict=True):
            rows[i] = slice(first + places.start, first + places.stop)
        self._embed(run, pieces)
        found = self._execute(run, tuple({name for piece in pieces for name in piece.extras}))
        for line, (i, piece) in enumerate(zip(group, pieces, strict=True)):
            self._slab.lengths[row + line] += len(piece.tokens)
            extras[i] = {name: found[name][line, : len(piece.tokens)] for name in piece.extras}
        return wanted

    def _extent(self, pieces: Sequence[Segment]) -> tuple[int, int, int]:
        """(first row, columns, rows of logits) of a run for pieces."""
        width = max(len(piece.tokens) for piece in pieces)
        return self._slab.row(pieces[0].seq), width, sum(map(rows_wanted, pieces))

    def _fill_pieces(self, run: Run, row: int, pieces: Sequence[Segment]) -> None:
        counts = np.array([len(piece.tokens) for piece in pieces])
        lengths = self._slab.lengths[row : row + len(pieces)]
        width = int(counts.max())
        self._feeds.fill(run.feeds, lengths, int(lengths.max()), width, counts)
        self._slab.note(row, row + len(pieces), width)
        for line, piece in enumerate(pieces):
            run.tokens[line, : counts[line]] = piece.tokens

    def _embed(self, run: Run, pieces: Sequence[Segment]) -> None:
        """Bind the rows that stand in for embeddings, where there are any."""
        given = [(line, piece.embeddings) for line, piece in enumerate(pieces) if piece.embeddings is not None]
        if not given:
            return
        places = np.concatenate([self._token_places(line, e.places, run.tokens.shape[1]) for line, e in given])
        rows = np.concatenate([e.rows for _, e in given]).astype(self._no_embeddings[1].dtype)
        run.kept += [places, rows]
        bind_input(run.binding, surgery.PROMPT_PLACES, places)
        bind_input(run.binding, surgery.PROMPT_ROWS, rows)

    def _token_places(self, line: int, columns: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
        """Where tokens of a line of a run lie: [n, 2]."""
        return np.stack([np.full_like(columns, line), columns], axis=1)

    def _execute(self, run: Run, extras: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run; with extra outputs, bind them for this run only."""
        for name in extras:
            run.binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(run.binding, self._run_options)
        if not extras:
            return {}
        self._decode_runs = {key: kept for key, kept in self._decode_runs.items() if kept is not run}
        # Outputs come in the order in which they were bound, and these were bound last.
        return dict(zip(extras, (value.numpy() for value in run.binding.get_outputs()[-len(extras) :]), strict=True))

    def _bind(self, row: int, batch: int, width: int, first: int, asked: int) -> Run:
        """Bind the cache of ``batch`` rows from ``row`` on, and ``asked`` rows of logits from ``first`` on."""
        run = Run(
            self._session.io_binding(),
            np.zeros((batch, width), np.int64),
            np.zeros(asked, np.int64),
            self._feeds.arrays(batch, width),
        )
        bind_input(run.binding, "input_ids", run.tokens)
        for name, array in run.feeds.items():
            if name != "position_ids" or self._takes_positions:
                bind_input(run.binding, name, array)
        for name, array in self._adapters.window(row, row + batch).items():
            bind_input(run.binding, name, array)
        self._bind_ends(run, first)
        for layer in range(self._spec.layers):
            names = zip(self._spec.past(layer), self._spec.present(layer), strict=True)
            for part, (past, present) in enumerate(names):
                window = self._slab.data[layer, part, row : row + batch]
                bind_input(run.binding, past, window)
                bind_output(run.binding, present, window)
        return run

    def _bind_ends(self, run: Run, first: int) -> None:
        """Bind rows of logits from ``first`` on, and no rows in the place of embeddings."""
        stop = first + len(run.index)
        bind_input(run.binding, surgery.INDEX, run.index)
        bind_output(run.binding, surgery.ROW_LOGITS, self._rows_out.logits[first:stop])
        bind_output(run.binding, surgery.ARGMAX, self._rows_out.argmax[first:stop])
        if self._info.hidden_size is not None:
            bind_input(run.binding, surgery.PROMPT_PLACES, self._no_embeddings[0])
            bind_input(run.binding, surgery.PROMPT_ROWS, self._no_embeddings[1])

    def _forget_bindings(self) -> None:
        """Drop the kept runs; they point at arrays that are about to be replaced."""
        self._decode_runs.clear()
        self._layout = None
