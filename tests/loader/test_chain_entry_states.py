"""The states of an entry and the table of transitions."""

import itertools

import pytest

from repoagent.api import Action
from repoagent.errors import ErrorCode, InvalidTransitionError
from repoagent.loader.chain_entry import STATE_OF_ACTION, TRANSITIONS, Lifecycle, State

LEGAL = {
    ("NEW", "INITIALIZED"),
    ("INITIALIZED", "LOAD"),
    ("INITIALIZED", "FINALIZED"),
    ("LOAD", "LOAD_COMPLETE"),
    ("LOAD", "LOAD_FAIL"),
    ("LOAD_COMPLETE", "UNLOAD"),
    ("UNLOAD", "UNLOAD_COMPLETE"),
    ("LOAD_FAIL", "FINALIZED"),
    ("UNLOAD_COMPLETE", "FINALIZED"),
}


@pytest.mark.parametrize(("start", "to"), list(itertools.product(State, State)))
def test_exactly_the_legal_transitions_are_possible(start: State, to: State) -> None:
    life = Lifecycle("agent 'a'", start)
    legal = (start.value, to.value) in LEGAL
    assert life.may(to) is legal
    if legal:
        life.advance(to)
        assert life.state is to
        return
    with pytest.raises(InvalidTransitionError) as caught:
        life.advance(to)
    assert str(caught.value) == (f"agent 'a': unexpected lifecycle state transition from {start.value} to {to.value}")
    assert caught.value.code is ErrorCode.INTERNAL
    assert life.state is start


def test_every_state_has_a_row_and_every_action_a_state() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {STATE_OF_ACTION[action].value for action in Action} == {action.name for action in Action}


def test_every_path_from_new_ends_in_finalized_with_complete_or_fail_after_each_load() -> None:
    paths = _paths(State.NEW)
    assert {"/".join(state.value for state in path) for path in paths} == {
        "NEW/INITIALIZED/FINALIZED",
        "NEW/INITIALIZED/LOAD/LOAD_FAIL/FINALIZED",
        "NEW/INITIALIZED/LOAD/LOAD_COMPLETE/UNLOAD/UNLOAD_COMPLETE/FINALIZED",
    }


def _paths(state: State) -> list[list[State]]:
    if not TRANSITIONS[state]:
        return [[state]]
    return [[state, *rest] for following in TRANSITIONS[state] for rest in _paths(following)]
