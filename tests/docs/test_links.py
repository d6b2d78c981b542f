"""Links between the pages lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def local_links(page: Any, tree: Path) -> Iterator[tuple[str, Path, str]]:
    """Every link of ``page`` into the tree: as written, the file, the anchor."""
    for target in _LINK.findall(page.prose()):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            here = tree / page.name
            yield target, (here.parent / path).resolve() if path else here, anchor


def test_every_link_to_a_file_or_a_heading_resolves(pages: dict[str, Any], tree: Path) -> None:
    broken = [
        f"{page.name}: {target}"
        for page in pages.values()
        for target, file, anchor in local_links(page, tree)
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8")))
    ]
    assert broken == []


def test_every_page_of_the_docs_can_be_reached(pages: dict[str, Any], tree: Path) -> None:
    linked = {file for page in pages.values() for _, file, _ in local_links(page, tree)}
    reached = linked | {file for place in linked if place.is_dir() for file in place.glob("*.md")}
    assert [name for name in pages if name.startswith("docs/") and tree / name not in reached] == []
