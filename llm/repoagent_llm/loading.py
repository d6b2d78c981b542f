"""Which runner serves a decoder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from repoagent_llm.draft_target import check_vocabularies, speculation_of
from repoagent_llm.engine.debug_tensors import graph_tensors
from repoagent_llm.runner.decoder_spec import DecoderSpec, read_spec
from repoagent_llm.runner.options import RunnerOptions
from repoagent_llm.runner.ort_gqa import OrtGqaRunner
from repoagent_llm.runner.ort_mixed import OrtMixedRunner
from repoagent_llm.runner.ort_std import OrtStdRunner
from repoagent_llm.runner.protocol import ModelRunner, RunnerInfo
from repoagent_llm.runner.tensorrt import PLAN_SUFFIX, TensorRtRunner
from repoagent_llm.runner.trial_run import try_runner
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.executor_config import ExecutorConfig

__all__ = ["check_managed_weights", "load_draft_runner", "load_runner"]

_WEIGHT_TYPES = frozenset(np.dtype(name) for name in ("float16", "float32", "int8", "int32", "int64"))


def load_runner(spec: DecoderSpec, config: ExecutorConfig) -> ModelRunner:
    """A runner for a decoder.

    Sizes come from ``config``: ``max_batch_size`` times ``max_beam_width`` sequences, additional outputs by name. A
    ``RunnerOptions`` set as ``config.runner_options`` says the rest (threads, sequence length).
    """
    options = _options(config)
    if config.max_batch_size is not None:
        options = replace(options, max_sequences=config.max_batch_size * config.max_beam_width)
    else:
        options = replace(options, max_sequences=max(options.max_sequences, config.max_beam_width))
    names = (
        *(output.name for output in config.additional_model_outputs or ()),
        *graph_tensors(config.debug_config),
    )
    options = replace(options, extra_outputs=tuple(dict.fromkeys((*options.extra_outputs, *names))))
    if speculation_of(config) is not None:
        options = replace(options, yielding=True)
    return _open(spec, options)


def _open(spec: DecoderSpec, options: RunnerOptions) -> ModelRunner:
    """A runner that has run: what cannot run is refused now, not by every request."""
    try:
        runner = _make(spec, options)
    except MemoryError as error:
        raise CheckError(
            f"{spec.place}: there is not enough memory for the decoder with {options.max_sequences} sequences: lower "
            "max_batch_size, max_beam_width or max_seq_len"
        ) from error
    try:
        try_runner(runner, spec.place)
    except BaseException:
        runner.close()
        raise
    return runner


def _make(spec: DecoderSpec, options: RunnerOptions) -> ModelRunner:
    if spec.filename.endswith(PLAN_SUFFIX):
        return TensorRtRunner(spec, options)
    if options.mixed:
        return OrtMixedRunner(spec, options)
    return (OrtStdRunner if spec.standard else OrtGqaRunner)(spec, options)


def load_draft_runner(config: ExecutorConfig, info: RunnerInfo) -> ModelRunner | None:
    """A runner for the draft model of ``config``, if it names one. ``info``: of the runner it drafts for."""
    wanted = speculation_of(config)
    if wanted is None:
        return None
    if wanted.speculative_model_dir is None:
        raise CheckError("DraftTargetDecodingConfig.speculative_model_dir must name the draft model's folder")
    spec = read_spec(Path(wanted.speculative_model_dir))
    check_vocabularies(info.vocab_size, f"the draft model {wanted.speculative_model_dir}", spec.vocab_size)
    own = _options(config)
    options = replace(
        wanted.runner_options or own,
        max_sequences=wanted.max_concurrency,
        extra_outputs=(),
        lora=False,
        yielding=True,
        run_options=own.run_options,
    )
    return _open(spec, options)


def _options(config: ExecutorConfig) -> RunnerOptions:
    options = getattr(config, "runner_options", None) or RunnerOptions()
    if not isinstance(options, RunnerOptions):
        raise TypeError(f"ExecutorConfig.runner_options must be RunnerOptions, not {type(options).__name__}")
    return options


def check_managed_weights(weights: Mapping[str, Any]) -> None:
    """Raise unless every weight is an array of an element type that engines take.

    bfloat16 and float8 come as void16 and void8 with a type in the dtype's metadata.
    """
    if not isinstance(weights, Mapping):
        raise TypeError(f"managed_weights must be a mapping of names to arrays, not {type(weights).__name__}")
    for weight in weights.values():
        dtype = getattr(weight, "dtype", None)
        described = dtype is not None and dtype.kind == "V" and dtype.itemsize in (1, 2) and dtype.metadata
        if not described and dtype not in _WEIGHT_TYPES:
            raise CheckError("Unsupported numpy dtype.")
