import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repoagent.errors import UnsafePathError
from repoagent.storage.paths.names import check_component, check_tree, file_label, join_inside, object_parts

_PIECES = st.lists(
    st.one_of(st.sampled_from(["..", ".", "", "a", "inside", "outside", "loop", "\0", "~", "\\", "\ud800"]), st.text()),
    max_size=6,
).map("/".join)


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with links: one that stays inside, one that leaves, one to itself."""
    base = tmp_path_factory.mktemp("linked")
    root = base / "model"
    (root / "a").mkdir(parents=True)
    (base / "secret").mkdir()
    (root / "inside").symlink_to("a")
    (root / "outside").symlink_to("../secret")
    (root / "loop").symlink_to("loop")
    return root


@pytest.mark.slow
@given(relative=_PIECES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_what_join_inside_returns_is_below_the_root_for_any_text(linked: Path, relative: str) -> None:
    try:
        path = join_inside(linked, relative)
    except UnsafePathError:
        return
    assert ".." not in path.relative_to(linked).parts
    real = os.path.realpath(path)
    assert real == str(linked) or real.startswith(f"{linked}/")


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "a/..", "a\0b", "outside", "outside/new", "\ud800"]
)
def test_a_name_that_leads_out_is_refused(linked: Path, name: str) -> None:
    with pytest.raises(UnsafePathError):
        join_inside(linked, name)


def test_a_link_that_stays_inside_is_allowed(linked: Path) -> None:
    assert join_inside(linked, "inside/file") == linked / "inside/file"


def test_the_root_itself_may_be_a_link(linked: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(linked)
    assert join_inside(tmp_path / "link", "a") == tmp_path / "link" / "a"


def test_the_empty_path_and_dots_mean_the_root(linked: Path) -> None:
    assert join_inside(linked, "") == join_inside(linked, "./.") == linked


def test_a_root_of_slash_works() -> None:
    assert join_inside("/", "proc") == Path("/proc")


@pytest.mark.parametrize("name", ["", "a//b", "./a", "a/", "..", "/a"])
def test_an_object_name_has_one_spelling_only(name: str) -> None:
    with pytest.raises(UnsafePathError):
        object_parts(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0"])
def test_a_component_is_one_name(name: str) -> None:
    with pytest.raises(UnsafePathError):
        check_component(name)


@pytest.mark.parametrize("names", [["a", "a"], ["a", "a/b"], ["a/b/c", "a/b"]])
def test_names_that_exclude_each_other_are_no_tree(names: list[str]) -> None:
    with pytest.raises(UnsafePathError, match=r"twice|both a file and a directory"):
        check_tree(names)


@pytest.mark.parametrize("name", ["x" * 256, "1/" + "\u00e9" * 128, "x" * 256 + "/model.py"])
def test_a_name_that_no_filesystem_takes_is_no_part_of_a_tree(name: str) -> None:
    with pytest.raises(UnsafePathError, match="has a part of more than 255 bytes"):
        check_tree([name])
    check_tree(["x" * 255 + "/" + "y" * 255])


def test_a_long_name_is_cut_in_the_message() -> None:
    with pytest.raises(UnsafePathError) as caught:
        object_parts("../" * 10_000)
    assert len(str(caught.value)) < 400


@given(st.text())
def test_a_label_is_always_one_safe_file_name(text: str) -> None:
    label = file_label(text)
    assert check_component(label) == label
    assert len(label) <= 48
