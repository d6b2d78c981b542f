"""OpenVinoModel: a decoder folder for paged attention, compiled for the CPU, with its pool of blocks."""

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.errors import RepoAgentError
from repoagent_llm.runner.block_pool import BLOCK_TOKENS, blocks_for
from repoagent_llm.runner.decoder_spec import DecoderSpec
from repoagent_llm.runner.memory import machine_bytes, sequence_length
from repoagent_llm.runner.openvino.graph import PagedGraph
from repoagent_llm.runner.openvino.operator import TRIED, check_openvino, core, openvino
from repoagent_llm.runner.paged import PackedResult, PackedStep, PagedRunner
from repoagent_llm.runner.paged_folder import FolderWeights, PagedLayout, read_layout
from repoagent_llm.runner.protocol import AdapterWeights, LoraShape, RunnerInfo
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_errors import CheckError, DecoderError, EngineError, UnsupportedFeatureError

_BYTES: Final = {"f32": np.float32, "bf16": np.uint16, "f16": np.float16, "u8": np.uint8}
_FIXED_RESULTS: Final = 2
_HEAD_STEP: Final = 8
_LARGEST_HEAD: Final = 256
_Rows = dict[str, npt.NDArray[np.float32]]


def open_paged(spec: DecoderSpec, options: RunnerOptions) -> PagedRunner:
    """A runner over a folder for paged attention.

    Raises:
        UnsupportedFeatureError: this machine's OpenVINO is missing, or is not the one that was tried.
        DecoderError: the folder is not whole.
        CheckError: the options contradict the folder, or the cache does not fit.
    """
    if spec.graph is not None:
        raise CheckError("a decoder for paged attention is a folder; an engine buffer cannot hold one")
    if options.mixed:
        raise CheckError("RunnerOptions.mixed is for ONNX Runtime; with paged attention one run always computes all")
    if spec.head_size % _HEAD_STEP or spec.head_size > _LARGEST_HEAD:
        raise UnsupportedFeatureError(
            f"a head size of {spec.head_size} in the paged form",
            f"tried were multiples of {_HEAD_STEP} up to {_LARGEST_HEAD}",
        )
    layout = read_layout(spec)
    openvino()
    check_openvino()
    return PagedRunner(OpenVinoModel(spec, layout, options))


class OpenVinoModel:
    """A PackedModel."""

    def __init__(self, spec: DecoderSpec, layout: PagedLayout, options: RunnerOptions) -> None:
        narrow = layout.matrices == "bf16" and not options.exact
        kind = options.cache_type or ("bf16" if narrow else "f32")
        weights = FolderWeights(spec, layout.sha256, own=options.own_weights)
        lora = options.lora or layout.lora
        length = sequence_length(spec, options, None)
        try:
            self._graph = PagedGraph(spec, layout, weights, options.extra_outputs, lora=lora, length=length)
        except RuntimeError as error:
            if isinstance(error, RepoAgentError):
                raise
            raise DecoderError(f"the graph cannot be built: {error}", source=spec.place) from error
        self._identity = json.dumps([TRIED, str(layout), kind, narrow, options.exact, spec.layers, length])
        self._extras = options.extra_outputs
        self._run_options = options.run_options
        self._ended = False
        self.divisible = kind != "u8"
        self.window = max(layout.windows) if all(layout.windows) else 0
        compiled = _compile(spec, self._graph.model, options, "bf16" if narrow else "f32", kind)
        self.blocks = _block_count(options, length)
        self._request = compiled.create_infer_request()
        self._pool = self._allocate(compiled, kind)
        self._kept: dict[str, npt.NDArray[Any]] = {}
        self._vocab_size = spec.vocab_size
        self._adapted: tuple[list[AdapterWeights], _Rows] | None = None
        sites = self._graph.sites
        self._info = RunnerInfo(
            vocab_size=spec.vocab_size,
            max_seq_len=length,
            max_sequences=options.max_sequences,
            kv_bytes_per_token=sum(array[0].nbytes for array in self._pool) // BLOCK_TOKENS,
            dtype="float32",
            end_ids=spec.end_ids,
            extra_outputs=options.extra_outputs,
            lora=LoraShape(spec.layers, spec.kv_heads * spec.head_size, sites) if lora else None,
            hidden_size=spec.hidden_size,
        )

    @property
    def info(self) -> RunnerInfo:
        """See PackedModel."""
        return self._info

    def run(self, step: PackedStep) -> PackedResult:
        """See PackedModel."""
        self._fill(step)
        if self._ended or getattr(self._run_options, "terminate", False):
            raise EngineError("the step was terminated")
        try:
            self._request.start_async()
            self._request.wait()
        except RuntimeError as error:
            if self._ended:
                raise EngineError("the step was terminated") from error
            raise
        logits = self._request.get_output_tensor(0).data.reshape(-1, self._vocab_size)
        best = self._request.get_output_tensor(1).data.reshape(-1).astype(np.int64)
        outputs = enumerate(self._extras, _FIXED_RESULTS)
        return PackedResult(logits, best, {name: self._request.get_output_tensor(i).data for i, name in outputs})

    def _fill(self, step: PackedStep) -> None:
        empty = np.zeros((0, self._info.hidden_size or 0), np.float32)
        places = np.zeros(0, np.int64) if step.places is None else step.places.astype(np.int64)
        feeds: dict[str, npt.NDArray[Any]] = {
            "input_ids": step.tokens,
            "position_ids": step.positions,
            "past_lens": step.past,
            "subsequence_begins": step.begins,
            "block_indices": step.blocks,
            "block_indices_begins": step.block_begins,
            "max_context_len": np.array(step.longest, np.int32),
            "rows": step.rows,
            "embedding_places": places,
            "embeddings": empty if step.embeddings is None else np.ascontiguousarray(step.embeddings, np.float32),
        }
        if self._graph.sites:
            feeds.update(self._adapters(step))
        tensor = openvino().ov.Tensor
        for name, array in feeds.items():
            self._request.set_tensor(name, tensor(array, shared_memory=True))
        self._kept = feeds  # their memory is read until the run has ended

    def _adapters(self, step: PackedStep) -> _Rows:
        """The adapters of the step side by side, and for each token which columns are its own."""
        distinct = list({id(weights): weights for weights in step.adapters if weights is not None}.values())
        if self._adapted is None or list(map(id, self._adapted[0])) != list(map(id, distinct)):
            self._adapted = distinct, self._join(distinct)
        columns, first = {}, 0
        for weights in distinct:
            columns[id(weights)] = slice(first, first + _rank(weights))
            first += _rank(weights)
        mask = np.zeros((len(step.tokens), 1, first), np.float32)
        for own, start, stop in zip(step.adapters, step.begins[:-1], step.begins[1:], strict=True):
            if own is not None:
                mask[start:stop, :, columns[id(own)]] = 1
        return {"lora.mask": mask, **self._adapted[1]}

    def _join(self, adapters: Sequence[AdapterWeights]) -> _Rows:
        total = sum(map(_rank, adapters))
        joined: _Rows = {}
        for site, (inputs, outputs) in self._graph.sites.items():
            a, b = np.zeros((inputs, total), np.float32), np.zeros((total, outputs), np.float32)
            first = 0
            for weights in adapters:
                if site in weights:
                    rank = weights[site][0].shape[1]
                    a[:, first : first + rank], b[first : first + rank] = weights[site]
                first += _rank(weights)
            joined[f"lora.{site}.a"], joined[f"lora.{site}.b"] = a, b
        return joined

    def copy_block(self, source: int, target: int, start: int, stop: int) -> None:
        """See PackedModel."""
        chosen = slice(start, stop) if self.divisible else slice(None)
        for array in self._pool:
            array[target, :, chosen] = array[source, :, chosen]

    @property
    def identity(self) -> str:
        """See PackedModel."""
        return self._identity

    @property
    def block_bytes(self) -> int:
        """See PackedModel."""
        return sum(array[0].nbytes for array in self._pool)

    def read_block(self, block: int) -> bytes:
        """See PackedModel."""
        return b"".join(array[block].tobytes() for array in self._pool)

    def write_block(self, block: int, data: bytes) -> None:
        """See PackedModel."""
        start = 0
        for array in self._pool:
            size = array[block].nbytes
            piece = np.frombuffer(data, array.dtype, size // array.itemsize, start)
            array[block] = piece.reshape(array[block].shape)
            start += size

    def clear_block(self, block: int) -> None:
        """See PackedModel."""
        for array in self._pool:
            array[block] = 0

    def end(self) -> None:
        """See EndableRunner."""
        self._ended = True
        request = self._request  # of which close() may let go meanwhile
        if request is not None:
            request.cancel()

    def renew(self) -> None:
        """See EndableRunner."""
        self._ended = False

    def close(self) -> None:
        """See ModelRunner."""
        self._request = None
        self._pool = []

    def _allocate(self, compiled: Any, kind: str) -> list[npt.NDArray[Any]]:
        """The pool, all zeros: one array [blocks, KV heads, tokens, size] for the keys and the values of a layer."""
        ov = openvino().ov
        shapes = {
            item.any_name: [self.blocks, *(size.get_length() for size in list(item.partial_shape)[1:])]
            for item in compiled.inputs
            if "_cache." in item.any_name
        }
        size = sum(int(np.prod(shape)) for shape in shapes.values()) * np.dtype(_BYTES[kind]).itemsize
        if size > machine_bytes():
            raise CheckError(
                f"the KV cache does not fit: {self.blocks} blocks of {BLOCK_TOKENS} tokens need {size} bytes, and "
                f"there are {machine_bytes()}. Lower KvCacheConfig.max_tokens (RunnerOptions.cache_tokens), or "
                "max_batch_size or max_seq_len (RunnerOptions.max_sequences, RunnerOptions.max_seq_len), or take a "
                "smaller RunnerOptions.cache_type"
            )
        pool = []
        for name, shape in shapes.items():
            pool.append(np.zeros(shape, _BYTES[kind]))
            self._request.set_tensor(name, ov.Tensor(pool[-1], ov.Shape(shape), getattr(ov.Type, kind)))
        return pool


def _rank(weights: AdapterWeights) -> int:
    """Columns that an adapter takes: its largest rank."""
    return max((a.shape[1] for a, _ in weights.values()), default=0)


def _block_count(options: RunnerOptions, length: int) -> int:
    """One more than sequences may hold: a shared block is copied before it is let go."""
    if options.cache_tokens is not None:
        return max(1, options.cache_tokens // BLOCK_TOKENS) + 1
    return options.max_sequences * blocks_for(length) + 1


def _compile(spec: DecoderSpec, model: Any, options: RunnerOptions, computed: str, kind: str) -> Any:
    """``computed``: what products are computed in."""
    if computed == "bf16" and "BF16" not in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise UnsupportedFeatureError(
            "RunnerOptions.exact=False with weights in bf16", "this processor cannot compute in bf16"
        )
    if (kind == "bf16") != (computed == "bf16") and kind in ("f32", "bf16"):
        raise CheckError(f"{spec.place}: what is computed in {computed} takes no cache of {kind}")
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": computed, "KV_CACHE_PRECISION": kind}
    if options.exact:
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    if options.threads is not None:
        settings["INFERENCE_NUM_THREADS"] = options.threads
    try:
        return core().compile_model(model, "CPU", settings)
    except Exception as error:  # whatever the plugin raises
        raise UnsupportedFeatureError(
            f"{spec.place} with a cache of {kind}", f"openvino {TRIED} cannot compile it here: {error}"
        ) from error
