"""A cache or a workspace below a directory of another user: that user can rename it, and put one in its place."""

import ctypes
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from repoagent.errors import InvalidArgumentError, UnavailableError
from repoagent.storage.cache.cache import Cache
from repoagent.storage.workspaces.private import private_root
from repoagent.storage.workspaces.workspace import WorkspaceRoot
from tests.hostile.conftest import NewCore

STRANGER: Final = 12345
USER: Final = 54321
_CLONE_NEWUSER: Final = 0x10000000
_PR_SET_DUMPABLE: Final = 4

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives directories to other users")


def _cache(path: Path) -> None:
    Cache(path).check()


def _workspace(path: Path) -> None:
    WorkspaceRoot(path, confidential_dir=path.parent).close()


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A directory of another user, in one of ours."""
    path = tmp_path / "stranger"
    path.mkdir()
    os.chown(path, STRANGER, STRANGER)
    return path


@needs_root
@pytest.mark.parametrize("make", [_cache, _workspace])
@pytest.mark.parametrize("below", ["cache", "deep/below/cache"])
def test_a_place_in_a_strangers_directory_is_refused_before_anything_is_made(
    stranger: Path, make: Callable[[Path], None], below: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"lies in {stranger}, which belongs to user {STRANGER}"):
        make(stranger / below)
    assert list(stranger.iterdir()) == []


@needs_root
def test_one_that_was_ours_before_is_refused_too(stranger: Path) -> None:
    """The one who owns its parent may have put it there: a directory of root's can be moved, if not made."""
    (stranger / "cache").mkdir(mode=0o700)
    with pytest.raises(InvalidArgumentError, match="belongs to user"):
        _cache(stranger / "cache")


@needs_root
def test_a_link_of_a_stranger_on_the_way_is_refused(stranger: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir(mode=0o700)
    (stranger / "link").symlink_to(tmp_path / "ours")
    with pytest.raises(InvalidArgumentError, match="belongs to user"):
        private_root(stranger / "link" / "cache", purpose="cache")


@needs_root
@pytest.mark.parametrize("way", ["direct", "by way of a link of ours"])
def test_a_strangers_link_in_a_directory_that_all_write_to_is_refused(tmp_path: Path, way: str) -> None:
    """The stranger can lead it elsewhere at any time, to another directory of ours."""
    shared = tmp_path / "shared"
    (tmp_path / "ours").mkdir(mode=0o700)
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(tmp_path / "ours")
    os.lchown(shared / "link", STRANGER, STRANGER)
    (tmp_path / "own").symlink_to("shared/../shared/link")
    start = shared / "link" if way == "direct" else tmp_path / "own"
    with pytest.raises(InvalidArgumentError, match=f"lies in {shared}/link, which belongs to user {STRANGER}"):
        private_root(start / "cache", purpose="cache")
    assert list((tmp_path / "ours").iterdir()) == []


@needs_root
def test_links_that_lead_to_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(UnavailableError, match="Too many levels of symbolic links"):
        private_root(tmp_path / "one" / "cache", purpose="cache")


def _in_a_namespace(path: Path) -> str:
    """What making a cache there comes to in a container that maps this user alone. For a forked process."""
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 1)  # else /proc/self/uid_map belongs to root
    if libc.unshare(_CLONE_NEWUSER):
        return "no namespaces"
    Path("/proc/self/uid_map").write_text(f"{USER} {USER} 1")
    assert (Path("/").stat().st_uid, os.geteuid()) == (65534, USER)
    return str(private_root(path, purpose="cache"))


@needs_root
def test_a_container_that_maps_one_user_alone_has_a_cache(volume: Path) -> None:
    """As Apptainer and rootless containers do: what belongs to others, root too, belongs to user 65534 there."""
    home = volume / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, _in_a_namespace(home / "cache").encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    if said == "no namespaces":
        pytest.skip("this machine makes no user namespaces")
    assert said == str(home / "cache")


@needs_root
def test_plaintext_in_a_strangers_memory_is_refused(tmp_path: Path) -> None:
    memory = Path("/dev/shm") / f"repoagent-test-{os.getpid()}"
    memory.mkdir()
    try:
        os.chown(memory, STRANGER, STRANGER)
        with (
            WorkspaceRoot(tmp_path / "own", confidential_dir=memory, allow_swap=True, allow_core_dumps=True) as root,
            pytest.raises(InvalidArgumentError, match="belongs to user"),
        ):
            root.new("m").directory("a", confidential=True)
    finally:
        memory.rmdir()


@needs_root
def test_a_core_with_such_a_cache_does_not_start(new_core: NewCore, stranger: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="belongs to user"):
        new_core(cache_directory=stranger / "cache")


@pytest.fixture
def volume() -> Iterator[Path]:
    """A volume as the kubelet hands it to a pod with an ``fsGroup``: of root, and the group writes."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "volume"
        path.mkdir()
        os.chown(path, 0, USER)
        path.chmod(0o2775)
        Path(folder).chmod(0o755)
        yield path


def _as_user(path: Path) -> str:
    """What making a cache there comes to for a user who is not root."""
    os.setegid(USER)
    os.seteuid(USER)
    try:
        private_root(path, purpose="cache")
    except InvalidArgumentError as error:
        return str(error)
    finally:
        os.seteuid(0)
        os.setegid(0)
    return "fine"


@needs_root
def test_a_volume_of_kubernetes_is_no_cache_and_a_directory_in_it_is(volume: Path) -> None:
    assert "belongs to user 0" in _as_user(volume)
    assert _as_user(volume / "cache") == "fine"
    assert _as_user(volume / "cache") == "fine"  # as after a restart


def test_directories_of_root_that_others_write_to_are_reported_unless_they_are_sticky(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode, reported in ((0o1777, False), (0o755, False), (0o2775, False), (0o777, True)):
        caplog.clear()
        tmp_path.chmod(mode)
        with caplog.at_level(logging.INFO):
            _cache(tmp_path / f"cache-{mode:o}")
        assert ("lies in" in caplog.text) is reported, oct(mode)
    assert f"lies in {tmp_path}, where every user can put another directory" in caplog.text
