"""Grammars by llguidance."""

import weakref
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from repoagent.installing import install_hint
from repoagent_llm.engine.guide import Guide, GuideFactory
from repoagent_llm.guidance.trial import PARSER_LIMITS, Trial
from repoagent_llm.guidance.vocabulary import Vocabulary
from repoagent_llm.types.executor_errors import CheckError, UnsupportedFeatureError
from repoagent_llm.types.guidance import GuidedDecodingConfig, GuidedDecodingParams


def words_for(vocab_size: int) -> npt.NDArray[np.int32]:
    """A mask for ``vocab_size`` tokens, all zero."""
    return np.zeros(-(-vocab_size // 32), np.int32)


def forbid(row: npt.NDArray[np.float32], words: npt.NDArray[np.int32]) -> None:
    """Set the logits of tokens whose bit is zero to minus infinity."""
    allowed = np.unpackbits(words.view(np.uint8), count=len(row), bitorder="little")
    row[allowed == 0] = -np.inf


def create_guides(config: GuidedDecodingConfig | None, vocab_size: int, end_ids: Sequence[int]) -> GuideFactory | None:
    """The guides of an executor, or None when it has no guided decoding.

    Raises ``UnsupportedFeatureError`` when the backend is not there, ``CheckError`` for a vocabulary that cannot be.
    """
    if config is None:
        return None
    if find_spec("llguidance") is None:
        raise UnsupportedFeatureError(
            f"GuidedDecodingBackend.{config.backend.name}",
            f"llguidance is not installed; {install_hint('repoagent-core', 'llm')}",
        )
    if config.encoded_vocab is None or not any(config.encoded_vocab):
        raise CheckError("GuidedDecodingConfig.encoded_vocab is needed: the text of every token, by id")
    stop_ids = config.stop_token_ids if config.stop_token_ids is not None else list(end_ids)
    vocabulary = Vocabulary.of(config.encoded_vocab, config.tokenizer_str, stop_ids, vocab_size)
    from repoagent_llm.guidance.llguidance_backend import LlguidanceFactory  # a base install has it not

    return LlguidanceFactory(vocabulary)


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

    def forced(self) -> Sequence[int]:
        found: list[int] = self._matcher.compute_ff_tokens()  # of the texts that a tokenizer would cut the bytes into
        return found

    def fork(self) -> "_LlguidanceGuide":
        return _LlguidanceGuide(self._matcher.deep_copy(), self._vocab_size, self._stop_ids)

    def _check(self) -> None:
        if self._matcher.is_error():
            # The first line states why; the rest is the state of the whole parser.
            raise CheckError(f"the grammar failed: {self._matcher.get_error().partition(chr(10))[0]}")
