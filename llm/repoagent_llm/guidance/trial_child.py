"""The program that compiles guides first: clients write them, and no limit of llguidance's bounds what that takes.

It imports nothing of this project. A line of JSON on its input has a guide, the line that answers it has the grammar of
llguidance, or why there is none. The first line sets limits of time and memory; what goes beyond ends the process, and
so does a compiler that calls itself too often.
"""

import json
import re
import resource
import signal
import sys
import threading
from typing import Any, Final

import llguidance
import numpy as np
from llguidance.gbnf_to_lark import any_to_lark

_STACK: Final = 4 << 20
"""Smaller than that of any thread that compiles after it."""
_COMPACT: Final[Any] = {"whitespace_flexible": False, "key_separator": ": ?", "item_separator": ", ?"}
"""White space that a model may write without end is none of the text: at most one blank after a colon or a comma."""
_LARGEST: Final = (1 << 53) - 1
"""Of the whole numbers that every reader of JSON knows exactly."""
_VALUES: Final = frozenset({"const", "default", "enum", "examples"})
_ENUMERATED: Final = frozenset({"const", "enum"})
_ASCII: Final = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[\t\n\v\f\r ]",
    "S": r"[^\t\n\v\f\r ]",
}
"""What the patterns of JSON schemas mean by these; elsewhere llguidance takes them for all of Unicode."""
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_EXPRESSION: Final = re.compile(r'("(?:\\.|[^"\\\n])*+"|//[^\n]*+|\#[^\n]*+)|/(?:\\.|[^/\\\n])++/', re.DOTALL)
"""Of a Lark grammar: what an expression may not begin in, and expressions."""

Object = dict[str, Any]


class _Bytes:
    """A vocabulary with a token for each byte: what takes forever does so with any."""

    eos_token_id = 0
    bos_token_id = None
    tokens = [b"<end>", *(bytes([byte]) for byte in range(256))]
    special_token_ids = [0]

    def __call__(self, text: bytes) -> list[int]:
        return [1 + byte for byte in text]


def _grammar(kind: str, guide: str) -> str:
    matcher = llguidance.LLMatcher
    match kind:
        case "JSON":
            return str(matcher.grammar_from_json_schema("{}", _COMPACT))
        case "JSON_SCHEMA":
            schema = _bounded(json.loads(guide))
            return str(matcher.grammar_from_json_schema(json.dumps(schema), _COMPACT))
        case "REGEX":
            return str(matcher.grammar_from_regex(_ascii(guide)))
        case "STRUCTURAL_TAG":
            return str(llguidance.grammar_from("lark", _tags(json.loads(guide))))
    # It looks at each of many empty lines as often as there are.
    lark = any_to_lark("\n".join(line for line in guide.split("\n") if line.strip()))
    return str(llguidance.grammar_from("lark", _EXPRESSION.sub(lambda found: found[1] or _ascii(found[0]), lark)))


def _bounded(schema: Any) -> Any:
    """The schema with bounds for whole numbers that have none: a model may write digits without end, too."""
    if isinstance(schema, list):
        return [_bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: item if name in _VALUES else _bounded(item) for name, item in schema.items()}
    if found.get("type") == "integer" and not _ENUMERATED & found.keys():
        for name, bound in (("minimum", -_LARGEST), ("maximum", _LARGEST)):
            if not {name, f"exclusive{name.capitalize()}"} & found.keys():
                found[name] = bound
        if found.get("minimum", 0) > _LARGEST or found.get("maximum", 0) < -_LARGEST:
            return schema
    return found


def _ascii(expression: str) -> str:
    return _ESCAPE.sub(lambda escape: _ASCII.get(escape[1], escape[0]), expression)


def _tags(description: Any) -> str:
    """Tags in TensorRT-LLM's form: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}."""
    tags = []
    for item in description["structures"]:
        trigger = next((text for text in description["triggers"] if item["begin"].startswith(text)), None)
        if trigger is None:
            raise ValueError(f"no trigger begins {item['begin']!r}")
        schema = item["schema"]
        if isinstance(schema, dict):
            schema = {**_bounded(schema), "x-guidance": {**_COMPACT, **schema.get("x-guidance", {})}}
        tags.append(llguidance.StructTag(trigger=trigger, begin=item["begin"], grammar=schema, end=item["end"]))
    return str(llguidance.StructTag.to_grammar(tags, assume_special=False))


class _Compiler:
    def __init__(self, setup: Object) -> None:
        self._seconds: float = setup["seconds"]
        self._limits = llguidance.LLParserLimits(**setup["limits"])
        resource.setrlimit(resource.RLIMIT_AS, (setup["memory"], setup["memory"]))
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=[0])

    def answer(self, asked: Object) -> Object:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)  # At its end the signal ends the process.
        try:
            return self._compiled(asked)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _compiled(self, asked: Object) -> Object:
        try:
            grammar = _grammar(asked["kind"], asked["guide"])
        except Exception as error:  # The converters raise what they like.
            return {"verb": "read", "reason": str(error)}
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if not matcher.is_error():
            words = np.zeros(9, np.int32)
            matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matcher.is_error():
            return {"verb": "compiled", "reason": matcher.get_error()[:1000]}
        return {"grammar": grammar}


def _main() -> None:
    lines = sys.stdin.buffer
    compiler = _Compiler(json.loads(lines.readline()))
    while line := lines.readline():
        sys.stdout.write(json.dumps(compiler.answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    threading.stack_size(_STACK)
    main = threading.Thread(target=_main)
    main.start()
    main.join()
