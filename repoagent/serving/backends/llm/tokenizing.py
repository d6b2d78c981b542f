"""From texts to tokens and back, with Hugging Face's ``tokenizers``."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import tokenizers

from repoagent.beneath import read_beneath
from repoagent.errors import InvalidArgumentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS, Limits

__all__ = ["TOKENIZER_NAME", "Tokenizer"]

TOKENIZER_NAME: Final = "tokenizer.json"


class Tokenizer:
    """A tokenizer file. May be used by many threads at once.

    ``add_special``: whether a prompt gets the special tokens that the file has for the beginning and the end of a text.
    ``skip_special``: whether special tokens are left out of texts.
    """

    def __init__(self, inner: Any, *, add_special: bool = True, skip_special: bool = True) -> None:
        # A file may say that texts are cut or filled up to some length: that is for training.
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._add_special = add_special
        self._skip_special = skip_special

    @classmethod
    def load(
        cls, folder: Path, *, add_special: bool = True, skip_special: bool = True, limits: Limits = DEFAULT_LIMITS
    ) -> "Tokenizer":
        """The tokenizer of a decoder folder.

        Raises:
            UnavailableError: there is no file.
            InvalidArgumentError: it cannot be read.
        """
        try:
            content = read_beneath(folder, TOKENIZER_NAME, limit=limits.text_file_bytes)
        except OSError as error:
            raise UnavailableError(
                f"unable to find '{folder.name}/{TOKENIZER_NAME}': put the model's tokenizer beside its decoder, as a "
                "file of Hugging Face's tokenizers"
            ) from error
        try:
            inner = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # The library raises no class of its own.
            raise InvalidArgumentError(f"'{folder.name}/{TOKENIZER_NAME}' is no tokenizer: {error}") from error
        return cls(inner, add_special=add_special, skip_special=skip_special)

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        ids: list[int] = self._inner.encode(text, add_special_tokens=self._add_special).ids
        return ids

    def words(self, texts: Iterable[str]) -> list[list[int]]:
        """The tokens of each text that has any, without special ones around it."""
        encoded = (self._inner.encode(text, add_special_tokens=False).ids for text in texts)
        return [ids for ids in encoded if ids]

    def longest_token(self) -> int:
        """The bytes of the longest name of a token, which is no shorter than its text."""
        known: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        return max((len(name.encode()) for name in known), default=1)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; ids that the file does not know stand for nothing."""
        text: str = self._inner.decode(tokens, skip_special_tokens=self._skip_special)
        return text

    def vocabulary(self, size: int) -> list[str]:
        """The file's names of the tokens by id, at most ``size``; empty where an id is not used."""
        known: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        names = [""] * min(size, 1 + max(known.values(), default=-1))
        for name, token in known.items():
            if token < len(names):
                names[token] = name
        return names

    def to_json(self) -> str:
        """The content of the file."""
        text: str = self._inner.to_str()
        return text
