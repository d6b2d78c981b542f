"""The digest of a model stands for one set of files only."""

import hashlib
from pathlib import Path

import pytest
from repoagent_license.host import model_digest

from repoagent.api import UnsafePathError
from repoagent.testing import write_files


def test_a_name_with_line_ends_cannot_stand_for_two_files(tmp_path: Path) -> None:
    """Otherwise a model without ``1/a`` has the digest of one with it."""
    model_digest(write_files(tmp_path / "whole", {"1/a": b"A", "1/b": b"B"}))
    name = f"1/a) = {hashlib.sha256(b'A').hexdigest()}\nSHA256 (1/b"
    with pytest.raises(UnsafePathError, match="control characters"):
        model_digest(write_files(tmp_path / "less", {name: b"B"}))


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafePathError, match="not UTF-8"):
        model_digest(write_files(tmp_path / "model", {"1/\udcff": b"A"}))
