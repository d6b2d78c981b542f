from pathlib import Path

import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.serving.repositories.repository_set import MappedRepository
from repoagent.storage import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return Repository.open(str(tmp_path))


def test_a_mapped_directory_has_the_new_name_only(repository: Repository) -> None:
    mapped = MappedRepository(repository, [("first", "model")])
    assert mapped.model_names() == ["model", "second"]
    source = mapped.model("model")
    assert source is not None
    assert (source.name, Path(source.location).name) == ("model", "first")
    assert mapped.model("first") is None
    assert mapped.model("second") is not None
    assert mapped.url == repository.url
    assert mapped.mapped == frozenset({"model"})


def test_two_directories_can_change_names(repository: Repository) -> None:
    mapped = MappedRepository(repository, [("first", "second"), ("second", "first")])
    source = mapped.model("first")
    assert source is not None
    assert Path(source.location).name == "second"


def test_a_name_is_given_once(repository: Repository) -> None:
    text = "failed to register './models', there is a conflicting mapping for 'model'"
    with pytest.raises(InvalidArgumentError, match=text):
        MappedRepository(repository, [("first", "model"), ("second", "model")], "./models")


def test_a_mapped_model_that_is_gone_is_none(repository: Repository) -> None:
    assert MappedRepository(repository, [("gone", "model")]).model("model") is None


def test_a_directory_has_every_name_that_it_is_given_and_may_keep_its_own(repository: Repository) -> None:
    """L31: only the last name existed."""
    mapped = MappedRepository(repository, [("first", "a"), ("first", "first"), ("first", "b"), ("second", "second")])
    assert mapped.model_names() == ["a", "b", "first", "second"]
    sources = [mapped.model(name) for name in mapped.model_names()]
    assert [(it.name, Path(it.location).name, it.renamed) for it in sources if it is not None] == [
        ("a", "first", True),
        ("b", "first", True),
        ("first", "first", False),
        ("second", "second", False),
    ]
