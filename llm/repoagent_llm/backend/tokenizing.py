"""From texts to tokens and back, with Hugging Face's ``tokenizers``."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import tokenizers

from repoagent.beneath.opening import open_beneath, read_up_to
from repoagent.errors import InternalError, InvalidArgumentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent_llm.guidance.vocabulary import token_bytes

_UNKNOWN: Final = "\ufffd"
_LARGEST: Final = 3
"""Bytes of a character that lacks its last one: a tokenizer shows each of them as unknown, or all as one."""


TOKENIZER_NAME: Final = "tokenizer.json"
_PANIC: Final = "PanicException"
"""Libraries in Rust raise it. It is no ``Exception``: uncaught it ends the thread that all requests of a model need."""
_MOST_TEXTS: Final = 1 << 16
_FEW: Final = 64
"""Tokens whose text is made sooner than other threads could be let run."""


class Tokenizer:
    """A tokenizer file. May be used by many threads at once.

    ``add_special``: whether a prompt gets the special tokens that the file has for the beginning and the end of a text.
    ``skip_special``: whether special tokens are left out of texts.
    """

    def __init__(self, inner: Any, *, add_special: bool = True, skip_special: bool = True) -> None:
        # A file may state that texts are cut or filled up to some length: that is for training.
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._add_special = add_special
        self._skip_special = skip_special
        self._texts: dict[int, str] = {}
        decoder = b"" if inner.decoder is None else inner.decoder.__getstate__()
        self._decodes_slowly = b"Regex" in decoder
        self._joins_texts = decoder.startswith((b'{"type":"ByteLevel"', b'{"type":"Fuse"'))

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
            with open_beneath(folder, TOKENIZER_NAME) as file:
                content = read_up_to(file, limits.tokenizer_bytes + 1)
        except OSError as error:
            raise UnavailableError(
                f"unable to find '{folder.name}/{TOKENIZER_NAME}': put the model's tokenizer beside its decoder, as a "
                "file of Hugging Face's tokenizers"
            ) from error
        if len(content) > limits.tokenizer_bytes:
            raise InvalidArgumentError(
                f"'{folder.name}/{TOKENIZER_NAME}' has more than {limits.tokenizer_bytes} bytes; "
                f"{Limits.flag('tokenizer_bytes')} of the server sets the limit"
            )
        try:
            with _PANICS:
                inner = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # The library raises no class of its own.
            raise InvalidArgumentError(f"'{folder.name}/{TOKENIZER_NAME}' is not a tokenizer: {error}") from error
        return cls(inner, add_special=add_special, skip_special=skip_special)

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt.

        Raises:
            InternalError: the library failed.
        """
        return self._encode(text, special=self._add_special)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        """As a batch, for the library lets other threads run only then: patterns of the file may take any time."""
        with _PANICS:
            (encoding,) = self._inner.encode_batch([text], add_special_tokens=special)
        ids: list[int] = encoding.ids
        return ids

    def encode_whole(self, text: str) -> list[int]:
        """The tokens of a text that has all of its special tokens itself, as chat templates make it."""
        return self._encode(text, special=False)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token's text; those of the name of a special one."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    @cached_property
    def _bytes(self) -> list[bytes]:
        return token_bytes(self.vocabulary(1 << 31), self.to_json())

    def words(self, texts: Iterable[str]) -> list[list[int]]:
        """The tokens of each text that has any, without special ones around it."""
        encoded = (self._encode(text, special=False) for text in texts)
        return [ids for ids in encoded if ids]

    def longest_token(self) -> int:
        """The bytes of the longest name of a token, which is no shorter than its text."""
        known: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        return max((len(name.encode()) for name in known), default=1)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; ids that the file does not know stand for nothing."""
        with _PANICS:
            if len(tokens) <= _FEW and not self._decodes_slowly:
                return str(self._inner.decode(tokens, skip_special_tokens=self._skip_special))
            (text,) = self._inner.decode_batch([tokens], skip_special_tokens=self._skip_special)
            return str(text)

    def decode_one(self, token: int) -> str:
        """The text of one token by itself; that of common tokens is kept."""
        text = self._texts.get(token)
        if text is None:
            text = self.decode((token,))
            if len(self._texts) < _MOST_TEXTS:
                self._texts[token] = text
        return text

    def whole_text(self, token: int) -> str | None:
        """What one token adds to a text that ends with a whole character; None if that depends on its neighbours."""
        if not self._joins_texts:
            return None  # a space may go or come before it
        text = self.decode_one(token)
        return None if _UNKNOWN in text else text

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


class _Panics:
    """A block in which the library may panic. Entered for every token, so it is no generator."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and type(error).__name__ == _PANIC:
            raise InternalError(f"the model's tokenizer failed: {error}") from None


_PANICS: Final = _Panics()


_BEFORE: Final = 64
"""Tokens of a prompt that are read with the first new ones: all of a long one would take a while with each."""
_WAITS: Final = 16
"""Tokens that wait for others. More are bytes that are never a character, and would be read again with each new one."""
_KEPT: Final = 8
"""Those that are kept then, as of tokens without a text: a character has four bytes at most."""


class Detokenizer:
    """The text of one sequence behind its prompt.

    The last tokens are decoded again with each new one, and what the text grew by is new: by itself a token does not
    know whether its text begins with a space. Where the text ends in the middle of a character, its end waits until
    the character is complete or can never be.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-_BEFORE:])
        self._known: str | None = None
        """The text of the tokens that are only there to be read with new ones; None: that of the prompt."""
        self._new = len(self._tokens)
        """Where the tokens begin that have not been returned, or only in part. Those before them are known."""
        self._silent = self._new
        """Where those of them begin that have no text."""
        self._fresh = True
        """Whether nothing has come yet."""
        self._told = 0
        """Characters behind what is known that have been returned."""

    def feed(self, tokens: Sequence[int], *, final: bool = False) -> str:
        """The text that more tokens add; at the end also what still waits."""
        if len(tokens) < 2 and self._new == len(self._tokens):  # nothing waits
            text = self._tokenizer.whole_text(tokens[0]) if tokens else ""
            if text is not None:
                self._begin_with(tokens, text)
                return text
        whole, self._fresh = final and self._fresh, False
        if len(tokens) < 2 or whole or _UNKNOWN not in self._tokenizer.decode([*self._tokens, *tokens]):
            return self._feed(tokens, final=final)
        # One by one: a whole character together with a part of the next one may look as if both were broken.
        pieces = [self._feed((token,), final=False) for token in tokens[:-1]]
        return "".join(pieces) + self._feed(tokens[-1:], final=final)

    def _begin_with(self, tokens: Sequence[int], text: str) -> None:
        """What comes next is read with ``tokens``, which need nothing before them, or with what there is."""
        if tokens:
            self._fresh, self._tokens, self._known, self._new = False, list(tokens), text, len(tokens)
            self._silent = self._new

    def _feed(self, tokens: Sequence[int], *, final: bool) -> str:
        self._tokens += tokens
        text = self._grown()
        ready = len(text) if final else len(text) - _waiting(text)
        piece = text[self._told : ready]
        self._told = max(self._told, ready)
        if ready == len(text):
            self._move_on(text)
        elif len(self._tokens) - self._new > _WAITS:
            self._cut(text)
        return piece

    def _cut(self, text: str) -> None:
        """Keep the last tokens, if their text by itself is the end of ``text``."""
        tokens, left = self._tokens[-_KEPT:], len(text) - self._told
        end = self._tokenizer.decode(tokens)
        if left <= len(end) and text.endswith(end):
            self._tokens, self._known, self._new, self._told = tokens, "", 0, len(end) - left

    def _grown(self) -> str:
        text = self._tokenizer.decode(self._tokens)
        if self._known is None:
            self._known = self._tokenizer.decode(self._tokens[: self._new])
        known = self._known
        # A prompt that ends with a part of a character would take the bytes that follow it into the same sign.
        if text.startswith(known) and not known.endswith(_UNKNOWN):
            return text[len(known) :]
        # Bytes that fit nowhere spoil the character before them, which has been returned: they are read by themselves.
        return self._tokenizer.decode(self._tokens[self._new :])

    def _move_on(self, text: str) -> None:
        """All is returned. What had a text is what the next tokens are read with; before it nothing is needed."""
        if text:
            del self._tokens[: self._new]
            one = len(self._tokens) == 1
            self._known = self._tokenizer.decode_one(self._tokens[0]) if one else self._tokenizer.decode(self._tokens)
            self._silent = len(self._tokens)
        del self._tokens[self._silent + _KEPT :]
        self._new = len(self._tokens)
        self._told = 0


def _waiting(text: str) -> int:
    """How many characters at the end of ``text`` may become others."""
    return min(_LARGEST, len(text) - len(text.rstrip(_UNKNOWN)))
