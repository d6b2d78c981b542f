"""Making a directory from a tree."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from repoagent_decrypt.age.primitives.errors import PayloadError
from repoagent_decrypt.build import Totals, build_tree
from repoagent_decrypt.files.new_file import Sizes
from repoagent_decrypt.files.positional import Progress
from repoagent_decrypt.tree import Tree, scan_tree

from repoagent.api import InvalidArgumentError, UnavailableError

Make = Callable[..., Path]


def double(source: Path, target: Path, progress: Progress) -> Sizes:
    data = source.read_bytes()
    target.write_bytes(data * 2)
    progress(len(data))
    return Sizes(len(data), len(data) * 2)


@pytest.fixture
def tree(make_tree: Make) -> Tree:
    root = make_tree({"1/a.x": b"abc", "b": b"hello"})
    return scan_tree(root, lambda name: name.endswith(".x"), lambda name: name[:-2], lambda path, _name: 6)


def test_chosen_files_are_transformed_and_others_copied(tree: Tree, tmp_path: Path) -> None:
    out, seen = tmp_path / "out", list[int]()
    out.mkdir()
    assert build_tree(tree, out, double, seen.append) == Totals(1, 1, 8, 11)
    assert ((out / "1/a").read_bytes(), (out / "b").read_bytes()) == (b"abcabc", b"hello")
    assert seen[-1] == 11
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (PayloadError("the payload is bad"), InvalidArgumentError, r"^1/a\.x: the payload is bad$"),
        (OSError(errno.ENOSPC, "No space left on device"), UnavailableError, r"^1/a\.x: no room left"),
        (OSError(errno.EIO, "Input/output error"), UnavailableError, r"^1/a\.x: Input/output error$"),
    ],
)
def test_errors_name_the_file(error: Exception, kind: type[Exception], text: str, tree: Tree, tmp_path: Path) -> None:
    def fail(source: Path, target: Path, progress: Progress) -> Sizes:
        raise error

    (tmp_path / "out").mkdir()
    with pytest.raises(kind, match=text):
        build_tree(tree, tmp_path / "out", fail, lambda _done: None)
