"""The pages of the project, and what is in them."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r'^```(?P<kind>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$', re.MULTILINE | re.DOTALL)
_PLACES = (
    "*.md",
    "docs/**/*.md",
    "agents/*/*.md",
    "server_stub/*.md",
    "examples/**/*.md",
    "capi/**/*.md",
    "deploy/**/*.md",
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that its title names ("" for none), its text."""

    kind: str
    title: str
    body: str


@dataclass(frozen=True)
class Page:
    """A page; ``name`` is its path in the tree."""

    name: str
    text: str

    def blocks(self) -> list[Block]:
        return [Block(match["kind"], match["title"] or "", match["body"]) for match in _FENCE.finditer(self.text)]

    def prose(self) -> str:
        """The text without fenced blocks."""
        return _FENCE.sub("", self.text)


@pytest.fixture(scope="session")
def pages() -> dict[str, Page]:
    """Every Markdown file of the project, by its path."""
    found = sorted({path for place in _PLACES for path in TREE.glob(place)})
    names = [path.relative_to(TREE).as_posix() for path in found]
    return {name: Page(name, path.read_text(encoding="utf-8")) for name, path in zip(names, found, strict=True)}


@pytest.fixture(scope="session")
def tree() -> Path:
    return TREE
