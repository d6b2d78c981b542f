"""Assemble the pages of the documentation site below ``build/docs``, for ``make docs``.

The pages lie where readers of the repository look for them: in ``docs/``, beside each agent, at the root. The site is
one tree, so this script copies them into one and points their links at the copies. A link to a file that is not a page,
such as a source file, becomes plain text: the site has no copy of the code.
"""

import argparse
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FIXED: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
PATTERNS: Final = ("docs/**/*", "agents/*/README.md", "examples/**/README.md", "llm/README.md", "server_stub/README.md")
IMAGES: Final = {".svg", ".png", ".gif"}
API: Final = {
    "api": "repoagent.api",
    "server": "repoagent.server",
    "executor": "repoagent_llm.interface",
    "testing": "repoagent.testing",
    "frontends": "repoagent_server",
}
LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def site_path(source: str) -> str:
    """Where the page or image ``source`` (a path in the repository) lies on the site."""
    if source in FIXED:
        return FIXED[source]
    path = PurePosixPath(source)
    if path.name == "README.md":
        return f"{path.parent}.md"
    return source.removeprefix("docs/")


def sources() -> dict[str, str]:
    """Every page and image of the site: path in the repository -> path on the site."""
    found = [path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.suffix in {".md", *IMAGES}]
    names = [*FIXED, *(path.relative_to(ROOT).as_posix() for path in found)]
    return {name: site_path(name) for name in names}


def rewrite(text: str, source: str, pages: dict[str, str]) -> str:
    """``text`` of the page ``source`` with its links pointing at the site's copies."""
    here = PurePosixPath(pages[source]).parent.as_posix()

    def link(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        name = normpath(f"{PurePosixPath(source).parent}/{path}").removeprefix("./")
        name = name if name in pages else f"{name}/README.md"
        if name not in pages:
            return f"{mark}{label}"
        return f"{mark}[{label}]({relpath(pages[name], here)}{'#' + anchor if anchor else ''})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def assemble(target: Path) -> None:
    """Write all pages below ``target``/pages, and the configuration beside them."""
    shutil.rmtree(target, ignore_errors=True)
    pages = sources()
    for source, name in pages.items():
        copy = target / "pages" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if copy.suffix == ".md":
            copy.write_text(rewrite((ROOT / source).read_text(), source, pages))
        else:
            shutil.copyfile(ROOT / source, copy)
    shutil.copyfile(ROOT / "docs/site/extra.css", target / "pages" / "extra.css")
    for name, module in API.items():
        page = target / "pages" / "api" / f"{name}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"# {module}\n\n::: {module}\n    options:\n      show_root_heading: false\n")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    head = f'docs_dir = "pages"\nsite_dir = "site/{version}"'
    settings = (ROOT / "docs/site/zensical.toml").read_text().replace('docs_dir = "pages"', head)
    (target / "zensical.toml").write_text(settings)
    publish_version(target / "site", version)


def publish_version(site: Path, version: str) -> None:
    """List ``version`` for the version selector, and lead the root of the site to it."""
    site.mkdir(parents=True, exist_ok=True)
    entries = [{"version": version, "title": version, "aliases": ["latest"]}]
    (site / "versions.json").write_text(json.dumps(entries))
    (site / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={version}/">\n')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="the directory to make, below build/ for example")
    assemble(parser.parse_args().target)
    sys.exit(0)
