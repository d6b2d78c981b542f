"""LookaheadDecodingConfig and its arithmetic."""

from dataclasses import dataclass
from typing import Annotated

from repoagent_llm.types import rules
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.record import Record

__all__ = ["LookaheadDecodingConfig"]


@dataclass(eq=False)
class LookaheadDecodingConfig(Record, readonly=True, pickled=3):
    """The sizes (window W, n-gram N, verification set G) of lookahead decoding."""

    max_window_size: Annotated[int, rules.integer(1)]
    max_ngram_size: Annotated[int, rules.integer(1)]
    max_verification_set_size: Annotated[int, rules.integer(0)]

    def _check_together(self) -> None:
        alone = self.max_window_size == 1 and self.max_verification_set_size == 0
        if self.max_ngram_size == 1 and not alone:
            raise CheckError(
                "LookaheadDecodingConfig: max_ngram_size 1 requires max_window_size 1 and max_verification_set_size 0"
            )

    def calculate_speculative_resource(self) -> tuple[int, int, int, int]:
        """(decoding tokens, path length, draft tokens, draft path length) that these sizes need at most."""
        return self.calculate_speculative_resource_tuple(
            self.max_window_size, self.max_ngram_size, self.max_verification_set_size
        )

    @staticmethod
    def calculate_speculative_resource_tuple(
        window_size: int, ngram_size: int, verification_set_size: int
    ) -> tuple[int, int, int, int]:
        """The same, without an object."""
        drafts = (0 if ngram_size == 1 else ngram_size - 2) + (window_size - 1 + verification_set_size) * (
            ngram_size - 1
        )
        return drafts + 1, ngram_size, drafts, ngram_size - 1

    @staticmethod
    def get_default_lookahead_decoding_window() -> int:
        """4."""
        return 4

    @staticmethod
    def get_default_lookahead_decoding_ngram() -> int:
        """3."""
        return 3

    @staticmethod
    def get_default_lookahead_decoding_verification_set() -> int:
        """4."""
        return 4
