import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import InvalidArgumentError, UnavailableError
from repoagent.storage.cache.blob_store import BlobStore, Spare
from repoagent.storage.cache.cache import Cache, CacheScope
from repoagent.storage.transfer.partial_file import CHUNK
from repoagent.storage.transfer.streams import SEGMENT, RemoteFile, web_opener
from repoagent.web import Hosts, WebClient
from tests.extent import in_full
from tests.file_server import FileServer, Request
from tests.storage.digests import digest_of

BIG = os.urandom(2 * SEGMENT + 4321)
Files = dict[str, bytes]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FileServer({"/big": BIG, "/small": b"small"}) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "cache") as cache:
        yield cache


def remote(server: FileServer, name: str, path: str = "", *, pinned: bool = True) -> RemoteFile:
    url = f"{server.url}/{name}"
    content = server.files[f"/{name}"]
    opener = web_opener(WebClient(Hosts(["127.0.0.1"]), timeout=60), url)
    digest = digest_of(content) if pinned else ""
    return RemoteFile(path or name, url, opener, len(content), server.tag_of(f"/{name}", content), digest, key=url)


def _bring(scope: CacheScope, files: list[RemoteFile], target: Path) -> None:
    scope.download(files, target)


def build(cache: Cache, key: str, files: list[RemoteFile]) -> Path:
    with cache.scope() as scope:
        return scope.get_or_build(key, lambda target: _bring(scope, files, target))


def listed(cache: Cache, directory: str) -> list[str]:
    return sorted(os.listdir(cache.path / directory))


def test_a_model_is_links_to_blobs_named_by_their_digest(server: FileServer, cache: Cache) -> None:
    tree = build(cache, "m", [remote(server, "big", "1/w"), remote(server, "small", "config.pbtxt")])
    assert (tree / "1/w").read_bytes() == BIG
    blob = cache.path / "blobs" / hashlib.sha256(BIG).hexdigest()
    assert blob.samefile(tree / "1/w")
    assert stat.S_IMODE(blob.stat().st_mode) & 0o222 == 0
    assert listed(cache, "parts") == []
    assert [name for name in listed(cache, "locks") if name.endswith(".part")] == []


@pytest.mark.parametrize("pinned", [True, False])
def test_a_file_of_two_models_comes_once(server: FileServer, cache: Cache, pinned: bool) -> None:
    first = build(cache, "a", [remote(server, "big", "1/w", pinned=pinned)])
    second = build(cache, "b", [remote(server, "big", "2/other", pinned=pinned)])
    assert (first / "1/w").samefile(second / "2/other")
    assert server.sent == len(BIG)


def test_equal_content_from_two_places_is_kept_once(server: FileServer, cache: Cache) -> None:
    server.files["/copy"] = BIG
    files = [remote(server, "big", "1/w", pinned=False), remote(server, "copy", "2/w", pinned=False)]
    tree = build(cache, "m", files)
    assert (tree / "1/w").samefile(tree / "2/w")
    assert len(listed(cache, "blobs")) == 1


def test_a_changed_file_without_a_digest_comes_again(server: FileServer, cache: Cache) -> None:
    build(cache, "a", [remote(server, "small", pinned=False)])
    server.files["/small"] = b"other"
    assert (build(cache, "b", [remote(server, "small", pinned=False)]) / "small").read_bytes() == b"other"


def test_outside_of_the_cache_files_are_private_copies(server: FileServer, cache: Cache, tmp_path: Path) -> None:
    with cache.scope() as scope:
        scope.download([remote(server, "big", "w")], tmp_path)
    (tmp_path / "w").write_bytes(b"changed")
    assert (build(cache, "m", [remote(server, "big", "w")]) / "w").read_bytes() == BIG
    assert server.sent == len(BIG)


def test_offline_only_what_is_here_can_be_had(server: FileServer, cache: Cache, tmp_path: Path) -> None:
    with cache.scope() as scope:
        with pytest.raises(UnavailableError, match=r"small is not in the cache, and the server is offline"):
            scope.download([remote(server, "small")], tmp_path, offline=True)
        assert server.requests == []
        scope.download([remote(server, "small", "a")], tmp_path)
        scope.download([remote(server, "small", "b")], tmp_path, offline=True)
    assert len(server.requests) == 1


def test_a_wrong_digest_leaves_nothing(server: FileServer, cache: Cache, tmp_path: Path) -> None:
    file = remote(server, "small")
    server.files["/small"] = b"smell"
    with cache.scope() as scope, pytest.raises(InvalidArgumentError, match="has the digest"):
        scope.download([file], tmp_path)
    assert listed(cache, "blobs") == listed(cache, "parts") == []


def test_a_blob_of_another_size_is_replaced(server: FileServer, cache: Cache, tmp_path: Path) -> None:
    build(cache, "a", [remote(server, "small")])
    blob = cache.path / "blobs" / hashlib.sha256(b"small").hexdigest()
    blob.chmod(0o600)
    blob.write_bytes(b"")  # what a crash of the machine may leave
    with cache.scope() as scope:
        scope.download([remote(server, "small", "again")], tmp_path)
    assert (tmp_path / "again").read_bytes() == b"small"


def test_the_quota_counts_a_shared_file_once_and_removes_what_no_model_has(server: FileServer, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", quota=len(BIG) + 100)
    first = build(cache, "a", [remote(server, "big", "1/w")])
    second = build(cache, "b", [remote(server, "big", "1/w"), remote(server, "small")])
    assert first.exists()
    assert second.exists()
    server.files["/new"] = BIG[::-1]
    third = build(cache, "c", [remote(server, "new", "1/w")])
    assert not first.exists()
    assert not second.exists()
    assert (third / "1/w").exists()
    assert len(listed(cache, "blobs")) == 1 + (cache.path / "blobs" / hashlib.sha256(b"small").hexdigest()).exists()


def test_the_quota_spares_the_files_of_a_model_in_use(server: FileServer, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", quota=10)
    with cache.scope() as scope:
        tree = scope.get_or_build("a", lambda target: _bring(scope, [remote(server, "big")], target))
        build(cache, "b", [remote(server, "small")])
        cache.shrink()
        assert (tree / "big").read_bytes() == BIG
        assert len(listed(cache, "blobs")) >= 1
    cache.shrink()
    assert listed(cache, "objects") == []
    assert hashlib.sha256(BIG).hexdigest() not in listed(cache, "blobs")


def test_the_quota_looks_once_for_all_that_no_model_has(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may have a hundred thousand files, and each look goes through all of them."""
    cache = Cache(tmp_path / "cache", quota=0)
    server.files |= {f"/{number}": b"%d" % number for number in range(100)}
    with cache.scope() as scope:
        scope.download([remote(server, str(number)) for number in range(100)], tmp_path)
    assert len(listed(cache, "blobs")) == 100
    looks: list[BlobStore] = []
    look = BlobStore.spares

    def counted(store: BlobStore) -> Iterator[Spare]:
        looks.append(store)
        return look(store)

    monkeypatch.setattr(BlobStore, "spares", counted)
    cache.shrink()
    assert listed(cache, "blobs") == []
    assert len(looks) == 1


def test_the_quota_removes_unfinished_downloads(server: FileServer, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", quota=0)
    server.before_piece = lambda _request, position: position < SEGMENT
    with cache.scope() as scope, pytest.raises(UnavailableError):
        scope.download([remote(server, "big")], tmp_path)
    assert len(listed(cache, "parts")) == 3
    cache.shrink()
    assert listed(cache, "parts") == []


def test_an_unfinished_download_goes_after_a_week(server: FileServer, tmp_path: Path) -> None:
    server.before_piece = lambda _request, position: position < SEGMENT
    with Cache(tmp_path / "cache").scope() as scope, pytest.raises(UnavailableError):
        scope.download([remote(server, "big")], tmp_path)
    parts = tmp_path / "cache" / "parts"
    Cache(tmp_path / "cache").open_store()
    assert len(list(parts.iterdir())) == 3
    for path in parts.iterdir():
        os.utime(path, (0, 0))
    Cache(tmp_path / "cache").open_store()
    assert list(parts.iterdir()) == []


def test_a_full_disk_is_reported_and_leaves_what_was_there(server: FileServer, tiny_tmpfs: Path) -> None:
    cache = Cache(tiny_tmpfs / "cache")
    tree = build(cache, "a", [remote(server, "small")])
    with pytest.raises(UnavailableError, match=r"needs \d+ bytes and .* has \d+ bytes free"):
        build(cache, "b", [remote(server, "big")])
    server.ranges = False  # now the size is known only when it is too late
    opener = web_opener(WebClient(Hosts(["127.0.0.1"]), timeout=60), f"{server.url}/big")
    with pytest.raises(UnavailableError, match="no space left"):
        build(cache, "c", [RemoteFile("big", "big", opener)])
    assert (tree / "small").read_bytes() == b"small"
    assert listed(cache, "parts") == []
    assert len(listed(cache, "objects")) == len(listed(cache, "blobs")) == 1
    server.files["/again"] = b"x" * 300_000  # the room is there again
    build(cache, "d", [remote(server, "again")])


@pytest.mark.slow
def test_many_small_files_come(server: FileServer, cache: Cache) -> None:
    count = in_full(10_000, otherwise=1_500)
    server.files = {f"/{number}": b"%d" % number for number in range(count)}
    files = [remote(server, f"{one}", f"{one % 100}/{one}", pinned=one % 2 == 0) for one in range(count)]
    client = WebClient(Hosts(["127.0.0.1"]), timeout=60)
    opened = [RemoteFile(f.path, f.name, web_opener(client, f.name), f.size, f.tag, f.digest, f.key) for f in files]
    tree = build(cache, "m", opened)
    assert (tree / "42/1442").read_bytes() == b"1442"
    assert sum(1 for path in tree.rglob("*") if path.is_file()) == len(server.requests) == count


_CHILD = """
import os, signal, sys
from pathlib import Path
from repoagent.storage.cache import blob_store, cache_store
from repoagent.storage.cache.blob_store import BlobStore
from repoagent.storage.cache.cache import Cache, CacheScope
from repoagent.storage.transfer import download_file, partial_file
from repoagent.storage.transfer.streams import RemoteFile
from repoagent.storage.transfer.streams import web_opener
from repoagent.web import Hosts, WebClient

path, url, digest, size, point, count = sys.argv[1:]
left = int(count)

def dying(function, after):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **options)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

owner, _, name = point.partition(" ")
after = owner.startswith("after:")
targets = {"PartialFile": partial_file.PartialFile, "BlobStore": blob_store.BlobStore,
           "CacheStore": cache_store.CacheStore, "os": os, "Path": Path, "none": None}
target = targets[owner.removeprefix("after:")]
if target is not None:
    setattr(target, name, dying(getattr(target, name), after))
print("ready", flush=True)
if point == "none":
    sys.stdin.readline()
opener = web_opener(WebClient(Hosts(["127.0.0.1"]), timeout=60), url)
file = RemoteFile("1/w", url, opener, int(size), digest=digest)
with Cache(Path(path)) as cache, cache.scope() as scope:
    tree = scope.get_or_build("m", lambda target: scope.download([file], target) and None)
    print((tree / "1/w").stat().st_size, flush=True)
"""

_POINTS = [
    *[("PartialFile mark", number) for number in (1, 2, 5, 9, 12, 15, 17)],
    *[("after:PartialFile mark", number) for number in (1, 8, 17)],
    *[("PartialFile write", number) for number in (1, 8)],
    ("PartialFile keep", 1),
    ("after:PartialFile keep", 1),
    ("os fsync", 1),
    ("BlobStore _publish", 1),
    ("after:BlobStore _publish", 1),
    ("BlobStore _give", 2),
    ("after:BlobStore _give", 2),
    ("CacheStore _publish", 1),
    ("Path chmod", 1),
    ("os link", 1),
    ("after:os link", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "count"), _POINTS)
def test_a_kill_at_any_point_corrupts_nothing_and_the_next_fetch_continues(
    server: FileServer, child: Callable[..., Any], tmp_path: Path, point: str, count: int
) -> None:
    arguments = (tmp_path / "cache", f"{server.url}/big", digest_of(BIG), len(BIG))
    killed = child(_CHILD, *arguments, point, count)
    assert killed.expect() == "ready"
    killed.process.wait()
    assert killed.process.returncode == -9, "the point was not reached"
    with Cache(tmp_path / "cache") as cache:
        cache.open_store()
        marks = b"".join(part.read_bytes() for part in cache.path.glob("parts/*.marks"))
        kept = sum(len(BIG[chunk * CHUNK : (chunk + 1) * CHUNK]) for chunk, mark in enumerate(marks) if mark)
        for blob in cache.path.glob("blobs/*"):
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
            kept = len(BIG)
    server.restart_count()
    opener = web_opener(WebClient(Hosts(["127.0.0.1"]), timeout=60), f"{server.url}/big")
    with Cache(tmp_path / "cache") as cache:
        build(cache, "m", [RemoteFile("1/w", f"{server.url}/big", opener, len(BIG), digest=digest_of(BIG))])
    assert server.sent == len(BIG) - kept
    with Cache(tmp_path / "cache") as cache, cache.scope() as scope:
        tree = scope.get_or_build("m", lambda target: pytest.fail("it is there"))
        assert (tree / "1/w").read_bytes() == BIG
        assert listed(cache, "parts") == []
        assert [name for name in listed(cache, "locks") if name.endswith(".part")] == []
        assert [name for name in listed(cache, "objects") if name.startswith(".")] == []


@pytest.mark.slow
def test_eight_processes_download_a_model_once(server: FileServer, child: Callable[..., Any], tmp_path: Path) -> None:
    arguments = (tmp_path / "cache", f"{server.url}/big", digest_of(BIG), len(BIG), "none", 0)
    children = [child(_CHILD, *arguments) for _ in range(8)]
    for one in children:
        assert one.expect() == "ready"
    for one in children:
        one.tell()
    assert [one.expect() for one in children] == [str(len(BIG))] * 8
    assert server.sent == len(BIG)


_MEASURED = """
import sys
from pathlib import Path
from repoagent.storage.cache.cache import Cache
from repoagent.storage.transfer.streams import RemoteFile
from repoagent.storage.transfer.streams import web_opener
from repoagent.web import Hosts, WebClient
path, url, digest, size = sys.argv[1:]
opener = web_opener(WebClient(Hosts(["127.0.0.1"]), timeout=60), url)
with Cache(Path(path)) as cache, cache.scope() as scope:
    file = RemoteFile("1/w", url, opener, int(size), digest=digest)
    scope.get_or_build("m", lambda target: scope.download([file], target) and None)
# Not ru_maxrss: a child begins with that of its parent.
print(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")), flush=True)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(server: FileServer, child: Callable[..., Any], tmp_path: Path) -> None:
    peaks = []
    for size in (32 << 20, 256 << 20):
        content = bytes(size)
        server.files["/zeros"] = content
        one = child(_MEASURED, tmp_path / str(size), f"{server.url}/zeros", digest_of(content), size)
        peaks.append(int(one.expect()) << 10)
        one.process.wait()
    assert peaks[1] - peaks[0] < 32 << 20


@pytest.mark.slow
def test_a_process_takes_over_when_the_one_that_downloads_is_killed(
    server: FileServer, child: Callable[..., Any], tmp_path: Path
) -> None:
    arguments = (tmp_path / "cache", f"{server.url}/big", digest_of(BIG), len(BIG), "none", 0)
    first, second = child(_CHILD, *arguments), child(_CHILD, *arguments)

    def kill(request: Request, position: int) -> None:
        if position >= SEGMENT + 3 * CHUNK and first.process.poll() is None:
            first.kill()

    server.before_piece = kill
    assert first.expect() == second.expect() == "ready"
    first.tell()
    first.process.wait()
    second.tell()
    assert second.expect() == str(len(BIG))
    assert server.sent <= len(BIG) + 2 * SEGMENT


def test_a_disk_that_fails_is_not_blamed_on_the_source(
    server: FileServer, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with cache.scope() as scope, pytest.raises(UnavailableError, match=r"no space left on .*parts"):
        scope.download([remote(server, "big")], tmp_path)
    assert len(server.requests) == 1


def test_after_a_start_of_the_machine_small_files_that_no_model_has_come_again(
    server: FileServer, cache: Cache, tmp_path: Path
) -> None:
    build(cache, "a", [remote(server, "small")])
    with cache.scope() as scope:
        server.files["/loose"] = b"loose"
        scope.download([remote(server, "loose"), remote(server, "big")], tmp_path)
    names = {name: hashlib.sha256(server.files[f"/{name}"]).hexdigest() for name in ("small", "loose", "big")}
    assert listed(cache, "blobs") == sorted(names.values())
    Cache(cache.path).open_store()
    assert listed(cache, "blobs") == sorted(names.values())
    (cache.path / "boot").write_text("an earlier one")
    Cache(cache.path).open_store()
    assert listed(cache, "blobs") == sorted([names["small"], names["big"]])
