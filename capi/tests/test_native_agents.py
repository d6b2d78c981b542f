"""Agents in C, as a stock Triton runs them: same calls, same order, same texts."""

import json
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import AgentError, AgentRefusedError, ErrorCode
from tests.loader.traces import CASES, drive, events_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_native_agent_is_called_as_in_a_stock_server_but_for_the_listed_differences(
    native: Any, compile_c: Any, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {*case["agents"]} - {"missing"}:
        compile_c.agent("recording_agent.c", name, native.agents)
    monkeypatch.setenv("FAILS", ",".join(case.get("fails", [])))
    drive(native, case["agents"], case["steps"], lambda mark: monkeypatch.setenv("MARK", mark))
    assert native.events() == events_of(case.get("ours", case["stock"]))
    assert native.left_over() == []


def test_a_native_agent_needs_no_library_of_the_server_but_may_name_it(native: Any, compile_c: Any, capi: Path) -> None:
    library = compile_c.agent("recording_agent.c", "named", native.agents, f"-L{capi / 'lib'}", "-ltritonserver")
    assert b"libtritonserver.so" in library.read_bytes()
    native.load("named").fail(RuntimeError())
    assert native.events()[0] == "named Init"


def test_a_refusal_has_the_text_and_code_of_the_agent(
    native: Any, compile_c: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_c.agent("recording_agent.c", "a", native.agents)
    monkeypatch.setenv("FAILS", "a LOAD")
    with pytest.raises(AgentRefusedError, match=r"^agent 'a': a LOAD fails$") as caught:
        native.load("a")
    cause: Any = caught.value.__cause__
    assert cause.code is ErrorCode.INVALID_ARG


def test_every_question_of_an_agent_has_the_answer_of_a_stock_server(
    native: Any, compile_c: Any, caplog: pytest.LogCaptureFixture
) -> None:
    compile_c.agent("curious_agent.c", "curious", native.agents)
    pairs = 'parameters { key: "z" value: "1" } parameters { key: "a" value: "2" } parameters { key: "z" value: "3" }'
    with caplog.at_level(logging.WARNING):
        chain = native.load("curious", parameters=pairs)
    chain.complete()
    found = native.answers()
    config = next(line for line in found if line.startswith("config: "))
    assert '"name": "m"' in config
    found.remove(config)
    location = str(native.root / "repository" / "m")
    assert found == [
        "version: 0.1",
        "ready: Unavailable: No mutable location to be deleted",
        f"location: 0 {location}",
        "location again: same",
        "parameter: z=1",
        "parameter: a=2",
        "parameter: z=3",
        "parameter: Invalid argument: index out of range for model parameters",
        "config 2: Invalid argument: model configuration version 2 not supported, supported versions are: 1",
        "acquire remote: Invalid argument: Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'",
        "null: Invalid argument: the TRITONREPOAGENT_Agent is NULL",
        "swapped: Invalid argument: not a living TRITONREPOAGENT_AgentModel: it was deleted, or is something else",
        "log: logged",
        (
            "update: Invalid argument: location can only be updated during TRITONREPOAGENT_ACTION_LOAD, "
            "current action type is TRITONREPOAGENT_ACTION_LOAD_COMPLETE"
        ),
    ]
    record = next(it for it in caplog.records if it.getMessage() == "a word of the agent")
    assert (record.filename, record.lineno, record.levelname) == ("curious.c", 42, "WARNING")


def test_an_agent_moves_the_model_and_what_it_acquired_goes_with_the_model(native: Any, compile_c: Any) -> None:
    compile_c.agent("curious_agent.c", "curious", native.agents)
    chain = native.load("curious", parameters='parameters { key: "do" value: "relocate" }')
    assert (Path(chain.location) / "moved.txt").read_text() == "moved\n"
    assert chain.private
    assert native.left_over() != []
    chain.complete()
    chain.unload()
    chain.unload_complete()
    assert native.left_over() == []
    assert native.answers()[0] == "acquired twice: same"


def test_after_a_failed_load_an_agent_can_release_what_it_acquired(native: Any, compile_c: Any) -> None:
    """C5: it was refused as in use."""
    compile_c.agent("curious_agent.c", "curious", native.agents)
    native.load("curious", parameters='parameters { key: "do" value: "relocate" }').fail(RuntimeError())
    assert native.answers()[-1] == "release: released"
    assert native.left_over() == []


def test_where_the_configuration_was_left_behind_the_next_agent_sees_an_empty_one(native: Any, compile_c: Any) -> None:
    """C4: as in Triton."""
    for name in ("first", "second"):
        compile_c.agent("curious_agent.c", name, native.agents)
    chain = native.load("first", "second", parameters='parameters { key: "do" value: "leave the configuration" }')
    before, after = (json.loads(line.removeprefix("config: ")) for line in native.answers() if "config: " in line)
    assert (before["name"], len(before["model_repository_agents"]["agents"])) == ("m", 2)
    assert (after["name"], after.get("model_repository_agents")) == ("", None)
    assert chain.config.name == "m", "the load goes on with the one that it had"
    chain.fail(RuntimeError())


def test_an_agent_asks_from_threads_of_its_own(native: Any, compile_c: Any) -> None:
    compile_c.agent("curious_agent.c", "curious", native.agents)
    native.load("curious", parameters='parameters { key: "do" value: "thread" }').fail(RuntimeError())
    location = str(native.root / "repository" / "m")
    assert native.answers()[:8] == [f"thread: {location}"] * 8


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("nonsense", "an error was returned that is not a TRITONSERVER_Error"),
        ("update nowhere", "update_location needs a directory, not 'place'; for a URL pass"),
    ],
)
def test_an_agent_that_does_nonsense_refuses_the_model(native: Any, compile_c: Any, what: str, reason: str) -> None:
    compile_c.agent("curious_agent.c", "curious", native.agents)
    with pytest.raises(AgentRefusedError, match=re.escape(reason)):
        native.load("curious", parameters=f'parameters {{ key: "do" value: "{what}" }}')
    assert native.left_over() == []


def test_native_and_python_agents_share_a_chain(native: Any, compile_c: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_c.agent("recording_agent.c", "a", native.agents)
    compile_c.agent("recording_agent.c", "c", native.agents)
    (native.agents / "b").mkdir()
    (native.agents / "b" / "agent.py").write_text(
        "import os\nfrom repoagent.api import Agent\n\n\n"
        "class B(Agent):\n    api_version = 1\n\n    def model_action(self, model, action):\n"
        "        with open(os.environ['TRACE'], 'a') as trace:\n            trace.write(f'b {action.name}\\n')\n"
    )
    chain = native.load("a", "b", "c")
    chain.complete()
    assert [event for event in native.events() if "LOAD" in event] == [
        "a LOAD", "b LOAD", "c LOAD", "c LOAD_COMPLETE", "b LOAD_COMPLETE", "a LOAD_COMPLETE",
    ]  # fmt: skip


def test_many_loads_at_once_go_through_one_agent(native: Any, compile_c: Any) -> None:
    compile_c.agent("recording_agent.c", "a", native.agents)
    source = native.model("a")
    failures: list[BaseException] = []

    def load() -> None:
        try:
            for _ in range(5):
                chain = native.loader.load(source)
                chain.complete()
                chain.unload()
                chain.unload_complete()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    events = native.events()
    assert events.count("a Init") == events.count("a Fini") >= 1
    assert events.count("a MInit") == events.count("a MFini") == 40
    assert native.loader.agents_in_use() == {}


def test_a_file_that_is_not_a_library_refuses_the_model(native: Any) -> None:
    library = native.agents / "bad" / "libtritonrepoagent_bad.so"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF")
    with pytest.raises(
        AgentError, match=r"unable to load shared library: .*libtritonrepoagent_bad\.so: file too short"
    ):
        native.load("bad")


def test_a_library_without_the_entry_point_refuses_the_model(native: Any, compile_c: Any) -> None:
    compile_c.agent("no_agent.c", "empty", native.agents)
    with pytest.raises(
        AgentError, match=r"unable to find required entrypoint 'TRITONREPOAGENT_ModelAction' in shared library: .*"
    ):
        native.load("empty")


def test_the_entry_points_but_one_are_optional(native: Any, compile_c: Any) -> None:
    compile_c.agent("curious_agent.c", "curious", native.agents)
    native.load("curious", parameters='parameters { key: "do" value: "thread" }').fail(RuntimeError())
    assert native.loader.agents_in_use() == {}


def test_a_crash_in_a_native_agent_ends_the_program(native: Any, compile_c: Any) -> None:
    compile_c.agent("curious_agent.c", "curious", native.agents)
    native.model("curious", parameters='parameters { key: "do" value: "crash" }')
    program = (
        "import sys\nfrom repoagent.server import Server, ModelControlMode\n"
        "Server(model_repository=sys.argv[1], repo_agent_directory=sys.argv[2]).start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, native.root / "repository", native.agents],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -6  # docs/trust.md says so
