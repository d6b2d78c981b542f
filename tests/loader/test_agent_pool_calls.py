"""Calling an agent's code."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from repoagent.api import Action, Agent, AgentModel
from repoagent.errors import AgentRefusedError, CancelledError, InvalidArgumentError
from repoagent.loader.agent_pool import call_agent, reason_of


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x"), "x"),
        (SystemExit("x"), "SystemExit: x"),
        (KeyboardInterrupt("x"), "KeyboardInterrupt: x"),
        (GeneratorExit(), "GeneratorExit"),
    ],
)
def test_whatever_it_raises_is_a_refusal_with_that_text(
    error: BaseException, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AgentRefusedError, match=f"^agent 'a': {text}$") as caught:
        call_agent("a", "LOAD of model 'm'", lambda: raising(error))
    assert caught.value.__cause__ is error
    assert [record.getMessage() for record in caplog.records] == ["agent 'a' raised in LOAD of model 'm': " + text]
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(13, "Permission denied", "/srv/private/keys"), "Permission denied"),
        (FileExistsError(17, "File exists", "1/a", None, "/srv/private/b"), "File exists: 1/a"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (FileNotFoundError("/srv/private/keys"), "FileNotFoundError"),
        (shutil.Error([("/srv/private/a", "/tmp/b", "denied")]), "Error"),
        (subprocess.CalledProcessError(1, ["/srv/private/tool", "a"]), "CalledProcessError"),
        (subprocess.TimeoutExpired(["/srv/private/tool"], 3), "TimeoutExpired"),
        (ImportError("cannot import name 'x' from 'y' (/srv/private/y.py)"), "ImportError"),
        (ModuleNotFoundError("No module named 'y'"), "No module named 'y'"),
        (InvalidArgumentError("the file /srv/public/x is not there"), "the file /srv/public/x is not there"),
    ],
)
def test_no_path_of_this_machine_is_in_the_text_of_an_error_that_surprised_an_agent(
    error: BaseException, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AgentRefusedError) as caught:
        call_agent("a", "LOAD of model 'm'", lambda: raising(error))
    assert caught.value.reason == text
    assert isinstance(error, InvalidArgumentError) or "/srv" in caplog.text or "/srv" not in str(error)


async def judge_later() -> None:
    raise ValueError("never run")


def judge_by_yield() -> Iterator[None]:
    yield
    raise ValueError("never run")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: False,
            "the method returned an object of type bool; agents refuse models by raising, and return nothing",
        ),
        (judge_later, "the method is 'async def' and has not run; agents run on threads: write 'def'"),
        (judge_by_yield, "the method has a 'yield' and has not run"),
    ],
)
def test_what_returns_something_is_a_refusal(call: Callable[[], object], text: str) -> None:
    with pytest.raises(AgentRefusedError) as caught:
        call_agent("a", "LOAD of model 'm'", call)
    assert caught.value.reason == text


class Lenient(Agent):
    api_version = 1

    def load(self, model: AgentModel) -> None:
        return model.state  # type: ignore[no-any-return]


def test_the_default_entry_point_hands_on_what_a_method_returned() -> None:
    model = cast(AgentModel, SimpleNamespace(state=False))
    with pytest.raises(AgentRefusedError, match="returned an object of type bool"):
        call_agent("a", "LOAD of model 'm'", lambda: Lenient().model_action(model, Action.LOAD))


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


def test_the_text_of_a_key_error_is_no_reason_by_itself() -> None:
    assert reason_of(KeyError("licence")) == "KeyError: 'licence'"
    assert reason_of(TypeError("expected str, not int")) == "TypeError: expected str, not int"
    assert reason_of(ZeroDivisionError("division by zero")) == "ZeroDivisionError: division by zero"


def test_a_very_long_reason_is_cut() -> None:
    assert reason_of(ValueError("x" * 10_000_000)) == "x" * 4000 + " ... (cut)"
