"""What happens to a row of logits between the model and the choice of a token.

In this order: embedding bias; bad words, repeated n-grams, the end token before ``min_tokens``; temperature;
repetition, presence and frequency penalties. Post-processors and grammars come before all of these.
"""

import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.word_lists import banned_by_ngrams, banned_by_words
from repoagent_llm.types.request import Request

Row = npt.NDArray[np.float32]
#: Divided by less, logits overflow; all but the largest have no weight long before that.
_COLDEST: Final = 1e-30
_LARGEST: Final = np.finfo(np.float32).max


_PRIME: Final = (1 << 61) - 1
_BASE: Final = secrets.randbelow(_PRIME - (1 << 32)) + (1 << 32)
"""Hashes of n-grams are polynomials in it. As it is secret, two n-grams of a text have one hash by chance alone, at a
millionth of a millionth for usual ones."""


class SeenTokens:
    """What the tokens of a history, which only grows, mean for the next one: each is read once.

    ``counts`` and ``banned_by_ngrams`` read on apart; the latter for one ``size``.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._read = 0
        self._followers: dict[int, set[int]] = {}
        self._hash = 0
        """Of the last ``size - 1`` tokens, which ``_hashed`` tokens end with."""
        self._hashed = 0

    def banned_by_ngrams(self, tokens: Sequence[int], size: int) -> Collection[int]:
        """As ``word_lists.banned_by_ngrams``, each token once."""
        head = size - 1
        if len(tokens) < size:
            return ()
        oldest = pow(_BASE, head, _PRIME)
        for place in range(self._hashed, len(tokens)):
            token, before = tokens[place], self._hash
            self._hash = (before * _BASE + token + 1) % _PRIME
            if place >= head:
                self._followers.setdefault(before, set()).add(token)
                self._hash = (self._hash - oldest * (tokens[place - head] + 1)) % _PRIME
        self._hashed = len(tokens)
        return self._followers.get(self._hash, ())

    def counts(self, tokens: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The tokens of ``tokens``, which begins with all that it had before, and how often each is there."""
        self._counts.update(tokens[self._read :])
        self._read = len(tokens)
        size = len(self._counts)
        return np.fromiter(self._counts, np.int64, size), np.fromiter(self._counts.values(), np.int64, size)


@dataclass(slots=True)
class LogitsRules:
    """The rules of one request. ``active``: whether any of them can change a row."""

    end_id: int
    bias: Row | None = None
    bad_words: Sequence[Sequence[int]] = ()
    ngram_size: int = 0
    min_tokens: int = 0
    #: Other tokens that end a text; as the end token, they may not come before ``min_tokens``.
    stop_ids: frozenset[int] = frozenset()
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    temperature: float = 1.0
    active: bool = field(init=False)
    #: Whether nothing but the temperature changes a row.
    only_temperature: bool = field(init=False)

    def __post_init__(self) -> None:
        self.only_temperature = not (
            self.bias is not None
            or bool(self.bad_words)
            or self.ngram_size > 0
            or self.min_tokens > 0
            or (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)
        )
        self.active = not self.only_temperature or self.temperature != 1.0

    @classmethod
    def of(cls, request: Request) -> "LogitsRules":
        """The rules that a request asks for."""
        config = request.sampling_config
        bias = request.embedding_bias
        return cls(
            end_id=-1 if request.end_id is None else request.end_id,
            bias=None if bias is None else _single(bias),
            bad_words=request.bad_words or (),
            ngram_size=config.no_repeat_ngram_size or 0,
            min_tokens=config.min_tokens or 0,
            repetition=_or(config.repetition_penalty, 1.0),
            presence=_or(config.presence_penalty, 0.0),
            frequency=_or(config.frequency_penalty, 0.0),
            # Temperature 0 means greedy search; the sampler sees to that, the scale stays.
            temperature=max(_or(config.temperature, 1.0) or 1.0, _COLDEST),
        )

    def apply(self, row: Row, tokens: Sequence[int], generated: int, seen: SeenTokens | None = None) -> None:
        """Change ``row`` in place; ``tokens`` is the whole history, its last ``generated`` tokens new. ``seen``: what
        has been counted of it; None: nothing."""
        with np.errstate(over="ignore"):  # what is too large for a number is infinite, which is enough
            if self.bias is not None:
                row += self.bias
            self._ban(row, tokens, generated, seen)
            if self.temperature != 1.0:
                row /= np.float32(self.temperature)
            if self.repetition != 1.0 or self.presence or self.frequency:
                self._penalise(row, *(seen or SeenTokens()).counts(tokens))
        if not self.only_temperature:  # a rule may say that a token must come, but infinity has no probability
            np.minimum(row, _LARGEST, out=row)

    def _ban(self, row: Row, tokens: Sequence[int], generated: int, seen: SeenTokens | None) -> None:
        banned = banned_by_words(tokens, self.bad_words) if self.bad_words else []
        if self.ngram_size:
            size = self.ngram_size
            banned += banned_by_ngrams(tokens, size) if seen is None else seen.banned_by_ngrams(tokens, size)
        if generated < self.min_tokens:
            banned += self.stop_ids
            if self.end_id >= 0:
                banned.append(self.end_id)
        if banned:
            row[[token for token in banned if token < len(row)]] = -np.inf

    def _penalise(self, row: Row, seen: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """All three count the prompt too, as TensorRT-LLM's do."""
        known = seen < len(row)  # tokens of a prompt table have no logit
        seen, counts = seen[known], counts[known]
        values = row[seen]
        values = np.where(values < 0, values * self.repetition, values / self.repetition)
        row[seen] = values - (self.presence + self.frequency * counts).astype(np.float32)


def _single(bias: npt.NDArray[Any]) -> Row:
    """In single precision; not infinite: else its sum with the logit of a token that may not come would be NaN."""
    with np.errstate(over="ignore"):
        return np.minimum(np.asarray(bias, np.float32), _LARGEST)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
