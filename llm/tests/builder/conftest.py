"""GGUF files that the package ``gguf`` wrote, and what others answer with them; see ../data/make_gguf.py."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

GGUF: Final = Path(__file__).parents[1] / "data" / "gguf"
RECORDED: Final[dict[str, Any]] = json.loads((GGUF / "recorded.json").read_text())
FILES: Final[dict[str, Any]] = RECORDED["files"]


@pytest.fixture
def change(tmp_path: Path) -> Any:
    """``change(name, old, new)``: a copy of a file with bytes replaced, of the same length or not."""

    def made(name: str, old: bytes, new: bytes) -> Path:
        data = (GGUF / f"{name}.gguf").read_bytes()
        assert data.count(old) >= 1
        path = tmp_path / "changed.gguf"
        path.write_bytes(data.replace(old, new, 1))
        return path

    return made
