"""Walking a model's files."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from repoagent_decrypt.files.errors import PayloadError
from repoagent_decrypt.files.positional import Progress, Sizes
from repoagent_decrypt.tree import Totals, Tree, build_tree, scan_tree

from repoagent.api import AlreadyExistsError, InvalidArgumentError, UnavailableError, UnsafePathError

Make = Callable[..., Path]


def scan(root: Path) -> Tree:
    return scan_tree(
        root,
        lambda name: name.endswith(".age"),
        lambda name: name.removesuffix(".age"),
        lambda path, _name: path.stat().st_size * 2,
    )


def test_directories_come_parents_first_and_files_in_order(make_tree: Make) -> None:
    tree = scan(make_tree({"2/b.age": b"1234", "1/x/y/z": b"12345", "1/a": b"1", "c": b""}))
    assert tree.directories == ("1", "1/x", "1/x/y", "2")
    assert [(item.name, item.target, item.chosen, item.size) for item in tree.items] == [
        ("1/a", "1/a", False, 1),
        ("1/x/y/z", "1/x/y/z", False, 5),
        ("2/b.age", "2/b", True, 8),
        ("c", "c", False, 0),
    ]
    assert (tree.size, tree.room) == (14, 4096 * 8)


def test_a_link_to_a_file_inside_is_taken_for_the_file(make_tree: Make) -> None:
    root = make_tree({"1/real": b"123"})
    (root / "1/link").symlink_to("real")
    assert [(item.name, item.size) for item in scan(root).items] == [("1/link", 3), ("1/real", 3)]


def test_the_root_itself_may_be_a_link(make_tree: Make, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(make_tree({"1/a": b"x"}))
    assert len(scan(tmp_path / "alias").items) == 1


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "nowhere", "..", "loop"])
def test_links_that_lead_out_or_nowhere_are_refused(target: str, make_tree: Make, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"x")
    root = make_tree({"a": b"x"})
    (root / "loop").symlink_to(target)
    with pytest.raises(UnsafePathError, match="'loop'"):
        scan(root)


def test_links_to_directories_and_pipes_are_refused(make_tree: Make) -> None:
    root = make_tree({"1/a": b"x"})
    (root / "2").symlink_to("1")
    with pytest.raises(UnsafePathError, match="'2' is a link to a directory"):
        scan(root)
    (root / "2").unlink()
    os.mkfifo(root / "pipe")
    with pytest.raises(UnsafePathError, match="'pipe' is neither a file nor a directory"):
        scan(root)


def test_two_files_that_would_become_one_are_refused(make_tree: Make) -> None:
    with pytest.raises(AlreadyExistsError, match=r"'1/m\.age' would become '1/m', but there is '1/m'"):
        scan(make_tree({"1/m": b"", "1/m.age": b""}))
    with pytest.raises(AlreadyExistsError, match="a directory of that name"):
        scan(make_tree({"m/a": b"", "m.age": b""}))


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


def test_a_file_that_grows_before_it_is_read_again_is_refused(tree: Tree, tmp_path: Path) -> None:
    """What is read a second time is read from a hashed copy, which takes no more than what was read first."""

    def grow(source: Path, target: Path, progress: Progress) -> Sizes:
        sizes = double(source, target, progress)
        with (tree.root / "1" / "a.x").open("ab") as file:
            file.write(b"more")
        return sizes

    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"^1/a\.x: the file became longer while it was read$"):
        build_tree(tree, tmp_path / "out", grow, lambda _done: None, reading=("sha256",))
    assert list((tmp_path / "out" / "1").iterdir()) == []
