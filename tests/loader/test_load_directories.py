"""The private directories of one load."""

from typing import Any

import pytest

from repoagent.errors import UnavailableError
from repoagent.loader.load_directories import LoadDirectories


@pytest.fixture
def directories(bench: Any) -> LoadDirectories:
    return LoadDirectories(bench.workspace.new("m"))


def test_it_knows_what_it_gave_out(directories: LoadDirectories) -> None:
    place = directories.get("a")
    assert directories.get("a") == place
    assert directories.holds(place)
    assert directories.holds(place / "1" / "model.onnx")
    assert directories.holds(str(place))
    assert not directories.holds(place.parent)
    directories.remove(place)
    assert not directories.holds(place)
    assert not place.exists()


def test_only_what_holds_plaintext_goes_early(directories: LoadDirectories, bench: Any) -> None:
    ordinary = directories.get("a")
    before = directories.confidential
    secret = directories.get("b", confidential=True)
    later = directories.get("c")
    assert (before, directories.confidential) == (False, True)
    directories.get("a")
    directories.remove_confidential()
    assert ordinary.exists()
    assert not secret.exists()
    assert not later.exists()
    directories.close()
    assert bench.left_over() == []
    with pytest.raises(UnavailableError):
        directories.get("a")
