import fcntl
import json
import logging
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent.storage.files.files import MemoryFiles
from repoagent.storage.workspaces.workspace import WorkspaceRoot

_MIB = 1 << 20


@pytest.fixture
def roots(tmp_path: Path, memory_dir: Path) -> Callable[..., WorkspaceRoot]:
    """Make a root on the test's own disk and memory directories, as a restarted process would."""

    def make(**options: Any) -> WorkspaceRoot:
        return WorkspaceRoot(tmp_path / "work", confidential_dir=memory_dir, **{"allow_swap": True, **options})

    return make


def _left(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.name != ".lock")


def _fake_proc(directory: Path, swaps: list[str], memory: Path, kind: str = "tmpfs", options: str = "rw") -> Path:
    device = os.stat(memory).st_dev
    mount = f"30 20 {os.major(device)}:{os.minor(device)} / {memory} rw,nosuid shared:4 - {kind} none {options}\n"
    (directory / "self").mkdir(parents=True)
    (directory / "self" / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mount)
    lines = "".join(f"{name} partition 1024 0 -2\n" for name in swaps)
    (directory / "swaps").write_text("Filename Type Size Used Priority\n" + lines)
    return directory


def test_directories_are_private_and_empty_and_asked_again_the_same(roots: Callable[..., WorkspaceRoot]) -> None:
    with roots() as root, root.new("a/../model") as workspace:
        first = workspace.directory("0-decrypt")
        assert list(first.iterdir()) == []
        assert workspace.directory("0-decrypt") == first
        assert workspace.directory("1-convert") != first
        for path in (first, first.parent, *first.parents[1:3]):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_labels_of_any_text_stay_inside_and_apart(roots: Callable[..., WorkspaceRoot], tmp_path: Path) -> None:
    with roots() as root, root.new("../../etc") as workspace:
        paths = [workspace.directory(label) for label in ("../../x", "__x", "", "..", "\0", "é" * 500)]
        assert len(set(paths)) == len(paths)
        assert all(path.is_relative_to(tmp_path / "work") for path in paths)


def test_a_directory_has_the_name_of_the_model_and_its_parent_nothing_else(roots: Callable[..., WorkspaceRoot]) -> None:
    with roots() as root, root.new("llama.v2 \u00e9") as workspace:
        one, other = workspace.directory("a"), workspace.directory("b")
        assert (one.name, other.name) == ("llama.v2 \u00e9", "llama.v2 \u00e9")
        assert [path.name for path in one.parent.iterdir()] == [one.name]
        workspace.remove(one)
        assert not one.parent.exists()
        assert other.exists()


def test_a_workspace_holds_what_it_handed_out(roots: Callable[..., WorkspaceRoot]) -> None:
    with roots() as root, root.new("m") as workspace:
        place, other = workspace.directory("a"), workspace.directory("b")
        assert workspace.holds(place)
        assert workspace.holds(place / "1" / "model.onnx")
        assert not workspace.holds(place.parent)
        workspace.remove_others(place / "1")
        assert (place.exists(), other.exists()) == (True, False)
        assert not workspace.holds(other)
        workspace.remove(place)
        assert not workspace.holds(place)
        assert not place.exists()


def test_only_what_holds_plaintext_goes_early(roots: Callable[..., WorkspaceRoot]) -> None:
    with roots() as root, root.new("m") as workspace:
        ordinary = workspace.directory("a")
        before = workspace.confidential
        secret = workspace.directory("b", confidential=True)
        later = workspace.directory("c")
        assert (before, workspace.confidential) == (False, True)
        workspace.directory("a")
        workspace.remove_confidential()
        assert [path.exists() for path in (ordinary, secret, later)] == [True, False, False]


def test_unlinked_files_keep_their_bytes_for_who_has_them_open(roots: Callable[..., WorkspaceRoot]) -> None:
    with roots() as root, root.new("m") as workspace:
        secret = workspace.directory("a", confidential=True)
        (secret / "f").write_bytes(b"weights")
        with (secret / "f").open("rb") as file:
            workspace.unlink()
            assert not secret.exists()
            assert file.read() == b"weights"


def test_closing_a_workspace_removes_it_and_leaves_others(roots: Callable[..., WorkspaceRoot]) -> None:
    with roots() as root:
        first, second = root.new("m"), root.new("m")
        (first.directory("a") / "file").write_text("1")
        (second.directory("a") / "file").write_text("2")
        kept = second.directory("a")
        first.close()
        first.close()
        assert (kept / "file").read_text() == "2"
        assert [path.name for path in kept.parents[2].iterdir() if path.is_dir()] == [kept.parents[1].name]
        with pytest.raises(UnavailableError, match="closed"):
            first.directory("b")


def test_closing_the_root_leaves_nothing_on_disk_or_in_memory(
    roots: Callable[..., WorkspaceRoot], tmp_path: Path, memory_dir: Path
) -> None:
    root = roots()
    workspace = root.new("m")
    (workspace.directory("plain") / "f").write_text("x")
    (workspace.directory("secret", confidential=True) / "f").write_text("x")
    root.close()
    root.close()
    assert _left(tmp_path / "work") == []
    assert _left(memory_dir / f"repoagent-{os.geteuid()}") == []
    with pytest.raises(UnavailableError, match="closed"):
        root.new("m")


def test_a_removed_directory_can_be_had_again_empty(roots: Callable[..., WorkspaceRoot], tmp_path: Path) -> None:
    with roots() as root, root.new("m") as workspace:
        path = workspace.directory("a")
        (path / "f").write_text("x")
        workspace.remove(path)
        assert not path.exists()
        assert list(workspace.directory("a").iterdir()) == []
        with pytest.raises(InvalidArgumentError):
            workspace.remove(tmp_path)


def test_read_only_trees_and_links_are_removed_and_links_not_followed(
    roots: Callable[..., WorkspaceRoot], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep me")
    with roots() as root, root.new("m") as workspace:
        for confidential in (False, True):
            path = workspace.directory(f"{confidential}", confidential=confidential)
            (path / "locked").mkdir()
            (path / "locked" / "f").write_text("x")
            (path / "link").symlink_to(outside)
            (path / "file-link").symlink_to(outside / "precious")
            os.mkfifo(path / "pipe")
            (path / "locked" / "f").chmod(0o400)
            (path / "locked").chmod(0o500)
    assert (outside / "precious").read_text() == "keep me"
    assert _left(tmp_path / "work") == []


def test_a_confidential_directory_is_in_memory_and_so_is_every_later_one(
    roots: Callable[..., WorkspaceRoot], memory_dir: Path
) -> None:
    with roots() as root, root.new("m") as workspace:
        plain = workspace.directory("fetched")
        states = [workspace.confidential]
        assert workspace.directory("decrypted", confidential=True).is_relative_to(memory_dir)
        states.append(workspace.confidential)
        assert states == [False, True]
        assert workspace.directory("converted").is_relative_to(memory_dir)
        assert workspace.directory("fetched") == plain
        with pytest.raises(InvalidArgumentError, match="on disk already"):
            workspace.directory("fetched", confidential=True)


def test_wiping_empties_a_file_that_somebody_still_has_open(roots: Callable[..., WorkspaceRoot]) -> None:
    with roots() as root:
        workspace = root.new("m")
        path = workspace.directory("a", confidential=True) / "plaintext"
        path.write_bytes(b"secret")
        with path.open("rb") as reader:
            workspace.close()
            assert reader.read() == b""


def test_a_size_hint_is_checked_against_what_is_free(roots: Callable[..., WorkspaceRoot]) -> None:
    with roots(free=lambda path: 100) as root, root.new("m") as workspace:
        with pytest.raises(UnavailableError, match=r"needs 101 bytes .* has 100 bytes free"):
            workspace.directory("a", confidential=True, size_hint=101)
        assert not workspace.confidential
        assert workspace.directory("a", confidential=True, size_hint=100).is_dir()


def test_reservations_of_other_loads_count_until_they_are_used_or_released(
    roots: Callable[..., WorkspaceRoot],
) -> None:
    free = [100]
    with roots(free=lambda path: free[0]) as root, root.new("m") as first, root.new("n") as second:
        held = first.directory("a", confidential=True, size_hint=60)
        with pytest.raises(UnavailableError, match=r"40 bytes free \(60 more are reserved"):
            second.directory("a", confidential=True, size_hint=41)
        (held / "f").write_bytes(b"x" * 60)
        free[0] = 40  # used now: neither free nor reserved any more
        second.directory("a", confidential=True, size_hint=40)
        first.remove(held)
        free[0] = 100
        second.directory("b", confidential=True, size_hint=60)


def test_a_refused_reservation_leaves_nothing(roots: Callable[..., WorkspaceRoot], memory_dir: Path) -> None:
    with roots(free=lambda path: 0) as root:
        with root.new("m") as workspace, pytest.raises(UnavailableError):
            workspace.directory("a", confidential=True, size_hint=1)
        left = _left(memory_dir / f"repoagent-{os.geteuid()}")
        assert [name for name in left if "-m" in name] == []


def test_a_full_memory_filesystem_is_a_clear_refusal(tmp_path: Path, tiny_tmpfs: Path) -> None:
    with WorkspaceRoot(tmp_path / "work", confidential_dir=tiny_tmpfs, allow_swap=True) as root:
        with root.new("m") as workspace:
            with pytest.raises(UnavailableError, match=f"needs {2 * _MIB} bytes"):
                workspace.directory("hinted", confidential=True, size_hint=2 * _MIB)
            files = MemoryFiles({"1/w": b"x" * 2 * _MIB}, lambda: workspace.directory("spill", confidential=True))
            with pytest.raises(UnavailableError, match="no space left"):
                files.local_path()
        with root.new("m") as workspace:
            assert workspace.directory("again", confidential=True, size_hint=_MIB // 2).is_dir()


def test_swap_refuses_confidential_directories_unless_allowed(
    roots: Callable[..., WorkspaceRoot], tmp_path: Path, memory_dir: Path
) -> None:
    proc = _fake_proc(tmp_path / "proc", ["/dev/sda2"], memory_dir)
    with roots(proc=proc, allow_swap=False) as root, root.new("m") as workspace:
        with pytest.raises(UnavailableError, match="/dev/sda2"):
            workspace.directory("a", confidential=True)
        assert workspace.directory("a").is_dir()
    with roots(proc=proc, allow_swap=True) as root, root.new("m") as workspace:
        assert workspace.directory("a", confidential=True).is_dir()


@pytest.mark.parametrize(
    ("swaps", "kind", "options"),
    [([], "tmpfs", "rw"), (["/swap"], "tmpfs", "rw,noswap"), (["/swap"], "ramfs", "rw")],
)
def test_memory_that_is_never_swapped_is_fine(
    roots: Callable[..., WorkspaceRoot], tmp_path: Path, memory_dir: Path, swaps: list[str], kind: str, options: str
) -> None:
    proc = _fake_proc(tmp_path / "proc", swaps, memory_dir, kind, options)
    with roots(proc=proc, allow_swap=False) as root, root.new("m") as workspace:
        assert workspace.directory("a", confidential=True).is_dir()


def test_without_a_memory_filesystem_confidential_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    proc = _fake_proc(tmp_path / "proc", [], tmp_path / "disk", kind="ext4")
    for directory, text in ((tmp_path / "disk", "ext4"), (tmp_path / "absent", "does not exist")):
        with (
            WorkspaceRoot(tmp_path / "work", confidential_dir=directory, proc=proc) as root,
            root.new("m") as workspace,
            pytest.raises(UnsupportedError, match=text),
        ):
            workspace.directory("a", confidential=True)


def test_not_knowing_about_swap_refuses(roots: Callable[..., WorkspaceRoot], tmp_path: Path, memory_dir: Path) -> None:
    proc = _fake_proc(tmp_path / "proc", [], memory_dir)
    (proc / "swaps").unlink()
    with roots(proc=proc, allow_swap=False) as root, pytest.raises(UnavailableError, match="cannot find out"):
        root.new("m").directory("a", confidential=True)


def test_the_default_root_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_WORKSPACE", str(tmp_path / "given"))
    with WorkspaceRoot() as root, root.new("m") as workspace:
        assert workspace.directory("a").is_relative_to(tmp_path / "given")
    monkeypatch.delenv("REPOAGENT_WORKSPACE")
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path / 'state'}:{tmp_path / 'other'}")
    with WorkspaceRoot() as root, root.new("m") as workspace:
        assert workspace.directory("a").is_relative_to(tmp_path / "state" / "workspace")
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with WorkspaceRoot() as root, root.new("m") as workspace:
        assert workspace.directory("a").is_relative_to(tmp_path / f"repoagent-{os.geteuid()}")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_root_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work").chmod(mode)
    with pytest.raises(InvalidArgumentError, match="lets others write"):
        WorkspaceRoot(tmp_path / "work")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_root_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir(mode=0o700)
    os.chown(tmp_path / "work", 12345, 12345)
    with pytest.raises(InvalidArgumentError, match="belongs to user 12345"):
        WorkspaceRoot(tmp_path / "work")


def test_a_default_root_that_is_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPOAGENT_WORKSPACE", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "victim").mkdir(mode=0o700)
    (tmp_path / f"repoagent-{os.geteuid()}").symlink_to("victim")
    with pytest.raises(InvalidArgumentError, match="is a link"):
        WorkspaceRoot()


def test_a_squatted_memory_root_stops_only_who_needs_it(
    roots: Callable[..., WorkspaceRoot], memory_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    squatted = memory_dir / f"repoagent-{os.geteuid()}"
    squatted.mkdir()
    squatted.chmod(0o777)
    with roots() as root, root.new("m") as workspace:
        assert "lets others write" in caplog.text
        assert workspace.directory("a").is_dir()
        with pytest.raises(InvalidArgumentError, match="lets others write"):
            workspace.directory("b", confidential=True)


@pytest.mark.parametrize("confidential", [False, True])
@pytest.mark.parametrize("whole", [True, False], ids=["root", "process directory"])
def test_what_a_cleaner_removes_is_made_again_and_said_once(
    roots: Callable[..., WorkspaceRoot],
    tmp_path: Path,
    memory_dir: Path,
    caplog: pytest.LogCaptureFixture,
    confidential: bool,
    whole: bool,
) -> None:
    """L17: a cleaner of /tmp must not end all later loads."""
    place = memory_dir / f"repoagent-{os.geteuid()}" if confidential else tmp_path / "work"
    with roots() as root:
        loaded = root.new("loaded")
        lost = loaded.directory("a", confidential=confidential)
        shutil.rmtree(place if whole else lost.parents[2])
        for name in ("m", "n"):
            with root.new(name) as workspace:
                path = workspace.directory("a", confidential=confidential)
                (path / "f").write_text("x")
                for made in (path, path.parent, path.parents[1], path.parents[2], place):
                    assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert [line for line in caplog.messages if "removed the workspace directory" in line] == caplog.messages
        assert len(caplog.messages) == 1
        loaded.close()
    assert _left(place) == []


@pytest.mark.parametrize("confidential", [False, True])
def test_what_a_load_writes_in_the_place_of_what_a_cleaner_removed_goes_too(
    roots: Callable[..., WorkspaceRoot], tmp_path: Path, memory_dir: Path, confidential: bool
) -> None:
    """Who writes a tree makes the directories above it: plaintext lay in the lost directory until the next start."""
    with roots() as root, root.new("loading") as loading:
        lost = loading.directory("a", confidential=confidential)
        shutil.rmtree(lost.parents[2])
        with root.new("m") as workspace:
            workspace.directory("a", confidential=confidential)
        (lost / "1").mkdir(parents=True)
        (lost / "1" / "weights").write_text("x")
        (lost.parents[2] / "more").write_text("x")
    assert _left(memory_dir / f"repoagent-{os.geteuid()}" if confidential else tmp_path / "work") == []


def test_a_forked_child_removes_nothing_that_its_parent_has_lost(
    roots: Callable[..., WorkspaceRoot], tmp_path: Path
) -> None:
    with roots() as root, root.new("m") as workspace:
        lost = workspace.directory("a")
        shutil.rmtree(tmp_path / "work")
        with root.new("n") as other:
            other.directory("a")
        lost.mkdir(parents=True)
        child = os.fork()
        if not child:
            root._disk.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert lost.exists()
    assert _left(tmp_path / "work") == []


def test_a_root_that_cannot_be_made_again_is_a_fault_until_it_can(
    roots: Callable[..., WorkspaceRoot], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with roots() as root, root.new("m") as workspace:
        workspace.directory("a")
        assert root.fault is None
        shutil.rmtree(tmp_path / "work")
        (tmp_path / "work").mkdir()
        (tmp_path / "work").chmod(0o777)  # as a stranger would, where all may write
        for _ in range(2):
            with root.new("n") as other, pytest.raises(UnavailableError, match="lets others write"):
                other.directory("a")
            assert "lets others write" in (root.fault or "")
        assert len(caplog.messages) == 1
        (tmp_path / "work").chmod(0o700)
        assert root.fault is None
        with root.new("n") as other:
            assert other.directory("a").is_dir()


def test_cleaners_that_respect_locks_find_the_root_and_the_processs_directory_locked(
    roots: Callable[..., WorkspaceRoot], tmp_path: Path
) -> None:
    with roots() as root, root.new("m") as workspace:
        process_directory = workspace.directory("a").parents[2]
        for directory in (tmp_path / "work", process_directory):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            with pytest.raises(BlockingIOError):  # as systemd-tmpfiles tries to lock it
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(fd)
        (process_directory / ".alive").unlink()  # by one that does not, for its age
        roots().close()
        assert workspace.directory("a").is_dir()


_HOLDER = """
import json, sys
from pathlib import Path
from repoagent.storage.workspaces.workspace import WorkspaceRoot
root = WorkspaceRoot(Path(sys.argv[1]), confidential_dir=Path(sys.argv[2]), allow_swap=True)
workspace = root.new("m")
paths = [workspace.directory("plain"), workspace.directory("secret", confidential=True)]
for path in paths:
    for name in "abc":
        (path / name).write_text("MARKER")
print(json.dumps([str(path) for path in paths]), flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_what_a_killed_process_left_goes_at_the_next_start_on_disk_and_in_memory(
    roots: Callable[..., WorkspaceRoot], child: Callable[..., Any], tmp_path: Path, memory_dir: Path
) -> None:
    holder = child(_HOLDER, tmp_path / "work", memory_dir)
    paths = [Path(path) for path in json.loads(holder.expect())]
    holder.kill()
    assert all((path / "a").read_text() == "MARKER" for path in paths)
    roots().close()
    assert _left(tmp_path / "work") == []
    assert _left(memory_dir / f"repoagent-{os.geteuid()}") == []


def test_what_a_living_process_holds_stays(
    roots: Callable[..., WorkspaceRoot], child: Callable[..., Any], tmp_path: Path, memory_dir: Path
) -> None:
    holder = child(_HOLDER, tmp_path / "work", memory_dir)
    paths = [Path(path) for path in json.loads(holder.expect())]
    with roots(), roots():
        assert all((path / "a").read_text() == "MARKER" for path in paths)


def test_what_is_not_ours_stays(roots: Callable[..., WorkspaceRoot], tmp_path: Path) -> None:
    root = tmp_path / "work"
    for name in ("mine", "12-short", "123-0123456789abcdef.old", "x-0123456789abcdef"):
        (root / name).mkdir(parents=True)
        (root / name / "f").write_text("x")
    (root / "1-0123456789abcdef").write_text("a file")
    (root / "2-0123456789abcdef").symlink_to("mine")
    root.chmod(0o700)
    before = _left(root)
    roots().close()
    assert _left(root) == before


@pytest.mark.parametrize(("dead", "counted"), [(1, "a dead process"), (2, "2 dead processes")])
def test_a_directory_whose_lock_was_never_made_is_dead(
    roots: Callable[..., WorkspaceRoot], tmp_path: Path, caplog: pytest.LogCaptureFixture, dead: int, counted: str
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(dead):
        (tmp_path / "work" / f"7{number}-0123456789abcdef" / "m").mkdir(parents=True)
    (tmp_path / "work").chmod(0o700)
    roots().close()
    assert _left(tmp_path / "work") == []
    assert f"removed what {counted} left in {tmp_path / 'work'}" in caplog.text


_CLEANER = """
import sys
from pathlib import Path
from repoagent.storage.paths import trees
from repoagent.storage.workspaces.workspace import WorkspaceRoot
remove, count = trees._remove_entry, 0
def stop_after_two(*arguments):
    global count
    count += 1
    if count == 3:
        print("cleaning", flush=True)
        sys.stdin.readline()
    remove(*arguments)
trees._remove_entry = stop_after_two
WorkspaceRoot(Path(sys.argv[1]), confidential_dir=Path(sys.argv[2]), allow_swap=True)
"""


@pytest.mark.slow
def test_a_kill_in_the_middle_of_cleaning_is_finished_by_the_next_start(
    roots: Callable[..., WorkspaceRoot], child: Callable[..., Any], tmp_path: Path, memory_dir: Path
) -> None:
    holder = child(_HOLDER, tmp_path / "work", memory_dir)
    holder.expect()
    holder.kill()
    cleaner = child(_CLEANER, tmp_path / "work", memory_dir)
    assert cleaner.expect() == "cleaning"
    with roots():  # neither waits for the cleaner nor takes its work away
        assert len(_left(tmp_path / "work")) > 1
    cleaner.kill()
    roots().close()
    assert _left(tmp_path / "work") == []
    assert _left(memory_dir / f"repoagent-{os.geteuid()}") == []


_STARTER = """
import sys
from pathlib import Path
from repoagent.storage.workspaces.workspace import WorkspaceRoot
print("ready", flush=True)
sys.stdin.readline()
root = WorkspaceRoot(Path(sys.argv[1]), confidential_dir=Path(sys.argv[2]), allow_swap=True)
print(root.new("m").directory("a"), flush=True)
sys.stdin.readline()
root.close()
"""


@pytest.mark.slow
def test_processes_that_start_at_once_clean_together_and_keep_their_own(
    child: Callable[..., Any], tmp_path: Path, memory_dir: Path
) -> None:
    (tmp_path / "work").mkdir(mode=0o700)
    for number in range(50):
        (tmp_path / "work" / f"{number}-0123456789abcdef" / "m" / "1").mkdir(parents=True)
    starters = [child(_STARTER, tmp_path / "work", memory_dir) for _ in range(4)]
    for starter in starters:
        assert starter.expect() == "ready"
    for starter in starters:
        starter.tell()
    own = [Path(starter.expect()) for starter in starters]
    assert all(path.is_dir() for path in own)
    assert not list((tmp_path / "work").glob("*-0123456789abcdef"))
    for starter in starters:
        starter.tell()
        assert starter.process.wait() == 0
    assert _left(tmp_path / "work") == []


def test_a_forked_child_removes_nothing_of_its_parent(roots: Callable[..., WorkspaceRoot]) -> None:
    with roots() as root, root.new("m") as workspace:
        path = workspace.directory("a")
        pid = os.fork()
        if pid == 0:
            root._disk.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert path.is_dir()
