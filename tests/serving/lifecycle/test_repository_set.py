import shutil
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from repoagent.serving.lifecycle.repository_set import MappedRepository, RepositorySet
from repoagent.storage.repositories.sources import Repository


@pytest.fixture
def both(tmp_path: Path) -> RepositorySet:
    for path in ("one/a", "one/shared", "two/b", "two/shared"):
        (tmp_path / path).mkdir(parents=True)
    return RepositorySet([str(tmp_path / name) for name in ("one", "two")], Repository.open)


def test_the_models_of_all_repositories_are_listed_once(both: RepositorySet) -> None:
    assert both.names() == ["a", "b", "shared"]


def test_a_model_is_found_wherever_it_lies(both: RepositorySet, tmp_path: Path) -> None:
    assert both.find("b").location == str(tmp_path / "two" / "b")


def test_a_model_in_two_places_is_refused_with_the_numbers_of_both(both: RepositorySet) -> None:
    """L20: clients read which two, and no URL."""
    with pytest.raises(InvalidArgumentError, match="it is in the repositories 1 and 2, counted as"):
        both.find("shared")


def test_a_model_that_is_nowhere_is_not_found(both: RepositorySet) -> None:
    with pytest.raises(NotFoundError, match="model not found in any model repository"):
        both.find("c")


def test_a_repository_is_added_and_taken_away(both: RepositorySet, tmp_path: Path) -> None:
    (tmp_path / "three" / "c").mkdir(parents=True)
    both.register(str(tmp_path / "three"))
    assert both.find("c").name == "c"
    with pytest.raises(AlreadyExistsError, match=r"'.*three' has already been registered"):
        both.register(str(tmp_path / "three"))
    both.unregister(str(tmp_path / "three"))
    assert both.names() == ["a", "b", "shared"]
    with pytest.raises(InvalidArgumentError, match=r"failed to unregister '.*three', repository not found"):
        both.unregister(str(tmp_path / "three"))


def test_what_could_never_be_listed_has_no_last_listing(both: RepositorySet, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "two")
    with pytest.raises(NotFoundError, match="two: it does not exist"):
        both.listing()


def test_a_file_in_place_of_a_repository_is_named_as_one(both: RepositorySet, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "two")
    (tmp_path / "two").write_bytes(b"a model")
    with pytest.raises(NotFoundError, match="two: it is not a directory"):
        both.listing()


def test_a_model_is_known_if_one_of_its_repositories_can_be_listed(both: RepositorySet, tmp_path: Path) -> None:
    both.names()
    shutil.rmtree(tmp_path / "two")
    gone = f"cannot list model repository {tmp_path / 'two'}: it does not exist"
    twice = (
        "not unique across all model repositories: it is in the repositories 1 and 2, counted as the server was given "
        "them"
    )
    assert both.listing() == {"a": "", "b": gone, "shared": twice}
    with pytest.raises(NotFoundError, match="two: it does not exist"):
        both.names()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0", 5])
def test_a_name_that_no_model_can_have_is_refused(both: RepositorySet, tmp_path: Path, name: Any) -> None:
    (tmp_path / "three" / "c").mkdir(parents=True)
    with pytest.raises(InvalidArgumentError, match="cannot be the name of the model in 'c'"):
        both.register(str(tmp_path / "three"), {"c": name})
    assert both.names() == ["a", "b", "shared"]


def test_a_repository_that_does_not_exist_is_not_added(both: RepositorySet, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"failed to register '.*none', repository not found"):
        both.register(str(tmp_path / "none"))
    assert both.names() == ["a", "b", "shared"]


@pytest.mark.parametrize("again", ["one", "one/", "./one", "file://{}/one", "link", "link/../one"])
def test_a_repository_that_is_given_twice_counts_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, again: str
) -> None:
    """L18: every model of it was refused as being in two."""
    (tmp_path / "one" / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to("one")
    spelled = again.format(tmp_path) if "{}" in again else f"{tmp_path}/{again}"
    repositories = RepositorySet([str(tmp_path / "one"), spelled], Repository.open)
    assert repositories.names() == ["a"]
    assert repositories.find("a").location == str(tmp_path / "one" / "a")
    assert "it counts once" in caplog.text
    with pytest.raises(AlreadyExistsError, match="has already been registered"):
        repositories.register(spelled)
    repositories.unregister(spelled)
    assert repositories.names() == []


def test_a_mapped_name_wins_over_one_that_is_not(both: RepositorySet, tmp_path: Path) -> None:
    """L31: the unmapped one was loaded, silently."""
    (tmp_path / "three" / "a").mkdir(parents=True)
    both.register(str(tmp_path / "three"), [("a", "a"), ("a", "b"), ("a", "shared"), ("a", "new")])
    assert {both.find(name).location for name in both.names()} == {str(tmp_path / "three" / "a")}
    assert both.listing() == dict.fromkeys(["a", "b", "shared", "new"], "")
    both.unregister(str(tmp_path / "three"))
    assert both.find("a").location == str(tmp_path / "one" / "a")


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
