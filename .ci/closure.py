"""Prints what this project needs from a package index: to build it, to run it, and to use the extras of the README."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = {"repoagent-core": ("llm", "otel", "s3"), "repoagent-checksum": ("blake3",), "repoagent-server": ("jwt",)}


def requirements() -> list[str]:
    """Every requirement that is not a distribution of this tree, sorted."""
    found: set[str] = set()
    for file in (ROOT / "pyproject.toml", *ROOT.glob("agents/*/pyproject.toml"), ROOT / "server_stub/pyproject.toml"):
        document = tomllib.loads(file.read_text())
        project = document["project"]
        extras = project.get("optional-dependencies", {})
        found.update(document["build-system"]["requires"], project["dependencies"])
        for extra in EXTRAS.get(project["name"], ()):
            found.update(extras[extra])
    return sorted(requirement for requirement in found if not re.match(r"repoagent\b", requirement))


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements()) + "\n")
