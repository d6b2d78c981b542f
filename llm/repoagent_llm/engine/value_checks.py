"""What a request must keep to that its own classes, like TensorRT-LLM's, do not ask for.

Finite numbers, tokens of the vocabulary, tensors of the model's sizes. Each raises ``CheckError``, which says what is
wrong with what.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.request import Request
from repoagent_llm.types.sampling import SamplingConfig

__all__ = ["check_draft_logits", "check_sampling", "check_tokens"]

_FINITE: Final = (
    "temperature",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "beam_search_diversity_rate",
    "length_penalty",
)


def check_sampling(config: SamplingConfig, longest: int) -> None:
    """``longest``: how many tokens a sequence may hold."""
    for name in _FINITE:
        value = getattr(config, name)
        if value is not None and not math.isfinite(value):
            raise CheckError(f"SamplingConfig.{name} must be a finite number, not {value:g}")
    if config.beam_width > 1 and config.length_penalty:
        _check_length_penalty(config.length_penalty, longest)


def _check_length_penalty(penalty: float, longest: int) -> None:
    try:
        _ = float(longest) ** penalty
    except OverflowError:
        raise CheckError(
            f"SamplingConfig.length_penalty {penalty:g} is too large: {longest} tokens ** length_penalty is "
            "not a finite number"
        ) from None


def check_tokens(request: Request, size: int, virtual: int) -> None:
    """``size``: of the vocabulary; ``virtual``: how many tokens a prompt table adds to it."""
    highest, lowest = max(request.input_token_ids), min(request.input_token_ids)
    if lowest < 0 or highest >= size + virtual:
        wrong = lowest if lowest < 0 else highest
        more = f" and the {virtual} of its prompt table" if virtual else ""
        raise CheckError(f"token id {wrong} in the prompt is not in the vocabulary of {size} tokens{more}")
    if request.embedding_bias is not None:
        _check_bias(request.embedding_bias, size)
    _check_words("bad word", request.bad_words or (), size)
    _check_words("stop word", request.stop_words or (), size)


def _check_bias(bias: npt.NDArray[Any], size: int) -> None:
    if bias.shape != (size,):
        raise CheckError(f"embedding bias shape is not as expected: it must be ({size},), not {tuple(bias.shape)}")
    if bias.dtype.kind not in "fiub":
        raise CheckError(f"embedding bias must hold numbers, not {bias.dtype}")
    if np.isnan(bias).any():
        raise CheckError(f"embedding bias is NaN for token {int(np.isnan(bias).argmax())}")


def _check_words(kind: str, words: Sequence[Sequence[int]], size: int) -> None:
    for number, word in enumerate(words):
        if not word:
            raise CheckError(f"{kind} {number} is empty")
        if any(not 0 <= token < size for token in word):
            raise CheckError(f"{kind} {list(word)} has a token that is not in the vocabulary of {size} tokens")


def check_draft_logits(logits: npt.NDArray[Any], size: int) -> None:
    """``size``: of the vocabulary."""
    if logits.shape[1] != size:
        raise CheckError(f"draft logits have {logits.shape[1]} columns, the vocabulary {size}")
    if logits.dtype.kind not in "fiu":
        raise CheckError(f"draft logits must be numbers, not {logits.dtype}")
    if not np.isfinite(logits.max(axis=1)).all():
        raise CheckError("draft logits contain infinite or NaN values, or rows of -inf only")
