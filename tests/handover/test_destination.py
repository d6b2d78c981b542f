"""The directory that another server reads, and those who put something else in its way."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest

from repoagent.errors import CancelledError, InvalidArgumentError, UnsafePathError
from repoagent.handover.destination import Destination
from repoagent.loader.chain import LoadedChain
from repoagent.storage.workspaces.private import private_root
from repoagent.storage.workspaces.process_dir import ProcessDirectory


def chain_at(place: Path) -> LoadedChain:
    """A chain that has left a model in ``place``."""
    files: Any = SimpleNamespace(local_path=lambda: place, fleeting=False)
    return cast("LoadedChain", SimpleNamespace(files=files))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "model" / "1" / "program").write_text("x")
    (tmp_path / "model" / "1" / "program").chmod(0o700)
    return tmp_path / "model"


def test_nothing_is_in_place_before_it_is_published(model: Path, tmp_path: Path) -> None:
    with Destination(tmp_path / "out") as place:
        place.stage(chain_at(model))
        assert not (tmp_path / "out" / "1").exists()
        place.publish()
    assert [path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")] == ["1"]
    assert (tmp_path / "out" / "1" / "program").stat().st_mode & 0o777 == 0o755


def test_another_directory_in_its_place_gets_nothing(model: Path, tmp_path: Path) -> None:
    out, attackers = tmp_path / "out", tmp_path / "attackers"
    attackers.mkdir()

    def swap() -> None:
        with Destination(out) as place:
            place.stage(chain_at(model))
            out.rename(tmp_path / "away")
            out.symlink_to(attackers)
            place.publish()

    with pytest.raises(InvalidArgumentError, match="was replaced by another directory"):
        swap()
    assert os.listdir(attackers) == []
    assert os.listdir(tmp_path / "away") == []


def test_a_failure_leaves_only_what_another_process_has_there_by_now(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    root = out / f"repoagent-{os.geteuid()}"
    with ExitStack() as stack:

        def fail() -> None:
            with Destination(out) as place:
                place.stage(chain_at(model))
                other = ProcessDirectory(private_root(root, purpose="workspace"), wipe=True)
                stack.callback(other.close)
                raise CancelledError("stopped")

        with pytest.raises(CancelledError):
            fail()
        assert sorted(os.listdir(out)) == [".repoagent-prepared", root.name]
        assert [path.is_dir() for path in root.iterdir()].count(True) == 1
    with pytest.raises(CancelledError), Destination(out):
        raise CancelledError("stopped")
    assert os.listdir(out) == []


def test_a_copy_that_takes_long_is_given_up(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CancelledError), Destination(tmp_path / "out") as place:
        place.stage(chain_at(model), cancelled=lambda: True)
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    os.chown(tmp_path / "out", 1001, 1001)
    with pytest.raises(InvalidArgumentError, match="belongs to user 1001"), Destination(tmp_path / "out"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mode", [0o777, 0o2777])
def test_a_volume_of_kubernetes_will_do(model: Path, mode: int) -> None:
    """It belongs to root, every user may write to it, and the container has another user."""
    with TemporaryDirectory(dir="/dev/shm") as place:
        os.chmod(place, 0o755)
        volume, plain = Path(place, "volume"), shutil.copytree(model, Path(place, "plain"))
        for path in plain.rglob("*"):
            os.chown(path, 1001, 1001)
        volume.mkdir()
        volume.chmod(mode)
        os.seteuid(1001)
        try:
            with Destination(volume) as destination:
                destination.stage(chain_at(plain))
                destination.publish()
        finally:
            os.seteuid(0)
        assert (volume / "1" / "program").stat().st_uid == 1001


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_that_another_user_made_first_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in /dev/shm, where every user may."""
    make = Path.mkdir

    def made_by_another(path: Path, **options: Any) -> None:
        make(path)
        os.chown(path, 1001, 1001)
        make(path, **options)

    monkeypatch.setattr(Path, "mkdir", made_by_another)
    with pytest.raises(InvalidArgumentError, match="belongs to user 1001"), Destination(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path / "out") == []


def test_a_new_directory_is_readable_whatever_the_umask(model: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with Destination(tmp_path / "out") as place:
            place.stage(chain_at(model))
            place.publish()
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(UnsafePathError, match="is not a directory"), Destination(tmp_path / "out"):
        pass


def test_a_link_that_the_last_agent_left_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(UnsafePathError, match="passwd"), Destination(tmp_path / "out") as place:
        place.stage(chain_at(model))
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("name", [".repoagent-prepared", ".repoagent-stage", f"repoagent-{os.geteuid()}", "lost+found"])
def test_a_model_cannot_have_the_names_that_say_what_may_be_removed(model: Path, tmp_path: Path, name: str) -> None:
    (model / name).write_text("x")
    with pytest.raises(UnsafePathError, match="which this command needs"), Destination(tmp_path / "out") as place:
        place.stage(chain_at(model))
    assert os.listdir(tmp_path / "out") == []
