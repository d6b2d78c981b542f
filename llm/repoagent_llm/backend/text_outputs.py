"""The texts of one sequence of a request: one, or its beams; and what has come with them."""

from collections.abc import Callable, Sequence

import numpy as np

from repoagent.serving.requests.tensor import Array
from repoagent_llm import FinishReason, Result
from repoagent_llm.backend.tokenizing import Detokenizer


class StopWords:
    """Finds the first of ``words`` in a text that comes in pieces.

    The executor looks for their tokens; but a text may have a word in other tokens than the word has by itself.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._reach = max(map(len, words), default=1) - 1
        self._before = ""
        """The end of the earlier pieces, in which a word may have begun."""

    def cut(self, piece: str) -> tuple[str, bool]:
        """``piece`` up to the end of the first word that ends in it, and whether there is one."""
        if not self._words:
            return piece, False
        text = self._before + piece
        known = len(self._before)
        ends = [  # A word that ends in the earlier pieces was found there: each is looked for where it may end now.
            place + len(word) for word in self._words if (place := text.find(word, max(0, known - len(word) + 1))) >= 0
        ]
        if ends:
            return text[len(self._before) : min(ends)], True
        self._before = text[len(text) - self._reach :] if self._reach else ""
        return piece, False


class TextOutput:
    """One text, and what has come with it since it was last sent."""

    def __init__(self, detokenizer: Detokenizer, stop_words: StopWords) -> None:
        self._detokenizer = detokenizer
        self._stop_words = stop_words
        self._pieces: list[str] = []
        self.tokens = 0
        self.log_probs: list[float] = []
        self.token_ids: list[int] = []
        self.alternatives: list[list[tuple[int, float]]] = []
        """For each token the likeliest ones, if they are wanted."""
        self.reason = FinishReason.NOT_FINISHED
        self.last: int | None = None
        """The last token of a text that the executor has ended at a word."""

    @property
    def text(self) -> str:
        """Joined where it is wanted: each piece would copy all before it."""
        return "".join(self._pieces)

    def add(self, tokens: Sequence[int], reason: FinishReason) -> None:
        """Take new tokens; the text ends here if one of its words does."""
        ended = reason is not FinishReason.NOT_FINISHED
        piece, stopped = self._stop_words.cut(self._detokenizer.feed(tokens, final=ended))
        if piece:
            self._pieces.append(piece)
        self.tokens += len(tokens)
        self.reason = FinishReason.STOP_WORDS if stopped and not ended else reason
        self.last = tokens[-1] if reason is FinishReason.STOP_WORDS and tokens else None

    def add_log_probs(
        self, tokens: Sequence[int], log_probs: Sequence[float], alternatives: Sequence[list[tuple[int, float]]]
    ) -> None:
        """Take what has come with new tokens."""
        if alternatives:
            self.token_ids += tokens
            self.alternatives += alternatives
        self.log_probs += log_probs

    def forget(self) -> None:
        """What there is has been sent."""
        self._pieces, self.tokens, self.log_probs, self.token_ids, self.alternatives = [], 0, [], [], []


class TextOutputs:
    """The texts of a sequence, as its results come: ``whole`` each time, as beams do, which change their past, or what
    is new of the one that there is."""

    def __init__(self, make: Callable[[], TextOutput], *, whole: bool) -> None:
        self._make = make
        self._whole = whole
        self._logits: list[Array] = []
        self.texts: list[TextOutput] = []
        self.begun = False
        """Whether anything has been sent."""
        self.done = False

    def add(self, result: Result) -> None:
        """Take what ``result`` brings."""
        if self._whole or not self.texts:
            self.texts = [self._make() for _ in result.output_token_ids]
        log_probs = result.log_probs or [[] for _ in self.texts]
        alternatives = vars(result).get("top_log_probs") or [[] for _ in self.texts]
        for output, tokens, row, reason, others in zip(
            self.texts, result.output_token_ids, log_probs, result.finish_reasons, alternatives, strict=True
        ):
            output.add(tokens, reason)
            output.add_log_probs(tokens, row, others)
        ended = all(output.reason is not FinishReason.NOT_FINISHED for output in self.texts)
        self.done = result.is_final if self._whole else ended
        if result.generation_logits is not None:
            self._logits.append(result.generation_logits)

    def add_tokens(self, tokens: Sequence[int], reason: FinishReason) -> TextOutput:
        """The same for new tokens of the one text, which come alone; returns that."""
        if not self.texts:
            self.texts = [self._make()]
        output = self.texts[0]
        output.add(tokens, reason)
        self.done = output.reason is not FinishReason.NOT_FINISHED
        return output

    @property
    def tokens(self) -> int:
        """How many there are that have not been sent."""
        return sum(output.tokens for output in self.texts)

    def log_probs(self) -> Array:
        """[texts, tokens]; shorter rows end in zeros."""
        rows = [output.log_probs for output in self.texts]
        array = np.zeros((len(rows), max(map(len, rows))), np.float32)
        for target, row in zip(array, rows, strict=True):
            target[: len(row)] = row
        return array

    def logits(self, axis: int) -> Array:
        """Those of the tokens, which are along ``axis``; there must be some."""
        return self._logits[-1] if self._whole else np.concatenate(self._logits, axis)

    def forget(self) -> None:
        """What there is has been sent."""
        self.begun = True
        self._logits.clear()
        for output in self.texts:
            output.forget()
