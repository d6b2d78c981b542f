import itertools
import threading

import pytest

from repoagent.errors import InvalidTransitionError
from repoagent.serving.lifecycle.model_states import ModelState, SlotStates, VersionStatus

S = ModelState
ALLOWED = {
    (S.UNKNOWN, S.LOADING),
    (S.LOADING, S.READY),
    (S.LOADING, S.UNAVAILABLE),
    (S.READY, S.UNLOADING),
    (S.UNLOADING, S.UNAVAILABLE),
    (S.UNLOADING, S.LOADING),
    (S.UNAVAILABLE, S.LOADING),
}
ROADS = {
    S.UNKNOWN: [],
    S.LOADING: [S.LOADING],
    S.READY: [S.LOADING, S.READY],
    S.UNLOADING: [S.LOADING, S.READY, S.UNLOADING],
    S.UNAVAILABLE: [S.LOADING, S.UNAVAILABLE],
}


@pytest.mark.parametrize(("present", "following"), list(itertools.product(S, S)))
def test_every_transition_is_either_in_the_table_or_an_error_that_names_both(present: S, following: S) -> None:
    table = SlotStates("m", threading.Lock())
    for step in ROADS[present]:
        table.move(1, step)
    if (present, following) in ALLOWED:
        table.move(1, following, "why")
        assert table.status(1) == VersionStatus(following, "why")
        return
    with pytest.raises(InvalidTransitionError) as caught:
        table.move(1, following)
    assert present.value in str(caught.value)
    assert following.value in str(caught.value)
    assert table.status(1).state is present


def test_the_model_as_a_whole_is_forgotten_once_versions_are_known() -> None:
    table = SlotStates("m", threading.Lock())
    table.move(None, S.LOADING)
    assert [version for version, _ in table.statuses()] == [None]
    table.move(10, S.LOADING)
    table.move(2, S.LOADING)
    assert [version for version, _ in table.statuses()] == [2, 10]


def test_what_an_earlier_load_left_behind_is_forgotten_by_the_next() -> None:
    table = SlotStates("m", threading.Lock())
    table.move(1, S.LOADING)
    table.move(1, S.UNAVAILABLE, "bad")
    table.start_loading()
    assert [version for version, _ in table.statuses()] == [None]
    assert table.status(1).state is S.UNKNOWN
