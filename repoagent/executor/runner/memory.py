"""How much memory a runner may reserve."""

import os
from pathlib import Path
from typing import Final

from repoagent.executor.types.errors import CheckError

__all__ = ["cache_bytes", "check_cache_fits", "does_not_fit", "machine_bytes"]

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


def cache_bytes(sequences: int, tokens: int, bytes_per_token: int) -> int:
    """What a cache reserves; each sequence has room for one token more than it may hold."""
    return sequences * (tokens + 1) * bytes_per_token


def check_cache_fits(sequences: int, tokens: int, bytes_per_token: int) -> None:
    """Raise ``CheckError`` for a cache that this machine could never fill."""
    if cache_bytes(sequences, tokens, bytes_per_token) > machine_bytes():
        raise does_not_fit(sequences, tokens, bytes_per_token)


def does_not_fit(sequences: int, tokens: int, bytes_per_token: int) -> CheckError:
    """The error for a cache that is too large, with what to lower."""
    return CheckError(
        f"the KV cache does not fit: {sequences} sequences of {tokens} tokens, {bytes_per_token} bytes each, need "
        f"{cache_bytes(sequences, tokens, bytes_per_token)} bytes, and there are {machine_bytes()}. Lower "
        "max_seq_len (RunnerOptions.max_seq_len), or max_batch_size or max_beam_width, whose product is the number of "
        "sequences (RunnerOptions.max_sequences where max_batch_size is not set)"
    )
