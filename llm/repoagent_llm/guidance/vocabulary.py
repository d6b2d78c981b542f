"""Vocabulary: the bytes of every token, from the texts that a tokenizer file uses for them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from repoagent.nested_text import read_json
from repoagent_llm.types.executor_errors import CheckError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``tokens[i]``: the bytes of token i. Special tokens stand for no text."""

    tokens: list[bytes]
    stop_ids: tuple[int, ...]
    special_ids: frozenset[int]

    @classmethod
    def of(
        cls, encoded: Sequence[str], tokenizer: str | None, stop_ids: Sequence[int], vocab_size: int
    ) -> "Vocabulary":
        """Decode ``encoded`` as the tokenizer's JSON states: byte-level, byte fallback, or plain text without one.

        The list may be shorter than the model's vocabulary; the rest are tokens without text.
        """
        if len(encoded) > vocab_size:
            raise CheckError(
                f"GuidedDecodingConfig.encoded_vocab has {len(encoded)} tokens, the model's vocabulary {vocab_size}"
            )
        if not stop_ids:
            raise CheckError("GuidedDecodingConfig.stop_token_ids is needed: the model's folder names no end token")
        if any(not 0 <= token < vocab_size for token in stop_ids):
            raise CheckError(f"GuidedDecodingConfig.stop_token_ids {list(stop_ids)} are not all in the vocabulary")
        description = _parse(tokenizer)
        decode = _decoder(description)
        special = {item["id"] for item in description.get("added_tokens", ()) if item.get("special")}
        special |= set(stop_ids) | set(range(len(encoded), vocab_size))
        tokens = [decode(text) for text in encoded] + [b""] * (vocab_size - len(encoded))
        return cls(tokens, tuple(stop_ids), frozenset(special))


def token_bytes(encoded: Sequence[str], tokenizer: str) -> list[bytes]:
    """The bytes of every token; those of its name for a special one."""
    description = _parse(tokenizer)
    decode = _decoder(description)
    plain = {item["content"] for item in description.get("added_tokens", ())}
    return [text.encode() if text in plain else decode(text) for text in encoded]


def _parse(tokenizer: str | None) -> dict[str, Any]:
    if tokenizer is None:
        return {}
    try:
        description = read_json(tokenizer)
    except ValueError as error:
        raise CheckError(f"GuidedDecodingConfig.tokenizer_str is not a tokenizer's JSON: {error}") from error
    if not isinstance(description, dict):
        raise CheckError("GuidedDecodingConfig.tokenizer_str is not a tokenizer's JSON: no object")
    return description


def _decoder(description: dict[str, Any]) -> Any:
    parts = json.dumps([description.get("decoder"), description.get("pre_tokenizer")])
    if '"ByteLevel"' in parts:
        return _byte_level
    if '"ByteFallback"' in parts or description.get("model", {}).get("byte_fallback"):
        return _byte_fallback
    return str.encode


def _byte_level(text: str) -> bytes:
    """GPT-2's way: every byte is one printable character. Tokens added later are plain text."""
    table = _byte_characters()
    if all(character in table for character in text):
        return bytes(table[character] for character in text)
    return text.encode()


def _byte_fallback(text: str) -> bytes:
    """SentencePiece's way: a low line stands for a space, ``<0x0A>`` for a byte."""
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else text.replace("\u2581", " ").encode()


@cache
def _byte_characters() -> dict[str, int]:
    """Printable Latin-1 characters stand for themselves, the other bytes for characters from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table, extra = {}, 256
    for byte in range(256):
        if byte in printable:
            table[chr(byte)] = byte
        else:
            table[chr(extra)] = byte
            extra += 1
    return table
