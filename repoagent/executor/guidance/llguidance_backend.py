"""Grammars by llguidance."""

import json
from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt
from llguidance.gbnf_to_lark import any_to_lark

from repoagent.executor.engine.guide import Guide
from repoagent.executor.guidance.masks import forbid, words_for
from repoagent.executor.guidance.refusals import refusal
from repoagent.executor.guidance.vocabulary import Vocabulary
from repoagent.executor.types.errors import CheckError
from repoagent.executor.types.guidance import GuidedDecodingParams

__all__ = ["LlguidanceFactory"]

_Kind = GuidedDecodingParams.GuideType


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

    def create(self, params: GuidedDecodingParams) -> Guide:
        """See GuideFactory."""
        try:
            grammar = _grammar(params)
        except Exception as error:  # the converters raise what they like
            raise refusal(params.guide_type, "read", error) from error
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise refusal(params.guide_type, "compiled", matcher.get_error())
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


def _grammar(params: GuidedDecodingParams) -> str:
    guide = params.guide or ""
    match params.guide_type:
        case _Kind.JSON:
            return str(llguidance.LLMatcher.grammar_from_json_schema("{}"))
        case _Kind.JSON_SCHEMA:
            json.loads(guide)
            return str(llguidance.LLMatcher.grammar_from_json_schema(guide))
        case _Kind.REGEX:
            return str(llguidance.LLMatcher.grammar_from_regex(guide))
        case _Kind.EBNF_GRAMMAR:
            return str(llguidance.grammar_from("lark", any_to_lark(guide)))
        case _Kind.STRUCTURAL_TAG:
            return str(llguidance.grammar_from("lark", _tags(json.loads(guide))))


def _tags(description: Any) -> str:
    """Tags as xgrammar writes them: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}."""
    structures: Sequence[dict[str, Any]] = description["structures"]
    tags = []
    for item in structures:
        trigger = next((text for text in description["triggers"] if item["begin"].startswith(text)), None)
        if trigger is None:
            raise ValueError(f"no trigger begins {item['begin']!r}")
        tags.append(llguidance.StructTag(trigger=trigger, begin=item["begin"], grammar=item["schema"], end=item["end"]))
    return str(llguidance.StructTag.to_grammar(tags, assume_special=False))
