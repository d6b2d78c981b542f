"""The words of a command; its processes are in tests/cli/test_run.py."""

from pathlib import Path

import pytest

from repoagent.errors import AlreadyExistsError, InvalidArgumentError
from repoagent.handover.command import fill_in
from repoagent.handover.stable_link import stable_link

VALUES = {"model": "/m/{version}", "version": None, "name": "-rf", "repository": "/m"}


def test_places_are_filled_once_and_other_braces_stay() -> None:
    words = ["--model={model}", "{repository}/{x}", "${HOME}", "a{name}"]
    assert fill_in(words, VALUES) == ["--model=/m/{version}", "/m/{x}", "${HOME}", "a-rf"]


@pytest.mark.parametrize(
    ("word", "text"), [("{version}", "no version directory"), ("{name}", "would take for a flag"), ("{name}x", "flag")]
)
def test_a_place_that_cannot_be_filled_is_refused(word: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        fill_in([word], VALUES)


def test_a_link_that_another_process_made_meanwhile_is_not_removed(tmp_path: Path) -> None:
    at, place = tmp_path / "at", tmp_path / "1-0123456789abcdef" / "1" / "m"
    with stable_link(at, place):
        assert at.readlink() == place
        at.unlink()
        at.symlink_to("/elsewhere")
    assert at.readlink() == Path("/elsewhere")


def test_a_link_of_a_killed_process_is_replaced_while_its_files_are_gone(tmp_path: Path) -> None:
    at, dead = tmp_path / "at", tmp_path / "1-0123456789abcdef" / "1" / "m"
    at.symlink_to(dead)
    with stable_link(at, tmp_path / "new"):
        assert at.readlink() == tmp_path / "new"
    dead.mkdir(parents=True)
    at.symlink_to(dead)
    with pytest.raises(AlreadyExistsError), stable_link(at, tmp_path / "new"):
        pass
    assert at.readlink() == dead
