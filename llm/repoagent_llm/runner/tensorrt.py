"""TensorRtRunner: a decoder as a TensorRT plan, its cache on the device and updated in place.

The plan is built from the graph that OrtStdRunner runs. A step is one run over the rows with one token each, and runs
for the longer pieces of prompts, one by one.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.beneath.opening import open_beneath
from repoagent.engines.cuda import find_platform
from repoagent.engines.cuda.memory import Pair
from repoagent.engines.plan_description import MOST_BYTES, STATEMENT_SUFFIX, check_digest
from repoagent.engines.protocol import ElementType, EngineOptions, Profiles, Shape, TensorSpec
from repoagent.errors import RepoAgentError
from repoagent_llm.runner.decoder_spec import CONFIG_NAME, DecoderSpec, check_form
from repoagent_llm.runner.device_slab import DeviceSlab
from repoagent_llm.runner.memory import sequence_length
from repoagent_llm.runner.prefill_grouping import rows_wanted
from repoagent_llm.runner.protocol import Logits, RunnerInfo, Segment, StepResult
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.runner.slab import SlabRunner
from repoagent_llm.types.executor_errors import CheckError, DecoderError, EngineError

if TYPE_CHECKING:
    from repoagent.engines.cuda.engine import TensorRtEngine
    from repoagent.engines.cuda.platform import CudaPlatform

PLAN_SUFFIX: Final = ".plan"
"""How the file of a plan ends in ``genai_config.json``."""
_INPUTS: Final = ("input_ids", "position_ids", "write_indices", "logits_index")
_DTYPES: Final = {ElementType.FLOAT: np.float32, ElementType.HALF: np.float16}


@dataclass(frozen=True, slots=True)
class _Size:
    """What a run is bound to: rows of the cache, columns, rows of logits."""

    place: int
    """Where the first of its rows is found; see DeviceSlab.address."""
    batch: int
    width: int
    asked: int


class TensorRtRunner(SlabRunner):
    """A ModelRunner over an engine of the engine protocol."""

    _slab: DeviceSlab

    def __init__(
        self, model: Path | DecoderSpec, options: RunnerOptions | None = None, *, platform: "CudaPlatform | None" = None
    ) -> None:
        """Open a folder's plan on the first device of ``platform``, or of this machine.

        Raises:
            DecoderError: it is not the plan of this decoder.
            CheckError: the options ask for what the plan cannot do.
            RepoAgentError: plans cannot run here, or this one cannot.
        """
        self._spec = spec = check_form(model, standard=True)
        options = options or RunnerOptions()
        _check_options(spec, options)
        platform = platform or find_platform()
        self._opened = ExitStack()
        with ExitStack() as opened:
            self._device = platform.device(platform.gpus[0])
            self._engine = _open(spec, platform)
            opened.callback(self._engine.close)
            self._context = self._engine.new_context()
            opened.callback(self._context.close)
            self._stream = self._device.new_stream()
            opened.callback(self._stream.close)
            self._tensors = _checked_tensors(spec, self._engine)
            self._profiles = Profiles(self._engine.profiles)
            self._profile = -1
            self._limits = _Limits.of(self._engine)
            self._info = self._describe(options)
            opened.callback(self._close_buffers)
            self._pairs = {name: Pair(self._device) for name in (*_INPUTS, spec.logits)}
            self._slab = self._new_slab()
            opened.callback(self._slab.close)
            opened.callback(self._settle)
            self._bound: _Size | None = None
            self._opened = opened.pop_all()

    def _describe(self, options: RunnerOptions) -> RunnerInfo:
        spec = self._spec
        past = self._tensors[spec.past(0)[0]]
        dtype = np.dtype(_DTYPES[past.element])
        if options.max_sequences > self._limits.sequences:
            raise CheckError(
                f"{spec.place}: {options.max_sequences} sequences are asked for, and the plan's profiles allow "
                f"{self._limits.sequences}: lower max_batch_size or max_beam_width, or build the plan for more"
            )
        return RunnerInfo(
            vocab_size=spec.vocab_size,
            max_seq_len=sequence_length(spec, options, past.shape[2]),
            max_sequences=options.max_sequences,
            kv_bytes_per_token=2 * spec.layers * spec.kv_heads * spec.head_size * dtype.itemsize,
            dtype=dtype.name,
            device=f"gpu:{self._device.index}",
            end_ids=spec.end_ids,
        )

    def _new_slab(self) -> DeviceSlab:
        spec, info = self._spec, self._info
        return DeviceSlab(
            self._device,
            self._stream,
            layers=spec.layers,
            rows=info.max_sequences,
            kv_heads=spec.kv_heads,
            tokens=info.max_seq_len + 1,
            head_size=spec.head_size,
            dtype=info.dtype,
        )

    def close(self) -> None:
        """See ModelRunner."""
        self._opened.close()

    def _settle(self) -> None:
        """What was enqueued may still use the memory that goes now."""
        with suppress(RepoAgentError):
            self._stream.synchronize()

    def _close_buffers(self) -> None:
        for pair in self._pairs.values():
            pair.close()

    # -- steps -----------------------------------------------------------------------------------------------------

    def step(self, segments: Sequence[Segment]) -> StepResult:
        """See ModelRunner."""
        self._slab.close_gaps()
        self._check(segments)
        logits = np.empty((sum(map(rows_wanted, segments)), self._info.vocab_size), np.float32)
        rows, begin = [], 0
        for segment in segments:
            wanted = rows_wanted(segment)
            rows.append(slice(begin, begin + wanted))
            begin += wanted
        single = [place for place, segment in enumerate(segments) if len(segment.tokens) == 1]
        if single:
            self._decode([segments[place] for place in single], [rows[place] for place in single], logits)
        for segment, part in zip(segments, rows, strict=True):
            if len(segment.tokens) > 1:
                self._read(segment, logits[part])
        return StepResult(logits, rows, None, [{} for _ in segments])

    def _check(self, segments: Sequence[Segment]) -> None:
        self._slab.check_room(segments, self._info.max_seq_len)
        for segment in segments:
            if segment.extras or segment.embeddings is not None:
                what = "additional outputs" if segment.extras else "embeddings"
                raise EngineError(f"a TensorRT plan takes no {what}")

    def _decode(self, segments: Sequence[Segment], parts: Sequence[slice], logits: npt.NDArray[np.float32]) -> None:
        """One run over rows 0 to the last one wanted; rows between that sit out write behind their end."""
        where = [self._slab.row(segment.seq) for segment in segments]
        batch = max(where) + 1
        tokens = np.zeros((batch, 1), np.int64)
        tokens[where, 0] = [segment.tokens[0] for segment in segments]
        asked = [place for place, part in enumerate(parts) if part.stop > part.start]
        found = self._run(0, tokens, [where[place] for place in asked], 0)
        for line, place in enumerate(asked):
            logits[parts[place]] = found[line]
        self._slab.lengths[where] += 1

    def _read(self, segment: Segment, logits: npt.NDArray[np.float32]) -> None:
        """A longer piece, in runs as long as the profiles allow."""
        row, tokens = self._slab.row(segment.seq), segment.tokens.astype(np.int64)[None]
        most = self._limits.tokens if segment.logits is not Logits.ALL else self._limits.tokens_with_logits
        total = tokens.shape[1]
        with self._slab.reachable(row) as place:
            for start in range(0, total, most):
                chunk = tokens[:, start : start + most]
                width, last = chunk.shape[1], start + chunk.shape[1] == total
                if segment.logits is Logits.ALL:
                    logits[start : start + width] = self._run(row, chunk, range(width), place)
                elif segment.logits is Logits.LAST and last:
                    logits[:] = self._run(row, chunk, [width - 1], place)
                else:
                    self._run(row, chunk, [], place)
                self._slab.lengths[row] += width

    def _run(self, row: int, tokens: npt.NDArray[np.int64], asked: Sequence[int], place: int) -> npt.NDArray[Any]:
        """Run ``tokens`` [rows, columns] behind what rows from ``row`` on hold, which lie at ``place``.

        Returns:
            The logits of the tokens ``asked``.
        """
        batch, width = tokens.shape
        # A plan runs for one row of logits at least.
        size = _Size(place, batch, width, max(1, len(asked)))
        self._bind(size)
        lengths = self._slab.lengths[row : row + batch]
        index = np.zeros(size.asked, np.int64)
        index[: len(asked)] = asked
        self._put("input_ids", tokens)
        self._put("position_ids", lengths[:, None] + np.arange(width))
        self._put("write_indices", lengths)
        self._put("logits_index", index)
        self._slab.note(row, row + batch, width)
        self._context.enqueue(self._stream)
        made = self._tensors[self._spec.logits]
        pair, shape = self._pairs[self._spec.logits], (size.asked, self._info.vocab_size)
        count = made.element.byte_size(shape[0] * shape[1])
        self._device.copy_out(pair.host.address, pair.address, count, self._stream)
        self._stream.synchronize()
        found: npt.NDArray[Any] = pair.host.data[:count].view(_DTYPES[made.element]).reshape(shape)
        return found[: len(asked)]

    def _put(self, name: str, values: npt.NDArray[Any]) -> None:
        spec = self._tensors.get(name)
        if spec is None:  # gpt2 with its own positions, say
            return
        kind = spec.element.numpy
        assert kind is not None
        pair, size = self._pairs[name], values.size * kind.itemsize
        pair.host.data[:size].view(kind)[:] = values.reshape(-1)
        self._device.copy_in(pair.address, pair.host.address, size, self._stream)

    def _bind(self, size: _Size) -> None:
        """Give the context the shapes and addresses of a run, if the last one had others."""
        if size == self._bound:
            return
        self._bound = None
        spec, context = self._spec, self._context
        shapes = self._shapes(size)
        profile = self._profiles.choose(shapes, {})
        if profile != self._profile:
            context.use_profile(profile, self._stream)
            self._profile = profile
        for name, shape in shapes.items():
            context.set_shape(name, shape)
        sizes = {**shapes, spec.logits: (size.asked, spec.vocab_size)}
        for name, pair in self._pairs.items():
            if name in self._tensors:
                pair.fit(self._tensors[name].element.byte_size(int(np.prod(sizes[name]))))
                context.bind(name, pair.address)
        for layer in range(spec.layers):
            for part, (past, present) in enumerate(zip(spec.past(layer), spec.present(layer), strict=True)):
                address = self._slab.address(layer, part, size.place)
                context.bind(past, address)
                context.bind(present, address)
        self._bound = size

    def _shapes(self, size: _Size) -> dict[str, Shape]:
        spec = self._spec
        cache = (size.batch, spec.kv_heads, self._info.max_seq_len + 1, spec.head_size)
        shapes: dict[str, Shape] = {
            "input_ids": (size.batch, size.width),
            "position_ids": (size.batch, size.width),
            "write_indices": (size.batch,),
            "logits_index": (size.asked,),
            **{name: cache for layer in range(spec.layers) for name in spec.past(layer)},
        }
        return {name: shape for name, shape in shapes.items() if name in self._tensors}


@dataclass(frozen=True, slots=True)
class _Limits:
    """What the profiles of a plan allow, together."""

    sequences: int
    tokens: int
    """In one run of one sequence."""
    tokens_with_logits: int

    @classmethod
    def of(cls, engine: "TensorRtEngine") -> "_Limits":
        unlimited = np.iinfo(np.int32).max
        sequences = tokens = with_logits = 0
        for profile in engine.profiles:
            ids, index = profile.shapes.get("input_ids"), profile.shapes.get("logits_index")
            rows = index.most[0] if index is not None else unlimited
            if ids is None:
                return cls(unlimited, unlimited, unlimited)
            if ids.least[1] <= 1:
                sequences = max(sequences, ids.most[0])
            tokens = max(tokens, ids.most[1])
            with_logits = max(with_logits, min(ids.most[1], rows))
        return cls(sequences, tokens, with_logits)


def _check_options(spec: DecoderSpec, options: RunnerOptions) -> None:
    refused = {
        "LoRA adapters (RunnerOptions.lora)": options.lora,
        "additional outputs (RunnerOptions.extra_outputs)": bool(options.extra_outputs),
        "mixed runs (RunnerOptions.mixed)": options.mixed,
    }
    if named := [what for what, wanted in refused.items() if wanted]:
        raise CheckError(f"{spec.place}: a TensorRT plan has no {', '.join(named)}; use the decoder's ONNX folder")


def _open(spec: DecoderSpec, platform: "CudaPlatform") -> "TensorRtEngine":
    device = platform.gpus[0]
    try:
        plan = spec.graph if spec.graph is not None else _read(spec)
        platform.check_plan(plan, device)
        return platform.open(plan, EngineOptions(device))
    except RepoAgentError as error:
        raise DecoderError(f"{spec.place}: {error}") from error


def _read(spec: DecoderSpec) -> bytes:
    try:
        with open_beneath(spec.folder, spec.filename) as file:
            plan = file.read()
    except OSError as error:
        raise DecoderError(f"{spec.place}: cannot be read: {error.strerror}") from error
    with suppress(FileNotFoundError), open_beneath(spec.folder, f"{spec.filename}{STATEMENT_SUFFIX}") as file:
        check_digest(plan, Path(spec.filename).name, file.read(MOST_BYTES + 1))
    return plan


def _checked_tensors(spec: DecoderSpec, engine: "TensorRtEngine") -> dict[str, TensorSpec]:
    """The plan's tensors by name, which must be those of the decoder that the folder describes."""
    tensors = {one.name: one for one in engine.tensors}
    wanted = {"input_ids", "write_indices", "logits_index", spec.logits}
    caches = {name: other for layer in range(spec.layers) for name, other in _cache_names(spec, layer)}
    missing = sorted((wanted | caches.keys() | set(caches.values())) - tensors.keys())
    if missing or spec.past(spec.layers)[0] in tensors:
        raise DecoderError(
            f"{spec.place}: the plan is not that of the decoder in {CONFIG_NAME}"
            + (f": it has no tensor {missing[0]!r}" if missing else f": it has more than {spec.layers} layers")
        )
    for past, present in caches.items():
        found = tensors[past]
        if found.element not in _DTYPES or found.shape[1] != spec.kv_heads or found.shape[3] != spec.head_size:
            raise DecoderError(
                f"{spec.place}: {past} is {found.element.name} {list(found.shape)}, and {CONFIG_NAME} has "
                f"{spec.kv_heads} KV heads of {spec.head_size} values"
            )
        if tensors[present].alias_of != past:
            raise DecoderError(f"{spec.place}: the plan does not update {past} in place; build it with TensorScatter")
    if tensors[spec.logits].element not in _DTYPES:
        raise DecoderError(f"{spec.place}: the logits are {tensors[spec.logits].element.name}, expected FLOAT or HALF")
    return tensors


def _cache_names(spec: DecoderSpec, layer: int) -> list[tuple[str, str]]:
    return list(zip(spec.past(layer), spec.present(layer), strict=True))
