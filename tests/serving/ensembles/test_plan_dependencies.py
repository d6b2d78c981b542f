import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.serving.ensembles.plan import Dependencies

LOADED = {
    "outer": frozenset({"middle", "leaf"}),
    "middle": frozenset({"inner"}),
    "inner": frozenset({"leaf"}),
    "other": frozenset({"alone"}),
}


def over_loaded() -> Dependencies:
    dependencies = Dependencies(lambda name: LOADED.get(name, frozenset()))
    for name, members in LOADED.items():
        dependencies.declare(name, members)
        dependencies.forget(name)
    return dependencies


def test_users_come_in_the_order_in_which_they_can_be_unloaded() -> None:
    assert over_loaded().all_users("leaf") == ["outer", "middle", "inner"]
    assert over_loaded().all_users("outer") == []


def test_a_load_that_is_declared_counts_as_a_user_until_it_is_forgotten() -> None:
    dependencies = over_loaded()
    dependencies.declare("new", frozenset({"leaf"}))
    assert dependencies.users("leaf") == ["inner", "new", "outer"]
    assert dependencies.users("leaf", pending=False) == ["inner", "outer"]
    dependencies.forget("new")
    assert dependencies.users("leaf") == ["inner", "outer"]


def test_circles_are_found_through_loaded_and_declared_ensembles() -> None:
    dependencies = over_loaded()
    dependencies.declare("alone", frozenset({"outer"}))
    with pytest.raises(InvalidArgumentError, match=r"leaf -> \.\.\. -> inner -> leaf|leaf -> ... -> outer -> leaf"):
        dependencies.declare("leaf", frozenset({"other"}))
    with pytest.raises(InvalidArgumentError, match=r"same -> ... -> same -> same"):
        dependencies.declare("same", frozenset({"same"}))
    dependencies.declare("leaf", frozenset({"free"}))


def test_what_is_being_loaded_anew_counts_with_its_new_members() -> None:
    dependencies = over_loaded()
    dependencies.declare("other", frozenset({"free"}))
    dependencies.declare("alone", frozenset({"other"}))
