"""The tokenizer of a GGUF file as a tokenizer.json, with the chat template beside it."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent_llm.builder.gguf import GgufFile
from repoagent_llm.types.executor_errors import UnsupportedFeatureError, shown

_KEY: Final = "tokenizer.ggml."
_TEMPLATE: Final = "tokenizer.chat_template"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6
"""Kinds of tokens."""
_LONGEST: Final = 1024
_MOST_SPLITS: Final = 1 << 26
"""Characters of all halves of all tokens together; 256,000 tokens have some ten millions."""
_SPACE: Final = "\u2581"
_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CASED_WORDS: Final = (
    f"{_UPPER}*{_LOWER}+{_ENDING}|{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""A word ends where small letters are followed by a capital one, as in tiktoken's o200k_base. llama.cpp is the same but
for letters and marks outside of ASCII, whose case it does not know."""
_GPT2: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES: Final = {**_GPT2, "use_regex": False}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _sequence(split, _BYTES)


_WORDS_OF: Final[Mapping[str, dict[str, Any]]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"), _split(_WORDS % "{1,3}")),
    **dict.fromkeys(("qwen2", "stablelm2"), _split(_WORDS % "")),
    "gpt-4o": _split(_CASED_WORDS),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo"), _GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"),
        _sequence({"type": "Digits", "individual_digits": True}, _GPT2),
    ),
}
"""How a text is cut into words before pairs are merged, by ``tokenizer.ggml.pre``."""
_WHOLE_WORDS: Final = ("llama-bpe", "llama3", "llama-v3")
"""Those with which a word that is a token is not put together from pairs; they begin a text with the token for it."""


class GgufTokenizer:
    """What the keys ``tokenizer.ggml...`` of a file hold."""

    def __init__(self, file: GgufFile) -> None:
        self._values = file.values
        self._place = str(file.path)
        self._tokens = self._texts("tokens")
        self._kinds = self._numbers("token_type", "iu") or [_NORMAL] * len(self._tokens)

    def files(self, vocab_size: int) -> dict[str, str]:
        """Contents by name; raises for a tokenizer that is damaged, is not known, or is of another model."""
        if not self._tokens:
            raise self._wrong("tokens", "is missing: the file has no tokenizer")
        if len(self._tokens) > vocab_size:
            raise self._wrong("tokens", f"has {len(self._tokens)} tokens, but the model has {vocab_size}")
        files = {
            "tokenizer.json": json.dumps(self._tokenizer(), ensure_ascii=False),
            "tokenizer_config.json": json.dumps(self._settings(), indent=2),
        }
        if (template := self._values.get(_TEMPLATE)) is not None:
            if not isinstance(template, str):
                raise InvalidArgumentError(
                    f"{self._place}: the key '{_TEMPLATE}' must be a text, not {shown(template)}"
                )
            files["chat_template.jinja"] = template
        return files

    def _settings(self) -> dict[str, Any]:
        names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
        found = {f"{short}_token": self._named(f"{name}_token_id") for name, short in names.items()}
        return {name: text for name, text in found.items() if text is not None}

    def _tokenizer(self) -> dict[str, Any]:
        vocabulary = {token: number for number, token in enumerate(self._tokens)}
        if len(vocabulary) < len(self._tokens):
            raise self._wrong("tokens", "has a token twice")
        model = self._values.get(f"{_KEY}model")
        if isinstance(model, str) and model == "gpt2":  # a comparison with an array is an array
            made, begins = self._byte_level(vocabulary)
        elif isinstance(model, str) and model == "llama":
            made, begins = self._sentence_piece(vocabulary), True
        else:
            raise UnsupportedFeatureError(f"{self._place}: the tokenizer {shown(model)}", "read are gpt2 and llama")
        added = [self._added(number, kind) for number, kind in enumerate(self._kinds) if kind in (_CONTROL, _USER)]
        around = self._around(begins)
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **around, **made}

    def _added(self, number: int, kind: int) -> dict[str, Any]:
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return {"id": number, "content": self._tokens[number], **plain, "special": kind == _CONTROL}

    def _around(self, begins: bool) -> dict[str, Any]:
        """Tokens that stand before and behind each text."""
        first = self._named("bos_token_id") if self._truth("add_bos_token", begins) else None
        last = self._named("eos_token_id") if self._truth("add_eos_token", False) else None
        if first is None and last is None:
            return {"post_processor": None}
        special = {
            text: {"id": text, "ids": [self._tokens.index(text)], "tokens": [text]} for text in (first, last) if text
        }

        def template(name: str, number: int) -> list[dict[str, Any]]:
            texts = [{"SpecialToken": {"id": text, "type_id": number}} if text else None for text in (first, last)]
            return [one for one in (texts[0], {"Sequence": {"id": name, "type_id": number}}, texts[1]) if one]

        single, pair = template("A", 0), template("A", 0) + template("B", 1)
        return {
            "post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
        }

    def _byte_level(self, vocabulary: Mapping[str, int]) -> tuple[dict[str, Any], bool]:
        """Pairs of bytes, as of GPT-2."""
        words = self._values.get(f"{_KEY}pre")
        if not isinstance(words, str) or words not in _WORDS_OF:
            known = ", ".join(_WORDS_OF)
            raise UnsupportedFeatureError(f"{self._place}: {_KEY}pre {shown(words)}", f"read are {known}")
        merges = [merge.partition(" ")[::2] if merge[:1] != " " else ("", "") for merge in self._texts("merges")]
        for first, second in merges:
            if not (first in vocabulary and second in vocabulary and first + second in vocabulary):
                raise self._wrong("merges", f"has a pair that is not of tokens: {shown(f'{first} {second}')}")
        model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": words in _WHOLE_WORDS}
        normalizer = {"type": "NFC"} if words == "qwen2" else None
        parts = {"normalizer": normalizer, "pre_tokenizer": _WORDS_OF[words], "decoder": _BYTES, "model": model}
        return parts, words in _WHOLE_WORDS

    def _sentence_piece(self, vocabulary: Mapping[str, int]) -> dict[str, Any]:
        """SentencePiece of the kind BPE: of two neighbours those are merged first whose token has the highest score."""
        scores = self._numbers("scores", "f")
        if not scores or not all(map(math.isfinite, scores)):
            raise self._wrong("scores", f"must be {len(self._tokens)} numbers, all of them finite")
        spaced = self._truth("add_space_prefix", True)
        replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        before = [{"type": "Prepend", "prepend": _SPACE}] if spaced else []
        decoders: list[dict[str, Any]] = [
            {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if spaced:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        model = {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": self._merges(scores, vocabulary),
            "unk_token": self._named("unknown_token_id"),
            "fuse_unk": True,
            "byte_fallback": self._kinds.count(_BYTE) == 256,
        }
        return {
            "normalizer": {"type": "Sequence", "normalizers": [*before, replaced]},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": model,
        }

    def _merges(self, scores: Sequence[float], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
        normal = {token: number for token, number in vocabulary.items() if self._kinds[number] == _NORMAL}
        if any(len(token) > _LONGEST for token in normal) or sum(len(token) ** 2 for token in normal) > _MOST_SPLITS:
            raise self._wrong("tokens", f"has tokens of more than {_LONGEST} characters, or too many long ones")
        found: list[tuple[str, str]] = []
        for token in sorted(normal, key=lambda token: -scores[normal[token]]):
            halves = ((normal.get(token[:place]), normal.get(token[place:])) for place in range(1, len(token)))
            pairs = sorted((a, b) for a, b in halves if a is not None and b is not None)
            found += [(self._tokens[a], self._tokens[b]) for a, b in pairs]
        return found

    def _texts(self, name: str) -> list[str]:
        found = self._values.get(f"{_KEY}{name}", [])
        if not isinstance(found, list):
            raise self._wrong(name, "must be an array of texts")
        return found

    def _numbers(self, name: str, kinds: str) -> list[Any]:
        found = self._values.get(f"{_KEY}{name}")
        if found is None:
            return []
        if getattr(getattr(found, "dtype", None), "kind", "") not in tuple(kinds) or len(found) != len(self._tokens):
            raise self._wrong(name, f"must be an array of {len(self._tokens)} numbers, one for each token")
        return list(found.tolist())

    def _truth(self, name: str, default: bool) -> bool:
        found = self._values.get(f"{_KEY}{name}", default)
        if type(found) is not bool:
            raise self._wrong(name, f"must be true or false, not {shown(found)}")
        return found

    def _named(self, name: str) -> str | None:
        """The token whose number a key has."""
        found = self._values.get(f"{_KEY}{name}")
        if found is None:
            return None
        if type(found) is not int or not 0 <= found < len(self._tokens):
            raise self._wrong(name, f"must be the number of a token below {len(self._tokens)}, not {shown(found)}")
        return self._tokens[found]

    def _wrong(self, name: str, text: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._place}: the key '{_KEY}{name}' {text}")
