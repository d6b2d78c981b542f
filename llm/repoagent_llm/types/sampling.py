"""SamplingConfig: how the next token of one request is chosen."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from repoagent_llm.types import rules
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.record import Record

__all__ = ["SamplingConfig"]

_not_negative = rules.maybe(rules.integer(0))
_any_float = rules.maybe(rules.float32())
MAX_BEAM_WIDTH = 1024
MAX_BEAM_WIDTH_STEPS = 8


@dataclass(eq=False)
class SamplingConfig(Record, pickled=19):
    """How tokens are chosen; None leaves a setting at the engine's default, which is greedy search.

    Floats are kept in single precision. ``beam_width_array`` raises ``beam_width`` to its maximum.
    """

    beam_width: Annotated[int, rules.integer(1, MAX_BEAM_WIDTH)] = 1
    _: KW_ONLY
    top_k: Annotated[int | None, _not_negative] = None
    top_p: Annotated[float | None, rules.maybe(rules.float32(above=0, high=1))] = None
    top_p_min: Annotated[float | None, rules.maybe(rules.float32(low=0, high=1))] = None
    top_p_reset_ids: Annotated[int | None, _not_negative] = None
    top_p_decay: Annotated[float | None, rules.maybe(rules.float32(above=0, high=1))] = None
    seed: Annotated[int | None, rules.maybe(rules.unsigned64)] = None
    temperature: Annotated[float | None, rules.maybe(rules.float32(low=0))] = None
    min_tokens: Annotated[int | None, _not_negative] = None
    beam_search_diversity_rate: Annotated[float | None, rules.maybe(rules.float32(low=0))] = None
    repetition_penalty: Annotated[float | None, rules.maybe(rules.float32(above=0))] = None
    presence_penalty: Annotated[float | None, _any_float] = None
    frequency_penalty: Annotated[float | None, _any_float] = None
    length_penalty: Annotated[float | None, _any_float] = None
    early_stopping: Annotated[int | None, rules.maybe(rules.integer())] = None
    no_repeat_ngram_size: Annotated[int | None, _not_negative] = None
    num_return_sequences: Annotated[int | None, rules.maybe(rules.integer(1))] = None
    min_p: Annotated[float | None, rules.maybe(rules.float32(low=0, high=1))] = None
    beam_width_array: Annotated[list[int] | None, rules.maybe(rules.list_of(rules.integer(1, MAX_BEAM_WIDTH)))] = None

    def __post_init__(self) -> None:
        # The C++ class checks these two in its constructor only; a setter takes anything.
        for name in ("length_penalty", "early_stopping"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise CheckError(f"SamplingConfig.{name} must be >= 0, not {value:g}")
        super().__post_init__()

    def _check_together(self) -> None:
        if self.beam_width_array:
            if len(self.beam_width_array) > MAX_BEAM_WIDTH_STEPS:
                raise CheckError(
                    f"SamplingConfig.beam_width_array holds at most {MAX_BEAM_WIDTH_STEPS} widths, "
                    f"not {len(self.beam_width_array)}"
                )
            self.__dict__["beam_width"] = max(self.beam_width, *self.beam_width_array)
        wanted = self.num_return_sequences
        if wanted is not None and self.beam_width > 1 and wanted > self.beam_width:
            raise CheckError(
                f"SamplingConfig.num_return_sequences must be <= beam_width ({self.beam_width}), not {wanted}"
            )
