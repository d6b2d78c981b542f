"""The loader: configurations, overrides, guards, cancelling, threads, the end."""

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repoagent.api import Action, AgentModel
from repoagent.api.hooks import ActionEvent, LoadEvent, hookimpl
from repoagent.config import ModelConfig, read_text, write_text
from repoagent.errors import (
    AgentError,
    AgentNotFoundError,
    CancelledError,
    ConfigError,
    InternalError,
    UnavailableError,
)
from repoagent.loader.loader import LoadCounter
from repoagent.loader.plan import ConfigPlanner, PlannedAgent
from repoagent.storage.repositories.sources import MemorySource, open_source


def on_load(bench: Any, name: str, do: Callable[[AgentModel], object]) -> None:
    def act(model: AgentModel, action: Action) -> None:
        if action is Action.LOAD:
            do(model)

    bench.agents.does[name] = act


def move_with(text: str | None) -> Callable[[AgentModel], None]:
    """Move the model to a directory whose configuration file reads ``text``."""

    def move(model: AgentModel) -> None:
        place = model.acquire_location()
        (place / "1").mkdir()
        if text is not None:
            (place / "config.pbtxt").write_text(text)
        model.update_location(place)

    return move


def test_a_model_without_agents_is_loaded_from_where_it_is(bench: Any) -> None:
    source = bench.model()
    chain = bench.loader.load(source)
    assert chain.location == source.location
    assert chain.name == "m"
    assert chain.config.name == "m"
    assert chain.files.bytes("1/model.txt") == b"weights"
    assert chain.version_dirs == [1]
    assert bench.agents.events == []
    assert bench.left_over() == []


def test_a_model_without_configuration_has_none(bench: Any) -> None:
    source = bench.model()
    (Path(source.root) / "config.pbtxt").unlink()
    assert bench.loader.load(source).config is None


def test_a_configuration_without_name_gets_that_of_the_model(bench: Any) -> None:
    source = bench.model()
    (Path(source.root) / "config.pbtxt").write_text('backend: "python"')
    assert bench.loader.load(source).config.name == "m"


@pytest.mark.parametrize("text", ['name: "m"\nplatform: ?', 'name: "other"', "max_batch_size: -1"])
def test_a_bad_configuration_refuses_the_load_before_any_agent_is_called(bench: Any, text: str) -> None:
    source = bench.model("a")
    (Path(source.root) / "config.pbtxt").write_text(f'model_repository_agents {{ agents {{ name: "a" }} }}\n{text}')
    with pytest.raises(ConfigError) as caught:
        bench.loader.load(source)
    assert bench.agents.events == []
    assert caught.value.report.outcome == "failed"
    assert caught.value.report.error == str(caught.value)


def test_the_agents_of_an_override_run_instead_of_those_of_the_file(bench: Any) -> None:
    override = read_text(bench.config("b"))
    chain = bench.load("a", override=override)
    assert bench.agents.events == ["b Init", "b MInit", "b LOAD"]
    chain.config.platform = "changed"
    assert override.platform == ""


def test_the_file_is_read_again_where_the_agents_left_the_model(bench: Any) -> None:
    text = 'name: "other" backend: "b" model_repository_agents { agents { name: "evil" } }'
    on_load(bench, "a", move_with(text))
    chain = bench.load("a")
    assert chain.config.backend == "b"
    assert chain.config.name == "m"
    assert [agent.name for agent in chain.config.model_repository_agents.agents] == ["a"]


def test_variables_are_replaced_wherever_the_file_is_read(bench: Any) -> None:
    bench.loader._services = replace(bench.loader._services, config_variables={"SIZE": "7"})
    seen: list[int] = []

    def look(model: AgentModel) -> None:
        config = model.read_config()
        assert config is not None
        seen.append(config.max_batch_size)
        move_with("max_batch_size: 1${SIZE}")(model)

    on_load(bench, "a", look)
    chain = bench.loader.load(bench.model("a", extra="max_batch_size: ${SIZE}"))
    assert seen == [7]
    assert chain.config.max_batch_size == 17
    with pytest.raises(ConfigError, match=r"the variable 'HOME' is not allowed"):
        bench.loader.load(bench.model(extra='backend: "${HOME}"'))


def test_a_place_without_a_configuration_file_leaves_it_as_it_was(bench: Any) -> None:
    """For the load and for the agents after it, which judge what will be served: native ones see none, as in Triton."""
    seen: list[Any] = []

    def look(model: AgentModel) -> None:
        seen.extend((model.config, model.read_config()))

    on_load(bench, "a", move_with(None))
    on_load(bench, "b", look)
    chain = bench.loader.load(bench.model("a", "b", extra='backend: "python"'))
    assert chain.config.backend == "python"
    assert [config and config.backend for config in seen] == ["python", None]


def test_without_update_location_a_changed_file_is_not_looked_at(bench: Any) -> None:
    source = bench.model("a")
    on_load(bench, "a", lambda model: (Path(source.root) / "config.pbtxt").write_text('backend: "evil"'))
    assert bench.loader.load(source).config.backend == ""


def test_under_an_override_only_what_the_agent_changed_comes_from_the_file(bench: Any) -> None:
    override = read_text(bench.config("a") + 'max_batch_size: 8 backend: "own"')

    def edit_a_copy(model: AgentModel) -> None:
        text = (Path(model.location) / "config.pbtxt").read_text()
        move_with(text + 'platform: "converted"')(model)

    on_load(bench, "a", edit_a_copy)
    chain = bench.loader.load(bench.model("a", extra="max_batch_size: 2"), override=override)
    assert (chain.config.max_batch_size, chain.config.backend, chain.config.platform) == (8, "own", "converted")


def test_under_an_override_an_agent_can_start_from_the_effective_configuration(bench: Any) -> None:
    override = read_text(bench.config("a") + 'platform: "onnxruntime_onnx" max_batch_size: 8')

    def rewrite(model: AgentModel) -> None:
        config = model.config
        assert config is not None
        config.platform = ""
        config.backend = "tensorrt"
        place = model.acquire_location()
        model.write_config(config)
        model.update_location(place)

    on_load(bench, "a", rewrite)
    chain = bench.load("a", override=override)
    assert (chain.config.platform, chain.config.backend, chain.config.max_batch_size) == ("", "tensorrt", 8)


@pytest.mark.parametrize("text", ["platform: ?", "max_batch_size: -1"])
def test_a_bad_configuration_at_the_new_place_fails_the_load_through_the_agents(bench: Any, text: str) -> None:
    on_load(bench, "a", move_with(text))
    with pytest.raises(ConfigError) as caught:
        bench.load("a")
    assert bench.agents.events[-3:] == ["a LOAD_FAIL", "a MFini", "a Fini"]
    assert "config.pbtxt" in str(caught.value)
    assert str(bench.directory) not in str(caught.value)
    assert bench.left_over() == []


def test_a_configuration_with_another_name_is_preferred_where_a_model_has_it(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(model_config_name="cpu")
    source = bench.model("a")
    (Path(source.root) / "configs").mkdir()
    (Path(source.root) / "configs" / "cpu.pbtxt").write_text(bench.config("b", extra='backend: "python"'))

    def rewrite(model: AgentModel) -> None:
        config = model.read_config()
        assert config is not None
        config.backend += "2"
        place = model.acquire_location()
        model.write_config(config)
        assert (place / "configs" / "cpu.pbtxt").exists()
        model.update_location(place)

    on_load(bench, "b", rewrite)
    assert bench.loader.load(source).config.backend == "python2"
    assert bench.loader.load(bench.model("a", name="plain")).config.backend == ""
    assert "a LOAD" in bench.agents.events


def test_the_planner_decides_who_runs(make_bench: Callable[..., Any]) -> None:
    class Wrapping(ConfigPlanner):
        def plan(self, model_name: str, config: ModelConfig | None, *, overridden: bool = False) -> list[PlannedAgent]:
            assert config is not None
            config.platform = "planners cannot change it"
            return [PlannedAgent("before", origin="policy"), PlannedAgent("a")]

    bench = make_bench(planner=Wrapping())
    chain = bench.load("x")
    assert [(entry.agent, entry.origin) for entry in chain.report.entries] == [("before", "policy"), ("a", "config")]
    assert chain.config.platform == ""


def test_a_broken_planner_fails_the_load_as_an_error_of_ours(
    make_bench: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ConfigPlanner):
        def plan(self, model_name: str, config: ModelConfig | None, *, overridden: bool = False) -> list[PlannedAgent]:
            raise KeyError("table")

    with pytest.raises(InternalError, match="'table'") as caught:
        make_bench(planner=Broken()).load("a")
    assert caught.value.report.outcome == "failed"
    assert "failed unexpectedly" in caplog.text


class TestGuards:
    """What was verified is what is loaded."""

    def test_a_guard_judges_a_private_copy_and_that_copy_is_loaded(self, bench: Any) -> None:
        source = bench.model("a", "g", "b")
        bench.agents.guards = {"g"}
        seen: dict[str, str] = {}

        def look(name: str) -> Callable[[AgentModel], None]:
            def do(model: AgentModel) -> None:
                seen[name] = model.location
                if name == "g":
                    (Path(source.root) / "1" / "model.txt").write_text("exchanged")
                    assert (model.localize() / "1" / "model.txt").read_text() == "weights"

            return do

        for name in "agb":
            on_load(bench, name, look(name))
        chain = bench.loader.load(source)
        assert seen["a"] == source.location
        assert seen["g"] == seen["b"] == chain.location != source.location
        assert chain.files.bytes("1/model.txt") == b"weights"
        assert "private snapshot in" in chain.report.entries[1].actions[0].notes[0]
        chain.complete()
        chain.unload()
        chain.unload_complete()
        assert bench.left_over() == []

    def test_it_is_not_a_hard_link(self, bench: Any) -> None:
        source = bench.model("g")
        bench.agents.guards = {"g"}
        copy = Path(bench.loader.load(source).location) / "1" / "model.txt"
        assert not copy.samefile(Path(source.root) / "1" / "model.txt")

    def test_a_download_is_a_private_copy_already(self, bench: Any) -> None:
        source = MemorySource("m", {"config.pbtxt": bench.config("a", "g").encode(), "1/model.txt": b"w"})
        bench.agents.guards = {"g"}
        places: list[str] = []
        on_load(bench, "a", lambda model: places.append(str(model.localize())))
        on_load(bench, "g", lambda model: places.append(model.location))
        chain = bench.loader.load(source)
        assert places[0] == places[1] == chain.location

    def test_what_an_agent_of_the_load_made_is_not_copied_again(self, bench: Any) -> None:
        bench.agents.guards = {"g", "h"}
        on_load(bench, "a", move_with(None))
        chain = bench.load("a", "g", "h")
        assert [action.notes for entry in chain.report.entries for action in entry.actions] == [(), (), ()]

    def test_two_guards_in_a_row_share_one_copy(self, bench: Any) -> None:
        bench.agents.guards = {"g", "h"}
        places: list[str] = []
        for name in "gh":
            on_load(bench, name, lambda model: places.append(model.location))
        bench.load("g", "h")
        assert len(set(places)) == 1

    def test_a_configuration_exchanged_before_the_copy_fails_the_load(self, bench: Any) -> None:
        source = bench.model("a", "g")
        bench.agents.guards = {"g"}
        config = Path(source.root) / "config.pbtxt"
        on_load(bench, "a", lambda model: config.write_text('backend: "evil"'))
        with pytest.raises(UnavailableError, match="changed while the model was being loaded; load it again"):
            bench.loader.load(source)
        assert "g MInit" not in bench.agents.events
        assert bench.agents.events[-3:] == ["a LOAD_FAIL", "a MFini", "a Fini"]
        assert bench.loader.agents_in_use() == {}

    def test_a_copy_that_cannot_be_made_fails_the_load_and_is_in_the_report(self, bench: Any) -> None:
        source = bench.model("g")
        bench.agents.guards = {"g"}
        (Path(source.root) / "1" / "link").symlink_to("model.txt")
        with pytest.raises(Exception, match="link") as caught:
            bench.loader.load(source)
        (action,) = caught.value.report.entries[0].actions  # type: ignore[attr-defined]
        assert (action.action, action.outcome) == ("SNAPSHOT", "failed")
        assert bench.agents.events == ["g Init", "g Fini"]


class TestPlaintext:
    """Confidential files go as soon as nobody needs them."""

    @staticmethod
    def decrypt(model: AgentModel) -> None:
        place = model.acquire_location(confidential=True)
        (place / "1").mkdir()
        (place / "1" / "model.txt").write_text("plain")
        model.update_location(place)

    def test_it_goes_right_after_load_complete(self, bench: Any) -> None:
        there: list[bool] = []

        def act(model: AgentModel, action: Action) -> None:
            if action is Action.LOAD:
                self.decrypt(model)
            there.append(Path(model.location).exists())

        bench.agents.does["a"] = act
        chain = bench.load("a")
        chain.files_no_longer_needed()
        assert chain.files.bytes("1/model.txt") == b"plain"
        chain.complete()
        assert not Path(chain.location).exists()
        assert not list(bench.memory.rglob("model.txt"))
        chain.unload()
        chain.unload_complete()
        assert there == [True, True, False, False]

    def test_it_goes_at_once_when_the_model_serves_already(self, bench: Any) -> None:
        on_load(bench, "a", self.decrypt)
        chain = bench.load("a")
        chain.complete()
        assert Path(chain.location).exists()
        chain.files_no_longer_needed()
        assert not Path(chain.location).exists()

    def test_what_is_not_confidential_stays(self, bench: Any) -> None:
        on_load(bench, "a", move_with(None))
        chain = bench.load("a")
        chain.files_no_longer_needed()
        chain.complete()
        assert Path(chain.location).exists()


class TestReportsAndEvents:
    """A load tells what it did."""

    def test_the_report_has_one_line_per_agent_and_action(self, bench: Any) -> None:
        on_load(bench, "checksum", lambda model: model.report(bytes_read=12345, note="1 file"))
        chain = bench.load("checksum", "b")
        assert chain.report.outcome == "loading"
        chain.complete()
        report = chain.report
        assert report.outcome == "loaded"
        assert [line.split()[:3] for line in report.lines()] == [
            ["checksum", "LOAD", "ok"],
            ["checksum", "LOAD_COMPLETE", "ok"],
            ["b", "LOAD", "ok"],
            ["b", "LOAD_COMPLETE", "ok"],
        ]
        assert "read  12.3 kB  written      0 B  1 file" in report.lines()[0]
        assert json.loads(report.to_json())["entries"][0]["actions"][0]["bytes_read"] == 12345
        chain.unload()
        assert chain.report.outcome == "unloading"
        chain.unload_complete()
        assert chain.report.outcome == "unloaded"
        assert chain.report.seconds == report.seconds

    def test_a_failed_load_has_its_report_on_the_error(self, bench: Any) -> None:
        bench.agents.raise_at("b LOAD")
        with pytest.raises(AgentError) as caught:
            bench.load("a", "b")
        report = caught.value.report
        assert report.summary.endswith(": agent 'b': b LOAD fails")
        assert [[(a.action, a.outcome, a.error) for a in entry.actions] for entry in report.entries] == [
            [("LOAD", "ok", None), ("LOAD_FAIL", "ok", None)],
            [("LOAD", "failed", "b LOAD fails"), ("LOAD_FAIL", "ok", None)],
        ]

    def test_an_agent_that_is_missing_stands_in_the_report(self, bench: Any) -> None:
        with pytest.raises(AgentNotFoundError) as caught:
            bench.load("missing")
        (action,) = caught.value.report.entries[0].actions
        assert (action.action, action.outcome, action.error) == ("INITIALIZE", "failed", "no such agent")

    def test_observers_hear_every_load_and_action(self, bench: Any) -> None:
        heard: list[Any] = []

        class Listening:
            @hookimpl
            def load_started(self, event: LoadEvent) -> None:
                heard.append(("load_started", event.model, event.outcome, event.report))

            @hookimpl
            def action_finished(self, event: ActionEvent) -> None:
                heard.append((event.agent, event.index, event.action.name, event.error))

            @hookimpl
            def load_finished(self, event: LoadEvent) -> None:
                assert event.report is not None
                heard.append(("load_finished", event.outcome, event.error, event.report.outcome))

            @hookimpl
            def unload_finished(self, event: LoadEvent) -> None:
                heard.append(("unload_finished", event.outcome))

        bench.plugins.register(Listening(), "listening")
        chain = bench.load("a")
        chain.complete()
        chain.unload()
        chain.unload_complete()
        bench.agents.raise_at("b LOAD")
        with pytest.raises(AgentError):
            bench.load("b", name="n")
        with pytest.raises(ConfigError):
            bench.loader.load(MemorySource("o", {"config.pbtxt": b"?"}))
        assert bench.plugins.flush(30)
        assert heard[:7] == [
            ("load_started", "m", "started", None),
            ("a", 0, "LOAD", None),
            ("a", 0, "LOAD_COMPLETE", None),
            ("load_finished", "loaded", None, "loaded"),
            ("a", 0, "UNLOAD", None),
            ("a", 0, "UNLOAD_COMPLETE", None),
            ("unload_finished", "unloaded"),
        ]
        assert heard[7:11] == [
            ("load_started", "n", "started", None),
            ("b", 0, "LOAD", "b LOAD fails"),
            ("b", 0, "LOAD_FAIL", None),
            ("load_finished", "failed", "agent 'b': b LOAD fails", "failed"),
        ]
        assert heard[11][:2] == ("load_started", "o")
        assert heard[12][:2] == ("load_finished", "failed")


class TestCancelling:
    """Nobody waits any more."""

    def test_a_load_that_is_cancelled_before_its_first_agent_calls_none(self, bench: Any) -> None:
        with pytest.raises(CancelledError, match="the load of model 'm' was cancelled"):
            bench.loader.load(bench.model("a"), cancelled=lambda: True)
        assert bench.agents.events == []

    def test_between_agents(self, bench: Any, caplog: pytest.LogCaptureFixture) -> None:
        gone = threading.Event()
        on_load(bench, "a", lambda model: gone.set())
        with pytest.raises(CancelledError) as caught:
            bench.loader.load(bench.model("a", "b"), cancelled=gone.is_set)
        assert bench.agents.events == ["a Init", "a MInit", "a LOAD", "a LOAD_FAIL", "a MFini", "a Fini"]
        assert caught.value.report.outcome == "failed"
        assert caplog.records == []

    def test_after_the_last_agent(self, bench: Any) -> None:
        gone = threading.Event()
        on_load(bench, "a", lambda model: gone.set())
        with pytest.raises(CancelledError):
            bench.loader.load(bench.model("a"), cancelled=gone.is_set)
        assert bench.agents.events[-3:] == ["a LOAD_FAIL", "a MFini", "a Fini"]

    def test_an_agent_that_raises_it_unasked_refuses_the_model(self, bench: Any) -> None:
        bench.agents.fails["a LOAD"] = CancelledError("I do not want to")
        with pytest.raises(AgentError, match="agent 'a': I do not want to"):
            bench.load("a")


class TestThreads:
    """Loads of different models run at the same time."""

    def test_agents_of_different_loads_meet(self, bench: Any) -> None:
        barrier = threading.Barrier(4)
        on_load(bench, "a", lambda model: barrier.wait(60))
        sources = [bench.model("a", name=f"m{number}") for number in range(4)]
        chains: list[Any] = []
        threads = [
            threading.Thread(target=lambda source=source: chains.append(bench.loader.load(source)))
            for source in sources
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(chain.name for chain in chains) == ["m0", "m1", "m2", "m3"]
        assert bench.agents.events.count("a Init") == 1
        assert bench.loader.agents_in_use() == {"a": 4}
        for chain in chains:
            chain.fail(RuntimeError("model"))
        assert bench.agents.events.count("a Fini") == 1

    def test_the_walks_may_come_from_other_threads(self, bench: Any) -> None:
        chain = bench.load("a")
        for walk in (chain.complete, chain.unload, chain.unload_complete):
            thread = threading.Thread(target=walk)
            thread.start()
            thread.join(60)
        assert len(bench.agents.threads) >= 1
        assert bench.agents.events[-2:] == ["a MFini", "a Fini"]

    def test_two_threads_that_end_one_chain_call_its_agents_once(self, bench: Any) -> None:
        chain = bench.load("a")
        chain.complete()
        barrier = threading.Barrier(2)

        def end() -> None:
            barrier.wait(60)
            chain.finish()

        threads = [threading.Thread(target=end) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert bench.agents.events.count("a UNLOAD") == bench.agents.events.count("a UNLOAD_COMPLETE") == 1


class TestTheEnd:
    """Closing the loader keeps every promise."""

    def test_the_last_loaded_goes_first_and_all_hear_the_end(self, bench: Any) -> None:
        bench.load("a", name="one").complete()
        bench.load("b", name="two")
        bench.agents.events.clear()
        bench.loader.close()
        assert bench.agents.events == [
            *["b LOAD_FAIL", "b MFini", "b Fini"],
            *["a UNLOAD", "a UNLOAD_COMPLETE", "a MFini", "a Fini"],
        ]
        bench.loader.close()
        with pytest.raises(UnavailableError, match="the loader is closed"):
            bench.load("a")

    def test_a_load_that_runs_is_cancelled_and_waited_for(self, bench: Any) -> None:
        started = threading.Event()

        def wait(model: AgentModel) -> None:
            started.set()
            while not model.cancelled:
                pause.wait(0.01)
            raise CancelledError("given up")

        pause = threading.Event()
        on_load(bench, "a", wait)
        source = bench.model("a")
        errors: list[BaseException] = []

        def load() -> None:
            try:
                bench.loader.load(source)
            except CancelledError as error:
                errors.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        assert started.wait(60)
        bench.loader.close()
        assert bench.agents.events[-3:] == ["a LOAD_FAIL", "a MFini", "a Fini"]
        thread.join(60)
        assert len(errors) == 1

    def test_a_load_that_does_not_stop_is_left_and_logged(self, bench: Any, caplog: pytest.LogCaptureFixture) -> None:
        started, go_on = threading.Event(), threading.Event()

        def wait(model: AgentModel) -> None:
            started.set()
            assert go_on.wait(60)

        on_load(bench, "a", wait)
        source = bench.model("a")

        def load() -> None:
            with pytest.raises(CancelledError):
                bench.loader.load(source)

        thread = threading.Thread(target=load)
        thread.start()
        assert started.wait(60)
        with caplog.at_level(logging.WARNING):
            bench.loader.close(timeout=0.01)
        assert "1 loads did not stop within 0.01 s" in caplog.text
        go_on.set()
        thread.join(60)
        assert bench.agents.events[-1] == "a Fini"


def test_a_model_in_a_directory_is_opened_by_its_path(bench: Any) -> None:
    source = bench.model("a")
    chain = bench.loader.load(open_source("m", source.root))
    assert write_text(chain.config) == write_text(read_text(bench.config("a")))


def test_a_model_in_a_confidential_directory_of_this_user_stays_in_memory(bench: Any) -> None:
    """As the bridge loads it, where an earlier load of another entry has decrypted it."""
    given = bench.workspace.new("m").directory("decrypted", confidential=True)
    (given / "1").mkdir()
    acquired: list[Path] = []
    on_load(bench, "a", lambda model: acquired.append(model.acquire_location()))
    (given / "config.pbtxt").write_text(bench.config("a"))
    chain = bench.loader.load(open_source("m", str(given)))
    assert acquired[0].is_relative_to(bench.memory)
    chain.fail(RuntimeError())
    on_load(bench, "b", lambda model: acquired.append(model.acquire_location()))
    bench.load("b").fail(RuntimeError())
    assert not acquired[1].is_relative_to(bench.memory)


def test_nobody_enters_after_the_end() -> None:
    admission = LoadCounter()
    with admission.enter():
        before = admission.closed
    assert admission.close(0) == 0
    assert (before, admission.closed) == (False, True)
    with pytest.raises(UnavailableError, match="no model can be loaded any more"), admission.enter():
        pytest.fail("was let in")


def test_closing_waits_for_those_inside_and_counts_who_stays() -> None:
    admission = LoadCounter()
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with admission.enter():
            inside.set()
            assert go_on.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    assert admission.close(0.01) == 1
    go_on.set()
    assert admission.close(30) == 0
    thread.join(60)


def test_a_load_that_raises_has_left() -> None:
    admission = LoadCounter()
    with pytest.raises(ValueError, match="x"), admission.enter():
        raise ValueError("x")
    assert admission.close(0) == 0
