"""The documentation site: every page has a place in its navigation, and links between pages survive the assembly."""

import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def site(tree: Path) -> dict[str, Any]:
    return runpy.run_path(str(tree / "docs/site/assemble.py"))


def _targets(entries: list[dict[str, Any]]) -> set[str]:
    found: set[str] = set()
    for value in (value for entry in entries for value in entry.values()):
        found |= {value} if isinstance(value, str) else _targets(value)
    return found


def test_every_page_of_the_docs_and_of_the_agents_is_in_the_navigation(site: dict[str, Any], tree: Path) -> None:
    settings = tomllib.loads((tree / "docs/site/zensical.toml").read_text())
    listed = _targets(settings["project"]["nav"])
    pages = {name for source, name in site["sources"]().items() if source.startswith(("docs/", "agents/"))}
    assert {name for name in pages if name.endswith(".md")} - listed == set()


def test_every_entry_of_the_navigation_is_a_page(site: dict[str, Any], tree: Path, tmp_path: Path) -> None:
    site["assemble"](tmp_path / "site")
    settings = tomllib.loads((tmp_path / "site/zensical.toml").read_text())
    missing = [name for name in _targets(settings["project"]["nav"]) if not (tmp_path / "site/pages" / name).is_file()]
    assert missing == []


def test_what_an_operator_reads_is_below_operate_and_every_entry_says_what_it_is(tree: Path) -> None:
    """U13: it was below "Agents"."""
    nav = tomllib.loads((tree / "docs/site/zensical.toml").read_text())["project"]["nav"]
    parts = {name: entries for part in nav for name, entries in part.items() if not isinstance(entries, str)}
    sections = {name: _targets(entries) for name, entries in parts.items()}
    pages = {f"reference/{name}.md" for name in ("access", "policy", "audit", "request-log", "ui")}
    assert sections["Operate"] >= pages | {"deploy.md", "service.md", "scale.md"}
    assert not sections["Agents"] & pages
    titles = [title for entries in parts.values() for entry in entries for title in entry]
    assert [title for title in titles if len(title) < 4] == []


def test_the_site_has_its_style_sheet(site: dict[str, Any], tmp_path: Path) -> None:
    site["assemble"](tmp_path / "site")
    (sheet,) = tomllib.loads((tmp_path / "site/zensical.toml").read_text())["project"]["extra_css"]
    assert "padding-inline-end" in (tmp_path / "site/pages" / sheet).read_text()


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("README.md", "[t](docs/tutorial.md#a)", "[t](tutorial.md#a)"),
        ("docs/reference/llm.md", "[x](../../agents/decrypt/README.md)", "[x](../agents/decrypt.md)"),
        ("agents/decrypt/README.md", "[p](../../docs/reference/policy.md)", "[p](../reference/policy.md)"),
        ("README.md", "[c](agents/checksum)", "[c](agents/checksum.md)"),
        ("README.md", "[code](repoagent/errors.py)", "code"),
        ("README.md", "```\n[t](docs/tutorial.md)\n```", "```\n[t](docs/tutorial.md)\n```"),
        ("README.md", "[site](https://example.org/x.md)", "[site](https://example.org/x.md)"),
    ],
)
def test_links_lead_to_the_copies(site: dict[str, Any], source: str, text: str, expected: str) -> None:
    assert site["rewrite"](text, source, site["sources"]()) == expected
