"""The model that a platform's requests mean."""

import pytest
from repoagent_server.http.hosting.service import default_model

from repoagent.errors import InvalidArgumentError

ONE = [{"name": "a", "version": "1"}, {"name": "a", "version": "2"}]
TWO = [*ONE, {"name": "b", "version": "1"}]


def test_the_only_model_needs_no_name() -> None:
    assert default_model("", ONE, "--x") == "a"


def test_a_name_is_taken_if_that_model_is_ready() -> None:
    assert default_model("b", TWO, "--x") == "b"
    assert default_model("c", [], "--x", check=False) == "c"
    with pytest.raises(InvalidArgumentError, match="Expect the default model 'c' is loaded"):
        default_model("c", TWO, "--x")


@pytest.mark.parametrize(("index", "count"), [([], 0), (TWO, 2)])
def test_without_a_name_there_must_be_exactly_one(index: list[dict[str, str]], count: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"; {count} are loaded\. Name one with --x"):
        default_model("", index, "--x")
