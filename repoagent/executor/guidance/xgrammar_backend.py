"""Grammars by xgrammar."""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.executor.engine.guide import Guide
from repoagent.executor.guidance.masks import forbid, words_for, words_of
from repoagent.executor.guidance.refusals import refusal
from repoagent.executor.guidance.vocabulary import Vocabulary
from repoagent.executor.guidance.xgrammar_core import core
from repoagent.executor.guidance.xgrammar_schema import check_schema
from repoagent.executor.types.errors import CheckError
from repoagent.executor.types.guidance import GuidedDecodingParams

__all__ = ["XgrammarFactory"]

_Kind = GuidedDecodingParams.GuideType
_RAW: Final = 0  # the vocabulary is given as bytes
_CACHE_BYTES: Final = 256 << 20
_ROOT_RULE: Final = "root"
# In strings with a maxLength xgrammar 0.2.8 allows all characters but quotes, backslashes and line ends, so control
# characters too, which JSON forbids. Between values it would take a tab; line ends and spaces are left for that.
_CONTROL: Final = frozenset(range(0x20)) - frozenset(b"\r\n")


class XgrammarFactory:
    """See GuideFactory. Compiled grammars are kept for the next request with the same one."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # A token without text is never allowed, and special tokens stand for none.
        texts = [b"" if token in vocabulary.special_ids else text for token, text in enumerate(vocabulary.tokens)]
        self._size = len(texts)
        self.stop_ids = frozenset(vocabulary.stop_ids)
        self._json = words_of([_CONTROL.isdisjoint(text) for text in texts])
        tokenizer = core().TokenizerInfo(texts, _RAW, self._size, list(vocabulary.stop_ids), False)
        self._compiler = core().GrammarCompiler(tokenizer, min(8, os.cpu_count() or 1), True, _CACHE_BYTES)

    def create(self, params: GuidedDecodingParams) -> Guide:
        """See GuideFactory."""
        kind, guide = params.guide_type, params.guide or ""
        try:
            guide = _checked(kind, guide)
        except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise refusal(kind, "read", error) from error
        try:
            compiled = self._compile(kind, guide)
        except Exception as error:  # the core raises errors of its own for whatever it does not like
            raise refusal(kind, "compiled", error) from error
        matcher = core().GrammarMatcher(compiled, None, False, -1, None)
        only = self._json if kind in (_Kind.JSON, _Kind.JSON_SCHEMA) else None
        return _XgrammarGuide(matcher, self._size, self.stop_ids, only)

    def _compile(self, kind: GuidedDecodingParams.GuideType, guide: str) -> Any:
        match kind:
            case _Kind.JSON:
                return self._compiler.compile_builtin_json_grammar()
            case _Kind.JSON_SCHEMA:
                # White space anywhere, no indentation, and only the properties that the schema names: its own defaults.
                return self._compiler.compile_json_schema(guide, True, None, None, True, None, False)
            case _Kind.REGEX:
                return self._compiler.compile_regex(guide)
            case _Kind.EBNF_GRAMMAR:
                return self._compiler.compile_grammar_from_strings(guide, _ROOT_RULE)
            case _Kind.STRUCTURAL_TAG:
                return self._compiler.compile_structural_tag(guide)


class _XgrammarGuide:
    """See Guide. ``only``: tokens that may come at all, None for every one."""

    def __init__(
        self, matcher: Any, vocab_size: int, stop_ids: frozenset[int], only: npt.NDArray[np.int32] | None
    ) -> None:
        self._matcher = matcher
        self._only = only
        self._words = words_for(vocab_size)
        self._vocab_size = vocab_size
        self._stop_ids = stop_ids

    def mask(self, row: npt.NDArray[np.float32]) -> None:
        limited = self._matcher.fill_next_token_bitmask(self._words, 0, False)
        if self._only is not None:
            self._words &= self._only
            limited = True
        if limited:
            forbid(row, self._words)

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token, False):
            raise CheckError(f"the grammar does not allow token {token} here")

    def is_end(self, token: int) -> bool:
        return token in self._stop_ids

    def fork(self) -> "_XgrammarGuide":
        return _XgrammarGuide(self._matcher.fork(), self._vocab_size, self._stop_ids, self._only)


def _checked(kind: GuidedDecodingParams.GuideType, guide: str) -> str:
    """The guide as the core takes it; raises for what the core would leave out without a word."""
    if kind is _Kind.JSON_SCHEMA:
        check_schema(json.loads(guide))
    elif kind is _Kind.STRUCTURAL_TAG:
        description = _tags(json.loads(guide))
        for schema in _schemas(description):
            check_schema(schema)
        return json.dumps(description)
    return guide


def _schemas(part: Any) -> Iterator[Any]:
    """Every JSON schema inside a structural tag."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "json_schema":
                yield value
            else:
                yield from _schemas(value)
    elif isinstance(part, list):
        for value in part:
            yield from _schemas(value)


def _tags(description: dict[str, Any]) -> dict[str, Any]:
    """A structural tag in xgrammar's present form. The earlier one has "structures" and "triggers" at the top."""
    if "structures" not in description:
        return description
    structures: Sequence[dict[str, Any]] = description["structures"]
    triggers: Sequence[str] = description["triggers"]
    for item in structures:
        if not any(item["begin"].startswith(trigger) for trigger in triggers):
            raise ValueError(f"no trigger begins {item['begin']!r}")
    tags = [
        {"begin": item["begin"], "content": {"type": "json_schema", "json_schema": item["schema"]}, "end": item["end"]}
        for item in structures
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}
