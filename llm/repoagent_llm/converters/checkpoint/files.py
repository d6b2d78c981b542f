"""The files of a checkpoint: which there are, which are missing, and whether they fit each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from repoagent.beneath import list_beneath, read_beneath
from repoagent.errors import InvalidArgumentError
from repoagent.nested_text import read_json

__all__ = ["CONFIG", "CheckpointFiles"]

CONFIG: Final = "config.json"
_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = ".safetensors"
_TOKENIZER: Final = "tokenizer.json"
_BESIDE: Final = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files that serving reads, as far as there are any."""
_ENCRYPTED: Final = ("age", "tink", "jwe")
"""Endings of files that ``decrypt`` takes."""
_LARGEST: Final = 1 << 26
"""Bytes of a file that is read whole."""


class CheckpointFiles:
    """One version directory with a checkpoint in it; ``label`` is what messages call it."""

    def __init__(self, directory: Path, label: str) -> None:
        """Find them.

        Raises:
            InvalidArgumentError: some are missing, or cannot be read.
        """
        self._directory = directory
        self._label = label
        self._names = set(list_beneath(directory))
        for name, what in ((CONFIG, "the model's configuration"), (_TOKENIZER, "a file of Hugging Face's tokenizers")):
            if name not in self._names:
                raise self._wrong(f"has no {name}, {what}: {self._reason(name, 'this is not a whole checkpoint')}")
        self.weights = self._weights()

    def _reason(self, name: str, otherwise: str) -> str:
        """Why there is no file whose name ends with ``name``."""
        endings = tuple(f"{name}.{ending}" for ending in _ENCRYPTED)
        encrypted = min((found for found in self._names if found.endswith(endings)), default=None)
        if encrypted is not None:
            return f"{encrypted[:100]} is encrypted; name the agent 'decrypt' before 'convert'"
        if (other := min((found for found in self._names if found.endswith(".gguf")), default=None)) is not None:
            return f"{other[:100]} is a GGUF file; take the checkpoint that it was made of"
        return otherwise

    @property
    def all(self) -> tuple[str, ...]:
        """Every file that matters."""
        index = [_INDEX] if _INDEX in self._names else []
        beside = [name for name in _BESIDE if name in self._names]
        return (CONFIG, *index, *self.weights, _TOKENIZER, *beside)

    def _weights(self) -> list[str]:
        if _INDEX not in self._names:
            found = sorted(name for name in self._names if name.endswith(_WEIGHTS))
            if not found:
                reason = self._reason(_WEIGHTS, "convert the weights to safetensors first")
                raise self._wrong(f"has no *{_WEIGHTS} file: {reason}")
            return found
        shards = self._json(_INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise self._wrong(f"{_INDEX} has no 'weight_map' of names")
        named = sorted(set(shards.values()))
        missing = [name for name in named if name not in self._names]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise self._wrong(
                f"{missing[0][:100]}{more} of {len(named)} files with weights is missing; {_INDEX} names it"
            )
        return named

    def check_tokenizer(self, vocab_size: int) -> None:
        """Make sure that the model knows every token.

        Raises:
            InvalidArgumentError: it does not.
        """
        largest = max(self._tokens(), default=-1)
        if largest >= vocab_size:
            raise self._wrong(
                f"{_TOKENIZER} has the token {largest}, but {CONFIG} has a vocab_size of {vocab_size}: they belong to "
                "different models"
            )

    def _tokens(self) -> Iterator[int]:
        tokenizer = self._json(_TOKENIZER)
        model = tokenizer.get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(vocabulary, dict):
            yield from (token for token in vocabulary.values() if type(token) is int)
        elif isinstance(vocabulary, list):  # Unigram has pairs, a token's place is its number.
            yield len(vocabulary) - 1
        for added in tokenizer.get("added_tokens") or ():
            if isinstance(added, dict) and type(added.get("id")) is int:
                yield added["id"]

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = read_json(read_beneath(self._directory, name, limit=_LARGEST))
        except (OSError, ValueError) as error:
            raise self._wrong(f"{name} cannot be read: {error}") from None
        if not isinstance(found, dict):
            raise self._wrong(f"{name} must be a JSON object")
        return found

    def check_size_of_config(self) -> None:
        """Refuse a configuration that nobody wrote, before it is read."""
        self._json(CONFIG)

    def _wrong(self, text: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._label}: {text}")
