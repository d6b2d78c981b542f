"""Grammars by llguidance."""

import time
import weakref
from collections.abc import Sequence
from typing import Any, Final

import llguidance
import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.guide import Guide, GuideFactory
from repoagent_llm.guidance.trial import PARSER_LIMITS, Trial
from repoagent_llm.guidance.vocabulary import Vocabulary
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.guidance import GuidedDecodingConfig, GuidedDecodingParams

_BITS: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_HIGHEST: Final = np.where(_BITS == 1, np.inf, -np.inf).astype(np.float32)
"""What the logits of eight tokens may be at most, by the byte of a mask that has their bits."""

_HEAD_START: Final = 2.0
"""Seconds of the processor that the texts of a request may take for their grammar, beside those for each token."""
_EACH: Final = 0.002
"""Seconds for each token; usual grammars take a tenth, and none saves up what it does not take."""


class Mask:
    """The memory for the masks of all guides of a vocabulary, of which one at a time is made and used."""

    def __init__(self, vocab_size: int) -> None:
        self.words = np.zeros(-(-vocab_size // 32), np.int32)
        """A bit for each token: whether it may come next."""
        self._highest = np.empty((self.words.nbytes, 8), np.float32)

    def apply(self, row: npt.NDArray[np.float32]) -> None:
        """Set the logits of tokens whose bit is zero to minus infinity. Takes as long for many as for few."""
        np.take(_HIGHEST, self.words.view(np.uint8), axis=0, out=self._highest, mode="clip")
        np.minimum(row, self._highest.reshape(-1)[: len(row)], out=row)


def create_guides(config: GuidedDecodingConfig | None, vocab_size: int, end_ids: Sequence[int]) -> GuideFactory | None:
    """The guides of an executor, or None when it has no guided decoding.

    Raises ``CheckError`` for a vocabulary that cannot be.
    """
    if config is None:
        return None
    if config.encoded_vocab is None or not any(config.encoded_vocab):
        raise CheckError("GuidedDecodingConfig.encoded_vocab is needed: the text of every token, by id")
    stop_ids = config.stop_token_ids if config.stop_token_ids is not None else list(end_ids)
    vocabulary = Vocabulary.of(config.encoded_vocab, config.tokenizer_str, stop_ids, vocab_size)
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
        self._mask = Mask(self._tokenizer.vocab_size)
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
        return _LlguidanceGuide(matcher, self._mask, self.stop_ids, _Work())


class _Work:
    """What the texts of a request have taken of the processor for their grammar. The engine's thread does it, and all
    other requests wait for that; an ambiguous grammar takes the third power of a text's length."""

    def __init__(self) -> None:
        self._left = _HEAD_START
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._left -= time.thread_time() - self._began

    def check(self) -> None:
        """Once for each token."""
        if self._left < 0:
            raise CheckError(f"the grammar takes too long: more than {_EACH:g} seconds for each token")
        self._left = min(_HEAD_START, self._left + _EACH)


class _LlguidanceGuide:
    """See Guide. ``work``: that of all texts of the request."""

    def __init__(self, matcher: Any, mask: Mask, stop_ids: frozenset[int], work: _Work) -> None:
        self._matcher = matcher
        self._mask = mask
        self._stop_ids = stop_ids
        self._work = work

    def mask(self, row: npt.NDArray[np.float32]) -> None:
        words = self._mask.words
        self._work.check()
        with self._work:
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        self._mask.apply(row)

    def accept(self, token: int) -> None:
        with self._work:
            consumed = self._matcher.consume_token(token)
        if not consumed:
            self._check()
            raise CheckError(f"the grammar does not allow token {token} here")

    def is_end(self, token: int) -> bool:
        return token in self._stop_ids

    def forced(self) -> Sequence[int]:
        with self._work:
            # Of the texts that a tokenizer would cut the bytes into.
            found: list[int] = self._matcher.compute_ff_tokens()
        return found

    def fork(self) -> "_LlguidanceGuide":
        with self._work:
            copy = self._matcher.deep_copy()
        return _LlguidanceGuide(copy, self._mask, self._stop_ids, self._work)

    def _check(self) -> None:
        if self._matcher.is_error():
            # The first line states why; the rest is the state of the whole parser.
            raise CheckError(f"the grammar failed: {self._matcher.get_error().partition(chr(10))[0]}")
