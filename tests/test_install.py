"""Every distribution of this project that is installed here came from this tree, not from a package index.

Somebody else owns the name ``repoagent`` on the package index; nothing may install it by accident.
"""

import json
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

TREE = Path(__file__).resolve().parents[1]


def _ours() -> list[Distribution]:
    return [d for d in distributions() if (d.name or "").lower().replace("_", "-").startswith("repoagent")]


def test_the_core_and_its_agents_are_installed() -> None:
    names = {d.name for d in _ours()}
    assert {
        "repoagent-core",
        "repoagent-server",
        "repoagent-attest",
        "repoagent-checksum",
        "repoagent-decrypt",
        "repoagent-convert",
        "repoagent-license",
        "repoagent-scan",
        "repoagent-fetch",
        "repoagent-verify",
    } <= names


def test_what_is_installed_came_from_this_tree() -> None:
    for distribution in _ours():
        origin = distribution.read_text("direct_url.json")
        assert origin is not None, f"{distribution.name} came from a package index"
        source = Path(unquote(urlparse(json.loads(origin)["url"]).path)).resolve()
        assert source == TREE or TREE in source.parents, f"{distribution.name} came from {source}"


def test_nothing_is_called_plain_repoagent() -> None:
    assert "repoagent" not in {d.name for d in _ours()}
