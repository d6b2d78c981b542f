"""The page about the structure names files that exist, and every folder."""

import re
from pathlib import Path

_TREE = Path(__file__).parents[2]
_PAGE = _TREE / "docs" / "structure.md"
_ROOTS = [
    _TREE / "repoagent",
    _TREE / "repoagent" / "serving",
    _TREE / "repoagent" / "serving" / "scheduling",
    _TREE / "server_stub" / "repoagent_server",
    _TREE,
]


def _exists(name: str) -> bool:
    return any((root / name).is_file() for root in _ROOTS)


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|proto|svg))`", _PAGE.read_text()))
    assert len(named) > 50
    missing = {name for name in named if not _exists(name)}
    assert missing == {"model.py", "codec.py", "services.py", "child.py"}, "other files are named so"


def test_it_has_a_sentence_for_every_folder() -> None:
    text = _PAGE.read_text()
    inner = [_TREE / "repoagent", *(_TREE / "repoagent" / name for name in ("storage", "serving"))]
    inner.append(_TREE / "server_stub" / "repoagent_server")
    folders = [path.parent for root in inner for path in sorted(root.glob("*/__init__.py"))]
    assert [str(folder) for folder in folders if f"{folder.name}/`" not in text] == []
