"""Tokens with their log-probabilities and those of the likeliest others, each as a JSON object."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from repoagent.serving.backends.llm.tokenizing import Tokenizer

__all__ = ["token_log_probs"]


def token_log_probs(
    tokenizer: Tokenizer,
    tokens: Iterable[int],
    log_probs: Iterable[float],
    others: Iterable[Sequence[tuple[int, float]]],
) -> list[str]:
    """One object for each of ``tokens``; ``others``: for each, the likeliest ones with theirs, the likeliest first."""
    return [
        json.dumps(
            {
                **_entry(tokenizer, token, value),
                "top_logprobs": [_entry(tokenizer, other, its) for other, its in alternatives],
            }
        )
        for token, value, alternatives in zip(tokens, log_probs, others, strict=True)
    ]


def _entry(tokenizer: Tokenizer, token: int, value: float) -> dict[str, Any]:
    data = tokenizer.bytes_of(token)
    return {
        "token": data.decode(errors="replace"),
        "logprob": value if math.isfinite(value) else -9999.0,
        "bytes": list(data),
    }
