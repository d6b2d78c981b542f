import pytest

from repoagent.errors import UnavailableError
from repoagent.serving.reception import ServerLife, ServerState


def test_it_goes_through_its_states_in_order() -> None:
    life = ServerLife()
    life.enter(ServerState.STARTING, ServerState.INITIALIZED)
    life.enter(ServerState.READY, ServerState.STARTING)
    assert life.begin_exit()
    life.end()
    assert life.state is ServerState.STOPPED


def test_a_step_from_another_state_names_both() -> None:
    life = ServerLife()
    with pytest.raises(UnavailableError, match="cannot become ready: it is initialized"):
        life.enter(ServerState.READY, ServerState.STARTING)
    assert life.state is ServerState.INITIALIZED


def test_only_the_first_exit_counts() -> None:
    life = ServerLife()
    assert life.begin_exit()
    assert not life.begin_exit()
    life.end()
    assert not life.begin_exit()
    assert str(life.not_ready()) == "Server not ready: it is stopped"
