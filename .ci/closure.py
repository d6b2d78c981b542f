"""Prints what this project needs from a package index for one lock file: `closure.py deploy/image/runtime.lock`."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = {"repoagent-core": ("otel", "s3"), "repoagent-checksum": ("blake3",), "repoagent-server": ("jwt",)}
LOCKS = {
    "requirements.lock": ("build", "run"),
    "deploy/image/build.lock": ("build",),
    "deploy/image/runtime.lock": ("run",),
}
"""Lock file -> what its packages are for: to build the distributions, to run them with the extras above."""


def requirements(lock: str = "requirements.lock") -> list[str]:
    """Every requirement that is not a distribution of this tree, sorted."""
    found: set[str] = set()
    for file in (
        ROOT / "pyproject.toml",
        *ROOT.glob("agents/*/pyproject.toml"),
        ROOT / "llm/pyproject.toml",
        ROOT / "server_stub/pyproject.toml",
    ):
        document = tomllib.loads(file.read_text())
        project = document["project"]
        extras = project.get("optional-dependencies", {})
        needs = {
            "build": document["build-system"]["requires"],
            "run": [
                *project["dependencies"],
                *(each for extra in EXTRAS.get(project["name"], ()) for each in extras[extra]),
            ],
        }
        found.update(requirement for purpose in LOCKS[lock] for requirement in needs[purpose])
    return sorted(requirement for requirement in found if not re.match(r"repoagent\b", requirement))


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(*sys.argv[1:])) + "\n")
