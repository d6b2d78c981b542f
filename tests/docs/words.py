"""What the style section of CONTRIBUTING.md rules out, counted in a page.

``python tests/docs/words.py`` prints every place; with pages as arguments, those of these pages. Of a Python module it
counts the texts of errors, logs and flags, and the words of docstrings and comments.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

LONGEST_SENTENCE: Final = 30
LONGEST_PARAGRAPH: Final = 80
LONGEST_LINE: Final = 100

_DIALECT: Final = re.compile(
    r"\b(anew|lest|in vain|for ever|seldom|whoever|whosoever|nobody|somebody|(?:is|are|was|were|be) told|tells?"
    r"|says?|said|(?<!there )(?:is|are) no (?:json|model|number|text|file|tensor|integer|directory|name|list|object"
    r"|path|key|certificate|tokenizer|whole|regular|valid))\b",
    re.IGNORECASE,
)
_FENCE: Final = re.compile(r"^ *```.*?^ *```$|^(?: {4}|\t)[^\n]*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"``[^`]+``|`[^`]+`")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM: Final = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+|^>\s?")
_END: Final = re.compile(r"(?<=[.!?:;])[)\"'*_]*\s+(?=[A-Z0-9(\"'*_`\[])")


class Fault(NamedTuple):
    """One place in a page: the line, counted from 1, and what is wrong."""

    line: int
    text: str


def faults(page: str) -> list[Fault]:
    """Every fault of a Markdown page. Code and tables count for words only."""
    return [*_words(page), *_lines(page), *_lengths(page)]


def text_faults(source: str) -> list[Fault]:
    """The ruled out words in the texts of a Python module that users read: errors, logs, and the help of commands.

    Every text of several words counts that is not a docstring, and the docstrings of commands, which ``--help`` shows.
    """
    nodes = list(ast.walk(ast.parse(source)))
    commands = {id(node.body[0]) for node in nodes if isinstance(node, ast.FunctionDef) and _is_command(node)}
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr) and id(node) not in commands}
    texts = [
        (node.lineno, node.value)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]
    return [
        Fault(line, f"the word {match[0]!r}")
        for line, text in texts
        if " " in text
        for match in _DIALECT.finditer(text)
    ]


def note_faults(source: str) -> list[Fault]:
    """The ruled out words in the docstrings and comments of a Python module."""
    texts = [
        (node.lineno + number, line)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number, line in enumerate(node.value.value.splitlines())
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    return [
        Fault(line, f"the word {match[0]!r}")
        for line, text in texts
        for match in _DIALECT.finditer(_CODE.sub("code", text))
    ]


def _is_command(node: ast.FunctionDef) -> bool:
    """Whether click makes a command of ``node``."""
    calls = [one.func for one in node.decorator_list if isinstance(one, ast.Call)]
    return any(isinstance(func, ast.Attribute) and func.attr in {"command", "group"} for func in calls)


def _blank_code(page: str) -> str:
    """``page`` with fenced and indented code as blank lines, so that line numbers stay."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page)


def _words(page: str) -> Iterator[Fault]:
    for number, line in enumerate(_blank_code(page).splitlines(), 1):
        for match in _DIALECT.finditer(_CODE.sub("code", line)):
            yield Fault(number, f"the word {match[0]!r}")


def _lines(page: str) -> Iterator[Fault]:
    for number, line in enumerate(_blank_code(page).splitlines(), 1):
        bare = _LINK.sub(r"[\1]", line)
        if len(bare) > LONGEST_LINE and not line.lstrip().startswith(("|", "#")):
            yield Fault(number, f"a line of {len(bare)} columns")


def _lengths(page: str) -> Iterator[Fault]:
    for number, text in _paragraphs(_blank_code(page)):
        words = len(text.split())
        if words > LONGEST_PARAGRAPH:
            yield Fault(number, f"a paragraph of {words} words")
        for sentence in _END.split(text):
            count = len(sentence.split())
            if count > LONGEST_SENTENCE:
                yield Fault(number, f"a sentence of {count} words: {' '.join(sentence.split()[:6])} ...")


def _paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Every paragraph and list item that is prose, with the line where it begins."""
    start, held = 0, list[str]()
    for number, line in enumerate([*page.splitlines(), ""], 1):
        begins = bool(_ITEM.match(line))
        ends = not line.strip() or line.lstrip().startswith(("|", "#"))
        if held and (begins or ends):
            yield start, " ".join(held)
            held = []
        if not ends:
            start = start if held else number
            held.append(_LINK.sub(r"\1", _CODE.sub("code", _ITEM.sub("", line))).strip())


def main(names: list[str]) -> int:
    """Print the faults of the pages ``names``; without any, of all pages of the tree. Returns their number."""
    root = Path(__file__).resolve().parents[2]
    places = (
        "repoagent/**/*.py",
        "llm/repoagent_llm/**/*.py",
        "server_stub/repoagent_server/**/*.py",
        "agents/*/repoagent_*/**/*.py",
        "*.md",
        "docs/**/*.md",
        "agents/*/*.md",
        "benchmarks/*.md",
        "examples/**/*.md",
        "llm/*.md",
        "server_stub/*.md",
        "capi/**/*.md",
        "deploy/**/*.md",
        "contrib/**/*.md",
        "contrib/vllm/repoagent_vllm/*.py",
        "deploy/ray/repoagent_ray/**/*.py",
    )
    pages = [Path(name) for name in names] or sorted({path for place in places for path in root.glob(place)})
    total = 0
    for path in pages:
        text = path.read_text(encoding="utf-8")
        found = [*text_faults(text), *note_faults(text)] if path.suffix == ".py" else faults(text)
        total += len(found)
        for fault in found if names else ():
            print(f"{path}:{fault.line}: {fault.text}")
        if found or path.suffix != ".py":
            print(f"{len(found):5} {path}")
    return total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
