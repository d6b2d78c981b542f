"""Calling an agent's code."""

import pytest

from repoagent.errors import AgentRefusedError, CancelledError, InvalidArgumentError
from repoagent.loader.calls import call_agent, reason_of


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit("x"), KeyboardInterrupt("x"), GeneratorExit("x")])
def test_whatever_it_raises_is_a_refusal_with_that_text(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AgentRefusedError, match=r"^agent 'a': x$") as caught:
        call_agent("a", "LOAD of model 'm'", lambda: raising(error))
    assert caught.value.__cause__ is error
    assert [record.getMessage() for record in caplog.records] == ["agent 'a' raised in LOAD of model 'm': x"]
    assert caplog.records[0].exc_info is not None


def test_what_an_agent_says_on_purpose_is_logged_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AgentRefusedError):
        call_agent("a", "LOAD of model 'm'", lambda: raising(InvalidArgumentError("wrong digest")))
    assert [record.getMessage() for record in caplog.records] == ["agent 'a' raised in LOAD of model 'm': wrong digest"]
    assert caplog.records[0].exc_info is None


def test_a_cancelled_load_is_no_refusal(caplog: pytest.LogCaptureFixture) -> None:
    error = CancelledError("enough")
    with pytest.raises(CancelledError, match="enough"):
        call_agent("a", "LOAD", lambda: raising(error), lambda: True)
    assert caplog.records == []
    with pytest.raises(AgentRefusedError):
        call_agent("a", "LOAD", lambda: raising(error), lambda: False)


def test_the_reason_is_the_text_or_the_class() -> None:
    assert reason_of(ValueError("why")) == "why"
    assert reason_of(SystemExit()) == "SystemExit"
