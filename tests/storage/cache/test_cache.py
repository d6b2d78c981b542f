import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError, UnsafePathError
from repoagent.storage.cache.cache import Cache
from repoagent.storage.cache.cache_store import name_of
from tests.descriptors import descriptors_beneath


def _write(content: bytes) -> Callable[[Path], None]:
    def build(target: Path) -> None:
        (target / "1").mkdir()
        (target / "1" / "plan").write_bytes(content)

    return build


def _never(target: Path) -> None:
    raise AssertionError("built although it is there")


def _objects(path: Path) -> list[str]:
    return sorted(os.listdir(path / "objects"))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_a_result_is_built_once_and_survives_a_restart(cache: Cache, tmp_path: Path) -> None:
    path = cache.get_or_build("key", _write(b"x"))
    assert (path / "1/plan").read_bytes() == b"x"
    assert cache.get_or_build("key", _never) == path
    cache.close()
    with Cache(tmp_path / "cache") as restarted:
        assert restarted.get_or_build("key", _never) == path


@pytest.mark.parametrize("removed", ["", "objects", "meta", "locks", "blobs", "parts", "known"])
def test_directories_that_are_removed_are_made_again(
    cache: Cache, caplog: pytest.LogCaptureFixture, removed: str
) -> None:
    cache.get_or_build("before", _write(b"x"))
    cache.close()
    cache.path.joinpath("objects").chmod(0o700)
    for path in [*cache.path.glob("objects/*"), *cache.path.glob("objects/*/*")]:
        path.chmod(0o700)
    shutil.rmtree(cache.path / removed)
    assert (cache.get_or_build("after", _write(b"y")) / "1/plan").read_bytes() == b"y"
    cache.get_or_build("after", _never)
    assert cache.open_store().is_there()
    assert len(caplog.messages) == 1


def test_a_result_is_read_only_and_private(cache: Cache) -> None:
    path = cache.get_or_build("key", _write(b"x"))
    modes = {one: stat.S_IMODE(one.stat().st_mode) for one in (path, path / "1", path / "1/plan")}
    assert all(mode & 0o222 == 0 for mode in modes.values())
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o700


def test_any_text_can_be_a_key(cache: Cache) -> None:
    keys = ["", "../../etc", "a\0b", "x" * 10_000, "\ud800", "é"]
    assert len({cache.get_or_build(key, _write(key.encode("utf-8", "surrogatepass"))) for key in keys}) == len(keys)


def test_a_build_that_raises_keeps_nothing_and_its_error_comes_out(cache: Cache, tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        (target / "half").write_text("x")
        raise FileNotFoundError("the compiler")

    with pytest.raises(FileNotFoundError, match="the compiler"):
        cache.get_or_build("key", fail)
    assert _objects(tmp_path / "cache") == []
    assert cache.get_or_build("key", _write(b"x")).is_dir()


@pytest.mark.parametrize("odd", ["link", "pipe"])
def test_links_and_special_files_are_not_kept(cache: Cache, tmp_path: Path, odd: str) -> None:
    def build(target: Path) -> None:
        (target / "odd").symlink_to("/etc/passwd") if odd == "link" else os.mkfifo(target / "odd")

    with pytest.raises(UnsafePathError, match="odd"):
        cache.get_or_build("key", build)
    assert _objects(tmp_path / "cache") == []


def test_threads_that_want_one_key_build_it_once(cache: Cache) -> None:
    builds: list[Path] = []
    both = threading.Barrier(4)
    paths: list[Path] = []

    def build(target: Path) -> None:
        builds.append(target)
        _write(b"x")(target)

    def want() -> None:
        both.wait()
        paths.append(cache.get_or_build("key", build))

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert len(paths) == 4
    assert len(set(paths)) == 1


def test_waiting_for_a_builder_can_be_cancelled(cache: Cache) -> None:
    building, finish = threading.Event(), threading.Event()

    def slow(target: Path) -> None:
        building.set()
        finish.wait()

    thread = threading.Thread(target=cache.get_or_build, args=("key", slow))
    thread.start()
    building.wait()
    with cache.scope(cancelled=lambda: True) as scope, pytest.raises(CancelledError):
        scope.get_or_build("key", _never)
    finish.set()
    thread.join()


def test_the_quota_removes_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", quota=250)
    with cache.scope() as scope:
        paths = {key: scope.get_or_build(key, _write(b"x" * 100)) for key in "ab"}
    for age, key in enumerate("ab"):
        os.utime(cache.path / "meta" / name_of(key), ns=(age + 1, age + 1))
    with cache.scope() as scope:
        scope.get_or_build("a", _never)  # used: now b is the oldest
    with cache.scope() as scope:
        paths["c"] = scope.get_or_build("c", _write(b"x" * 100))
    assert [key for key, path in sorted(paths.items()) if path.exists()] == ["a", "c"]
    assert sorted(os.listdir(cache.path / "meta")) == _objects(cache.path)
    with cache.scope() as scope:
        assert scope.get_or_build("b", _write(b"again")).is_dir()


def test_the_quota_spares_what_is_in_use_until_its_scope_closes(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", quota=0)
    scope = cache.scope()
    first = scope.get_or_build("a", _write(b"x"))
    second = cache.scope().get_or_build("a", _never)
    with cache.scope() as other:
        other.get_or_build("b", _write(b"x"))
    assert first == second
    assert first.exists()
    scope.close()
    cache.shrink()
    assert not (cache.path / "objects" / name_of("b")).exists()


def test_a_size_that_was_lost_is_found_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", quota=50)
    with cache.scope() as scope:
        path = scope.get_or_build("a", _write(b"x" * 100))
    (cache.path / "meta" / name_of("a")).unlink()
    cache.shrink()
    assert not path.exists()


def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(InvalidArgumentError, match="lets others write"):
        Cache(tmp_path / "cache").get_or_build("key", _never)


def test_a_disk_that_takes_nothing_is_a_cache_that_cannot_be_had_and_leaves_no_lock(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.get_or_build("there", _write(b"x"))
    cache.close()
    for key in ("there", "absent"):
        lock = cache.path / "locks" / f"{name_of(key)}.use"
        lock.unlink(missing_ok=True)
        lock.mkdir()
        with pytest.raises(UnavailableError, match=f"cannot write to the cache at {cache.path}: Is a directory"):
            cache.get_or_build(key, _never)
        lock.rmdir()
    monkeypatch.setattr(Path, "touch", _full)
    with pytest.raises(UnavailableError, match="No space left on device"):
        cache.get_or_build("there", _never)
    assert descriptors_beneath(cache.path) == []


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_negative_quota_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="quota"):
        Cache(tmp_path, quota=-1)


def test_the_default_place_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_CACHE", str(tmp_path / "given"))
    assert Cache().path == tmp_path / "given"
    monkeypatch.delenv("REPOAGENT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Cache().path == tmp_path / "repoagent"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Cache().path == tmp_path / ".cache" / "repoagent"


_BUILDER = """
import os, signal, sys
from pathlib import Path
from repoagent.storage.cache import cache_store
from repoagent.storage.cache.cache import Cache

def die(*arguments, **options):
    print("dying", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def build(target):
    (target / "plan").write_bytes(b"half")
    if point == "build":
        die()

point = sys.argv[2]
if point == "sync":
    cache_store.sync_tree = die
elif point == "rename":
    Path.rename = die
elif point == "published":
    cache_store._sync_directory = die
Cache(Path(sys.argv[1])).get_or_build("key", build)
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["build", "sync", "rename"])
def test_a_builder_that_is_killed_leaves_nothing_that_counts(
    cache: Cache, child: Callable[..., Any], tmp_path: Path, point: str
) -> None:
    builder = child(_BUILDER, tmp_path / "cache", point)
    assert builder.expect() == "dying"
    builder.process.wait()
    assert len(_objects(tmp_path / "cache")) == 1
    cache.open_store()
    assert _objects(tmp_path / "cache") == []
    path = cache.get_or_build("key", _write(b"whole"))
    assert (path / "1/plan").read_bytes() == b"whole"
    assert _objects(tmp_path / "cache") == [name_of("key")]


@pytest.mark.slow
def test_a_builder_that_is_killed_after_the_rename_has_built_it(
    cache: Cache, child: Callable[..., Any], tmp_path: Path
) -> None:
    builder = child(_BUILDER, tmp_path / "cache", "published")
    assert builder.expect() == "dying"
    builder.process.wait()
    assert (cache.get_or_build("key", _never) / "plan").read_bytes() == b"half"


_WAITER = """
import sys
from pathlib import Path
from repoagent.storage.cache.cache import Cache

def build(target):
    print("building", flush=True)
    sys.stdin.readline()
    (target / "plan").write_text("built")

path = Cache(Path(sys.argv[1])).get_or_build("key", build)
print((path / "plan").read_text(), flush=True)
"""


@pytest.mark.slow
def test_a_waiting_process_takes_over_when_the_builder_is_killed(child: Callable[..., Any], tmp_path: Path) -> None:
    first = child(_WAITER, tmp_path / "cache")
    assert first.expect() == "building"
    second = child(_WAITER, tmp_path / "cache")
    with Cache(tmp_path / "cache") as third:
        assert not third.open_store().build_lock(name_of("key")).try_acquire()
        assert len(_objects(tmp_path / "cache")) == 1  # a living builder's work is not swept away
    first.kill()
    assert second.expect() == "building"
    second.tell()
    assert second.expect() == "built"


def test_processes_that_want_one_key_build_it_once(child: Callable[..., Any], tmp_path: Path) -> None:
    first = child(_WAITER, tmp_path / "cache")
    assert first.expect() == "building"
    others = [child(_WAITER, tmp_path / "cache") for _ in range(2)]
    first.tell()
    assert first.expect() == "built"
    assert [other.expect() for other in others] == ["built", "built"]


def test_checking_a_cache_makes_it_and_names_what_cannot_be_one(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.check()
    assert _objects(tmp_path / "cache") == []
    (tmp_path / "file").touch()
    with pytest.raises(
        InvalidArgumentError, match=r"cache directory .*file is not a directory; expected .* or name one"
    ):
        Cache(tmp_path / "file").check()
    with pytest.raises(
        UnavailableError, match=r"below: Not a directory; name one that this user can make and write to"
    ):
        Cache(tmp_path / "file" / "below").check()
    monkeypatch.setattr(os, "access", lambda path, *_, **__: path.name != "meta")  # Root may write anywhere.
    with pytest.raises(UnavailableError, match=r"cache cannot be written to by this user \(it is meta/ in it"):
        cache.check()
