"""An agent asks for its model to be unloaded."""

import logging
import queue
import threading
from collections.abc import Callable
from logging.handlers import QueueHandler
from typing import Any

import pytest

from repoagent.api import Action, AgentModel
from repoagent.loader.load_context import Services

Requests = queue.SimpleQueue[tuple[str, str]]


@pytest.fixture
def requests() -> Requests:
    return queue.SimpleQueue()


def ask(*actions: Action, times: int = 1) -> Callable[[AgentModel, Action], None]:
    def does(model: AgentModel, action: Action) -> None:
        if action in actions:
            for _ in range(times):
                model.request_unload(f"in {action.name}")

    return does


def test_the_server_is_asked_once_with_model_agent_and_reason(agents: Any, make_bench: Any, requests: Requests) -> None:
    agents.does["a"] = ask(Action.LOAD_COMPLETE, Action.UNLOAD, Action.UNLOAD_COMPLETE, times=2)
    bench = make_bench(on_unload_request=lambda model, reason: requests.put((model, reason)))
    chain = bench.load("a")
    chain.complete()
    assert requests.get(timeout=60) == ("m", "agent 'a': in LOAD_COMPLETE")
    chain.unload()
    chain.unload_complete()
    assert requests.empty()


def test_the_handler_may_unload_the_model_while_the_agent_is_still_in_its_call(agents: Any, make_bench: Any) -> None:
    unloaded = threading.Event()
    agents.does["a"] = ask(Action.LOAD_COMPLETE)

    def unload(_model: str, _reason: str) -> None:
        chain.unload()
        chain.unload_complete()
        unloaded.set()

    chain = make_bench(on_unload_request=unload).load("a")
    chain.complete()
    assert unloaded.wait(60)
    assert chain.report.outcome == "unloaded"


def test_after_the_model_has_gone_nothing_is_asked(agents: Any, make_bench: Any, requests: Requests) -> None:
    models: list[AgentModel] = []
    agents.does["a"] = lambda model, _action: models.append(model)
    bench = make_bench(on_unload_request=lambda model, reason: requests.put((model, reason)))
    chain = bench.load("a")
    chain.complete()
    chain.unload()
    chain.unload_complete()
    models[0].request_unload("too late")
    assert requests.empty()


def test_without_a_handler_the_request_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    Services().request_unload("m", "the licence ended")
    assert "model 'm' should be unloaded, but this loader has no unload handler: the licence ended" in caplog.text


def test_a_handler_that_raises_is_logged() -> None:
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    notice = QueueHandler(records)
    logging.getLogger("repoagent.loader").addHandler(notice)
    try:
        Services(on_unload_request=lambda _model, _reason: 1 / 0).request_unload("m", "why")  # type: ignore[arg-type]
        while (record := records.get(timeout=60)).levelno < logging.ERROR:
            continue
    finally:
        logging.getLogger("repoagent.loader").removeHandler(notice)
    assert "model 'm' could not be unloaded as its agent asked" in record.getMessage()
