"""What the texts of one request may cost: looked at before anything is made of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from repoagent.errors import InvalidArgumentError, PromptTooLongError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent_llm.types.executor_errors import shown

_ALWAYS: Final = 1 << 16
"""Bytes of a prompt that are read whatever the tokens of the model are: some texts, such as spaces, have no tokens."""
_LENGTHS: Final = 16
"""How many times as often a character may be repeated as anything else: lengths of strings are cheap."""
# Possessive: else a client's brace before many spaces takes the square of their number.
_REPEATED: Final = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?\}")
_COUNTED: Final = re.compile(r'"(?:min|max)(Items|Length|Properties|Contains)"\s*:\s*([\d.eE+]+)')
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one model. Each method raises ``InvalidArgumentError``, which states limit and value."""

    limits: Limits = DEFAULT_LIMITS
    tokens: int = 1 << 31
    """What a sequence may hold."""
    longest_token: int = 1
    """In bytes."""

    def check_conversation(self, name: str, text: str) -> None:
        """``text``: JSON that becomes a prompt, or a part of one."""
        self._check(name, _bytes_of(name, text), "bytes", "prompt_bytes")

    def check_prompt(self, text: str) -> None:
        """A prompt of more bytes than so many tokens can stand for need not be cut into tokens to be refused."""
        size = _bytes_of("the prompt", text)
        most = max(_ALWAYS, self.tokens * self.longest_token)
        if size > most:
            raise PromptTooLongError(
                f"the prompt has {size} bytes, and the model takes at most {most}: max_seq_len ({self.tokens}) tokens "
                f"of at most {self.longest_token} bytes"
            )
        self._check("the prompt", size, "bytes", "prompt_bytes")

    def check_tokens(self, tokens: Sequence[Any]) -> None:
        """``tokens``: a prompt that needs no tokenizer."""
        if len(tokens) >= self.tokens:
            raise PromptTooLongError(
                f"the prompt has {len(tokens)} tokens, and the model takes at most {self.tokens - 1} (max_seq_len - 1)"
            )

    def check_words(self, name: str, texts: Sequence[str]) -> None:
        """``texts``: one list of words."""
        self.check_count(name, len(texts))
        self._check(name, sum(_bytes_of(name, text) for text in texts), "bytes", "word_bytes")

    def check_count(self, name: str, count: int) -> None:
        """``count``: the elements of one list."""
        self._check(name, count, "elements", "words")

    def check_parameters(self, text: str) -> None:
        """``text``: sampling_parameters."""
        self._check("sampling_parameters", len(text), "characters", "word_bytes")

    def check_log_probs(self, count: int) -> None:
        """``count``: of all prompts of a request. Each takes a hundred bytes and more, several times over."""
        self._check("the answer", count, "log-probabilities of prompts", "log_probs")

    def check_logits(self, size: int) -> None:
        """``size``: bytes of all logits that a request wants."""
        self._check("the answer", size, "bytes of logits", "tensor_bytes")

    def check_guide(self, guide: str) -> None:
        """A guide can be small and yet take forever: ``a{1000000000}``."""
        name = "guided_decoding_guide"
        self._check(name, _bytes_of(name, guide), "bytes", "guide_bytes")
        guide = _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), guide)  # JSON can spell names and braces so.
        for match in _REPEATED.finditer(guide):
            for number in match.groups(""):
                self._check_repeats(number, 1)
        for kind, number in _COUNTED.findall(guide):
            self._check_repeats(number, _LENGTHS if kind == "Length" else 1)

    def _check_repeats(self, number: str, times: int) -> None:
        most = times * self.limits.guide_repetitions
        try:
            fits = not number or float(number) <= most  # a text of digits is soon infinite
        except ValueError:
            return  # such as 1.2.3, which its reader refuses
        if not fits:
            raise InvalidArgumentError(
                f"guided_decoding_guide: {shown(number)} repetitions are more than {most}; "
                f"{Limits.flag('guide_repetitions')} of the server sets the limit"
            )

    def _check(self, what: str, size: int, unit: str, limit: str) -> None:
        most = getattr(self.limits, limit)
        if size > most:
            raise InvalidArgumentError(
                f"{what} has {size} {unit}, more than {most}; {Limits.flag(limit)} of the server sets the limit"
            )


DEFAULT_REQUEST_LIMITS: Final = RequestLimits()
"""Those of a server that sets none, for a model of any size."""


def _bytes_of(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:  # half a surrogate pair, which JSON can spell
        raise InvalidArgumentError(f"{name} has a character that is not valid: {error.reason}") from None


def weight(arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
    """How many bytes of text there are, roughly: enough to decide which thread looks at them."""
    total = sum(len(value) for value in parameters.values() if isinstance(value, str))
    for array in arrays.values():
        if array.dtype.kind in "OSU":
            total += sum(map(len, array.ravel()[:_ALWAYS].tolist())) + array.size
    return total
