"""Pooling: one vector for a prompt, of the hidden states behind its last layer."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.request_checks import sampled_sequences
from repoagent_llm.runner.protocol import RunnerInfo
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.request import EngineRequest

HIDDEN: Final = "last_hidden"
"""The additional output that is pooled."""
POOLINGS: Final = ("mean", "last", "cls")
"""The mean of all tokens' states, that of the last token, that of the first."""


class Pooled:
    """Takes the states of a prompt piece by piece, from its first token on."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sum: npt.NDArray[np.float64] | None = None

    @property
    def whole(self) -> bool:
        """Whether the states of all tokens are needed, also of those whose blocks are retained."""
        return self._kind != "last"

    def add(self, states: npt.NDArray[Any]) -> None:
        """The next states [tokens, size]."""
        if self._kind == "mean":
            added = states.sum(axis=0, dtype=np.float64)
            self._sum = added if self._sum is None else self._sum + added
        elif self._kind == "last" or self._sum is None:
            self._sum = states[-1 if self._kind == "last" else 0].astype(np.float64)

    def clear(self) -> None:
        """The prompt is read from its start once more."""
        self._sum = None

    def vector(self) -> npt.NDArray[np.float32]:
        """[size], of length 1: so the sum of a mean need not be divided. Zeros stay zeros."""
        assert self._sum is not None
        length = float(np.linalg.norm(self._sum))
        return (self._sum / (length or 1.0)).astype(np.float32)


def pooled(request: EngineRequest, info: RunnerInfo) -> Pooled | None:
    """For a request that wants one.

    Raises:
        CheckError: it makes no sense, or the executor has no hidden states.
    """
    kind = request.pooling
    if kind is None:
        return None
    if kind not in POOLINGS:
        raise CheckError(f"Request.pooling must be one of {', '.join(POOLINGS)}, not {kind!r}")
    if HIDDEN not in info.extra_outputs:
        raise CheckError(f"Request.pooling needs {HIDDEN!r} among ExecutorConfig.additional_model_outputs")
    wanted = request.output_config
    more = wanted.return_context_logits or wanted.additional_model_outputs or request.prompt_log_probs is not None
    if more or request.streaming or request.external_draft_tokens_config is not None:
        raise CheckError("Request.pooling gives a vector and nothing else: no stream, logits, outputs or drafts")
    if max(request.sampling_config.beam_width, sampled_sequences(request)) > 1:
        raise CheckError("Request.pooling gives one vector: not with beams or several sequences")
    return Pooled(kind)
