"""PromptTable: rows that stand in for the embeddings of a prompt's virtual tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent_llm.runner.protocol import Embeddings, RunnerInfo, TokenArray
from repoagent_llm.types.executor_errors import CheckError, UnsupportedFeatureError
from repoagent_llm.types.request import Request


@dataclass(frozen=True, slots=True)
class PromptTable:
    """``rows`` [n, hidden]: token ``first`` + i stands for row i."""

    first: int
    rows: npt.NDArray[Any]

    def take_from(self, tokens: TokenArray) -> Embeddings | None:
        """The embeddings of the virtual tokens among ``tokens``, which become token 0 there; None if none is."""
        places = np.flatnonzero(tokens >= self.first)
        if not len(places):
            return None
        rows = self.rows[tokens[places] - self.first]
        tokens[places] = 0
        return Embeddings(places, rows)


def check_prompt_table(request: Request, info: RunnerInfo, *, reuse: bool) -> PromptTable | None:
    """The table of a request, if it has one; ``reuse``: whether the KV cache of prompts is reused.

    Raises ``CheckError`` for a table that does not fit the model or the prompt.
    """
    config = request.prompt_tuning_config
    if config is None:
        return None
    if info.hidden_size is None:
        raise UnsupportedFeatureError("Request.prompt_tuning_config", "this model's embeddings cannot be replaced")
    table = config.embedding_table
    if table.shape[1] != info.hidden_size or table.dtype.kind != "f":
        raise CheckError(
            f"PromptTuningConfig.embedding_table must be floating-point [rows, {info.hidden_size}], the model's hidden "
            f"size, not {table.dtype} {list(table.shape)}"
        )
    if not np.isfinite(table).all():
        raise CheckError("PromptTuningConfig.embedding_table holds values that are not finite")
    _check_extra_ids(request, config.input_token_extra_ids, reuse)
    return PromptTable(info.vocab_size, np.asarray(table, info.dtype))


def _check_extra_ids(request: Request, extra_ids: list[int] | None, reuse: bool) -> None:
    """Without extra ids prompts with different tables would share their cache."""
    if extra_ids is None:
        if reuse:
            raise CheckError("Input token extra ids must be provided when enabling kv cache reuse with prompt table")
        return
    if len(extra_ids) != len(request.input_token_ids):
        raise CheckError(
            f"inputTokenExtraIds vector size ({len(extra_ids)}) must be the same as input token vector size "
            f"({len(request.input_token_ids)})."
        )
