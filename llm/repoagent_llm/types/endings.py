"""Endings: several tokens at which a text ends. TensorRT-LLM's requests have one, many models have more."""

from dataclasses import dataclass
from typing import Annotated

from repoagent_llm.types import rules
from repoagent_llm.types.record import Record

__all__ = ["Endings"]


@dataclass(eq=False)
class Endings(Record, readonly=True, pickled=2):
    """Set as the attribute ``endings`` of a ``Request``; ours, without a counterpart in TensorRT-LLM.

    ``end_ids``: tokens that end a text as ``Request.end_id`` does. They are not part of the text.
    ``stop_ids``: tokens that end a text and are part of it, like a stop word. Neither comes before ``min_tokens``.
    Ids outside the vocabulary never occur.
    """

    end_ids: Annotated[list[int], rules.tokens] = ()  # type: ignore[assignment]
    stop_ids: Annotated[list[int], rules.tokens] = ()  # type: ignore[assignment]
