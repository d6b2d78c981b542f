"""How many tokens a sequence of a runner may hold, and how much memory the cache for them may reserve."""

import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from repoagent_llm.runner.decoder_spec import CONFIG_NAME, DecoderSpec
from repoagent_llm.runner.runner_options import DEFAULT_SEQ_LEN, RunnerOptions
from repoagent_llm.runner.slab import Slab
from repoagent_llm.types.executor_errors import CheckError

_CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_bytes() -> int:
    """The memory of this machine, or of its share for this process where that is less."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():  # "max" where there is no limit
            most = min(most, int(text))
    return most


def cache_bytes(sequences: int, tokens: int, token_bytes: int) -> int:
    """What a cache reserves; each sequence has room for one token more than it may hold."""
    return sequences * (tokens + 1) * token_bytes


def _check_cache_fits(sequences: int, tokens: int, token_bytes: int) -> None:
    """Raise ``CheckError`` for a cache that this machine could never fill."""
    if cache_bytes(sequences, tokens, token_bytes) > machine_bytes():
        raise _does_not_fit(sequences, tokens, token_bytes)


def _does_not_fit(sequences: int, tokens: int, token_bytes: int) -> CheckError:
    """The error for a cache that is too large, with what to lower."""
    return CheckError(
        f"the KV cache does not fit: {sequences} sequences of {tokens} tokens, {token_bytes} bytes each, need "
        f"{cache_bytes(sequences, tokens, token_bytes)} bytes, and there are {machine_bytes()}. Lower "
        "max_seq_len (RunnerOptions.max_seq_len), or max_batch_size or max_beam_width, whose product is the number of "
        "sequences (RunnerOptions.max_sequences where max_batch_size is not set)"
    )


def sequence_length(spec: DecoderSpec, options: RunnerOptions, capacity: int | str | None) -> int:
    """How many tokens a sequence may hold. A graph of a fixed ``capacity`` leaves no choice.

    Raises ``CheckError`` where the options or the folder contradict the graph.
    """
    if not isinstance(capacity, int):
        return min(options.max_seq_len or DEFAULT_SEQ_LEN, spec.context_length)
    length = capacity - 1
    if not 1 <= length <= spec.context_length:
        raise CheckError(
            f"{spec.place}: the graph's caches have {capacity} tokens, and {CONFIG_NAME} has a context length of "
            f"{spec.context_length}: expected 2 to {spec.context_length + 1}; build the decoder again"
        )
    if options.max_seq_len not in (None, length):
        raise CheckError(
            f"{spec.place}: the graph's caches have {capacity} tokens, so that a sequence holds {length}, but "
            f"max_seq_len is {options.max_seq_len}: leave it out, or build the decoder with "
            f"capacity={(options.max_seq_len or 0) + 1}"
        )
    return length


def bytes_per_token(spec: DecoderSpec, dtype: np.dtype[Any]) -> int:
    """What one token of one sequence takes in the cache."""
    return 2 * spec.layers * spec.kv_heads * spec.head_size * dtype.itemsize


def new_slab(spec: DecoderSpec, sequences: int, length: int, dtype: np.dtype[Any], *, wipe: bool) -> Slab:
    """The cache for ``sequences`` of ``length`` tokens.

    Raises ``CheckError`` where it does not fit into the memory.
    """
    size = bytes_per_token(spec, dtype)
    _check_cache_fits(sequences, length, size)
    try:
        # One token more than a sequence may hold: rows that sit out a decode run are written there.
        return Slab(
            layers=spec.layers,
            rows=sequences,
            kv_heads=spec.kv_heads,
            tokens=length + 1,
            head_size=spec.head_size,
            dtype=dtype,
            wipe=wipe,
        )
    except (MemoryError, ValueError) as error:  # NumPy has a ValueError for more than can be addressed
        raise _does_not_fit(sequences, length, size) from error
