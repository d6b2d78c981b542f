"""Grammars by llguidance."""

import weakref
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.guide import Guide
from repoagent_llm.guidance.masks import forbid, words_for
from repoagent_llm.guidance.trial import PARSER_LIMITS, Trial
from repoagent_llm.guidance.vocabulary import Vocabulary
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.guidance import GuidedDecodingParams

__all__ = ["LlguidanceFactory"]


class _Tokenizer:
    """What llguidance wants to know of a tokenizer. It cuts text into the longest tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.stop_ids[0]
        self.bos_token_id = None
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._ids = {text: i for i, text in enumerate(self.tokens) if text and i not in vocabulary.special_ids}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(text):
            sizes = range(min(self._longest, len(text) - start), 0, -1)
            size = next((size for size in sizes if text[start : start + size] in self._ids), 0)
            if not size:
                return found
            found.append(self._ids[text[start : start + size]])
            start += size
        return found


class LlguidanceFactory:
    """See GuideFactory."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        wrapper = llguidance.TokenizerWrapper(_Tokenizer(vocabulary))
        self._tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=len(vocabulary.tokens), eos_token=list(vocabulary.stop_ids)
        )
        self.stop_ids = frozenset(vocabulary.stop_ids)
        self._limits = llguidance.LLParserLimits(**PARSER_LIMITS)
        self._trial = Trial()
        weakref.finalize(self, self._trial.close)

    def create(self, params: GuidedDecodingParams) -> Guide:
        """See GuideFactory."""
        grammar = self._trial.grammar(params)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            reason = matcher.get_error().partition("\n")[0][:400]
            raise CheckError(f"the guide cannot be compiled as {params.guide_type.name}: {reason}")
        return _LlguidanceGuide(matcher, self._tokenizer.vocab_size, self.stop_ids)


class _LlguidanceGuide:
    """See Guide."""

    def __init__(self, matcher: Any, vocab_size: int, stop_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._words = words_for(vocab_size)
        self._vocab_size = vocab_size
        self._stop_ids = stop_ids

    def mask(self, row: npt.NDArray[np.float32]) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check()
        forbid(row, self._words)

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._check()
            raise CheckError(f"the grammar does not allow token {token} here")

    def is_end(self, token: int) -> bool:
        return token in self._stop_ids

    def fork(self) -> "_LlguidanceGuide":
        return _LlguidanceGuide(self._matcher.deep_copy(), self._vocab_size, self._stop_ids)

    def _check(self) -> None:
        if self._matcher.is_error():
            # The first line says why; the rest is the state of the whole parser.
            raise CheckError(f"the grammar failed: {self._matcher.get_error().partition(chr(10))[0]}")
