"""The pages of the project, and what is in them."""

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

TREE = Path(__file__).resolve().parents[2]
AGENTS = sorted(
    path.parent.name for path in TREE.glob("agents/*/pyproject.toml") if "repoagent.agents" in path.read_text()
)
"""The packages of agents."""
_FENCE = re.compile(
    r'^ *```(?P<kind>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^ *```$', re.MULTILINE | re.DOTALL
)
_PART = re.compile(rf"{_FENCE.pattern}|(?P<paragraph>(?:^(?! *```)[^\n]*\S[^\n]*\n?)+)", _FENCE.flags)
_LIST_ITEM = re.compile(r"(?:\d+\.|[-*]) +")
_CODE_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_PLACES = (
    "*.md",
    "docs/**/*.md",
    "agents/*/*.md",
    "benchmarks/*.md",
    "llm/*.md",
    "server_stub/*.md",
    "examples/**/*.md",
    "capi/**/*.md",
    "deploy/**/*.md",
    "contrib/**/*.md",
)


@dataclass(frozen=True)
class Block:
    """A block of code: its language ("" if indented), the file that its title names ("" for none), its text."""

    kind: str
    title: str
    body: str


@dataclass(frozen=True)
class Page:
    """A page; ``name`` is its path in the tree."""

    name: str
    text: str

    def blocks(self) -> list[Block]:
        """The fenced blocks."""
        return [block for block in self.code() if block.kind]

    def code(self) -> Iterator[Block]:
        """Every block in order. In a list, an indented one begins four columns behind the text of its item."""
        margin = 0
        for part in _PART.finditer(self.text):
            paragraph = part["paragraph"]
            if paragraph is None:
                yield Block(part["kind"] or "text", part["title"] or "", dedent(part["body"]))
                continue
            indent = len(paragraph) - len(paragraph.lstrip(" "))
            if indent >= margin + 4:
                yield Block("", "", dedent(paragraph))
            elif indent == 0:
                items = [_LIST_ITEM.match(line) for line in paragraph.splitlines()]
                margin = max(len(item[0]) if item else 0 for item in items)

    def spans(self) -> list[str]:
        """The code in the running text, each on one line."""
        return [" ".join(span.split()) for span in _CODE_SPAN.findall(self.prose())]

    def prose(self) -> str:
        """The text without fenced blocks."""
        return _FENCE.sub("", self.text)


def parameters_of(agent: str) -> Sequence[str]:
    """The parameters that an agent of this project knows, which stand beside what reads them."""
    reader = importlib.import_module(f"repoagent_{agent}.agent").parse_parameters
    return list(sys.modules[reader.__module__].PARAMETERS)


@pytest.fixture(scope="session")
def pages() -> dict[str, Page]:
    """Every Markdown file of the project, by its path."""
    found = sorted({path for place in _PLACES for path in TREE.glob(place)})
    names = [path.relative_to(TREE).as_posix() for path in found]
    return {name: Page(name, path.read_text(encoding="utf-8")) for name, path in zip(names, found, strict=True)}


@pytest.fixture(scope="session")
def tree() -> Path:
    return TREE
