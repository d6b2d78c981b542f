"""What an agent can do with the model it is given, tried from inside real loads."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.api import Action, AgentModel, ArtifactType
from repoagent.config import ModelConfig, read_text
from repoagent.errors import (
    AgentRefusedError,
    CancelledError,
    ErrorCode,
    InvalidArgumentError,
    NotFoundError,
    RepoAgentError,
    UnavailableError,
    UnsupportedError,
)
from repoagent.loader.load_context import Progress
from repoagent.storage.repositories.sources import MemorySource

Do = Callable[[AgentModel], object]
PREFIX = "TRITONREPOAGENT_ACTION"


def in_load(bench: Any, do: Do, *, name: str = "a") -> None:
    """Let agent ``name`` run ``do`` in its LOAD."""

    def act(model: AgentModel, action: Action) -> None:
        if action is Action.LOAD:
            do(model)

    bench.agents.does[name] = act


def in_each(bench: Any, do: Callable[[AgentModel, Action], None], *, name: str = "a") -> None:
    bench.agents.does[name] = do


def refused(bench: Any, do: Do) -> BaseException:
    """What ``do`` raised in the LOAD of an agent."""
    in_load(bench, do)
    with pytest.raises(AgentRefusedError) as caught:
        bench.load("a")
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


def test_the_model_tells_its_name_place_parameters_and_configuration(bench: Any) -> None:
    def look(model: AgentModel) -> None:
        assert model.name == "m"
        assert model.location == str(bench.directory / "repository" / "m")
        assert model.artifact_type is ArtifactType.FILESYSTEM
        assert list(model.parameters.items()) == [("k", "v")]
        assert model.config is not None
        assert model.config.platform == "onnxruntime_onnx"
        assert model.localize() == Path(model.location)
        assert model.root() == model.location
        assert sorted(model.filesystem().ls(model.root(), detail=False)) == [
            f"{model.location}/1",
            f"{model.location}/config.pbtxt",
        ]
        assert model.cancelled is False

    in_load(bench, look)
    bench.loader.load(bench.model("a", extra='platform: "onnxruntime_onnx"'))


def test_the_configuration_is_a_private_copy(bench: Any) -> None:
    def change(model: AgentModel) -> None:
        assert model.config is not None
        model.config.platform = "changed"
        assert model.config.platform == ""

    in_load(bench, change)
    assert bench.load("a").config.platform == ""


def test_an_acquired_location_is_empty_private_and_the_same_when_asked_again(bench: Any) -> None:
    places: list[Path] = []

    def acquire(model: AgentModel) -> None:
        first = model.acquire_location()
        assert list(first.iterdir()) == []
        assert first.stat().st_mode & 0o777 == 0o700
        (first / "file").write_text("x")
        assert model.acquire_location() == first
        places.append(first)

    in_load(bench, acquire)
    in_load(bench, acquire, name="b")
    bench.load("a", "b").complete()
    assert len(set(places)) == 2


def test_a_released_location_is_gone_and_the_next_one_is_empty(bench: Any) -> None:
    def acquire(model: AgentModel) -> None:
        first = model.acquire_location()
        (first / "file").write_text("x")
        model.release_location()
        assert not first.exists()
        assert list(model.acquire_location().iterdir()) == []

    in_load(bench, acquire)
    bench.load("a")


def test_releasing_without_an_acquired_location_is_an_error_with_the_known_text(bench: Any) -> None:
    error = refused(bench, lambda model: model.release_location())
    assert isinstance(error, UnavailableError)
    assert str(error) == "No mutable location to be deleted"


def test_the_location_that_the_model_is_loaded_from_cannot_be_released(bench: Any) -> None:
    texts: list[str] = []

    def act(model: AgentModel, action: Action) -> None:
        if action is Action.LOAD:
            model.update_location(model.acquire_location())
        try:
            model.release_location()
        except UnavailableError as error:
            texts.append(f"{action.name}: {error}")

    in_each(bench, act)
    chain = bench.load("a")
    chain.complete()
    chain.unload()
    chain.unload_complete()
    reason = "the acquired location is where the model is loaded from; it goes with the model"
    assert texts == [f"{name}: {reason}" for name in ("LOAD", "LOAD_COMPLETE", "UNLOAD")]


def test_a_location_that_a_later_agent_moved_away_from_can_be_released(bench: Any) -> None:
    def act(model: AgentModel, action: Action) -> None:
        if action is Action.LOAD:
            model.acquire_location()
        if action is Action.LOAD_COMPLETE:
            model.release_location()

    in_each(bench, act, name="a")
    in_load(bench, lambda model: model.update_location(model.acquire_location()), name="b")
    chain = bench.load("a", "b")
    chain.complete()
    assert not [action.error for action in chain.report.entries[0].actions if action.error]


@pytest.mark.parametrize("action", [action for action in Action if action is not Action.LOAD])
def test_the_location_can_only_be_updated_during_load(bench: Any, action: Action) -> None:
    errors: list[Exception] = []

    def act(model: AgentModel, current: Action) -> None:
        if current is action:
            try:
                model.update_location("/tmp")
            except InvalidArgumentError as error:
                errors.append(error)

    in_each(bench, act)
    chain = bench.load("a")
    if action is Action.LOAD_FAIL:
        chain.fail(RuntimeError("model"))
    else:
        chain.complete()
        chain.unload()
        chain.unload_complete()
    assert [str(error) for error in errors] == [
        f"location can only be updated during {PREFIX}_LOAD, current action type is {PREFIX}_{action.name}"
    ]


def test_a_location_that_is_no_directory_is_refused(bench: Any) -> None:
    error = refused(bench, lambda model: model.update_location("/no/such/place"))
    assert isinstance(error, InvalidArgumentError)
    assert str(error) == (
        "update_location needs a directory, not 'place'; for a URL pass ArtifactType.REMOTE_FILESYSTEM"
    )


def test_a_remote_location_that_does_not_exist_is_refused(bench: Any) -> None:
    error = refused(bench, lambda model: model.update_location("memory://no/model", ArtifactType.REMOTE_FILESYSTEM))
    assert isinstance(error, InvalidArgumentError)
    assert str(error) == "update_location: no such directory: memory://no/model"


def test_an_agent_can_move_the_model_to_a_remote_place(bench: Any) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    store.pipe_file("/moved/m/1/model.txt", b"remote weights")
    store.pipe_file("/moved/m/config.pbtxt", b'backend: "python"')

    def move(model: AgentModel) -> None:
        model.update_location("memory://moved/m", ArtifactType.REMOTE_FILESYSTEM)
        assert model.artifact_type is ArtifactType.REMOTE_FILESYSTEM

    try:
        in_load(bench, move)
        chain = bench.load("a")
        assert chain.location == "memory://moved/m"
        assert chain.files.bytes("1/model.txt") == b"remote weights"
        assert chain.config.backend == "python"
        assert chain.files.local_path("1/model.txt").read_bytes() == b"remote weights"
        assert chain.version_dirs == [1]
        chain.complete()
        chain.unload()
        chain.unload_complete()
    finally:
        store.rm("/moved", recursive=True)


def test_a_remote_place_below_the_model_is_reached_with_the_credentials_of_the_repository(bench: Any) -> None:
    source = MemorySource("m", {"config.pbtxt": bench.config("a").encode(), "inner/1/model.txt": b"w"})

    def move(model: AgentModel) -> None:
        model.update_location(f"{model.location}/inner", ArtifactType.REMOTE_FILESYSTEM)
        assert model.filesystem() is source.fs

    in_load(bench, move)
    # The private store of this source is reachable through its own filesystem object only.
    source.root, source.location = "/model", "memory://model"
    assert bench.loader.load(source).files.bytes("1/model.txt") == b"w"


def test_a_remote_model_is_localized_once_for_all_agents(bench: Any) -> None:
    source = MemorySource("m", {"config.pbtxt": bench.config("a", "b").encode(), "1/model.txt": b"w"})
    places: list[Path] = []

    def localize(model: AgentModel) -> None:
        assert model.artifact_type is ArtifactType.REMOTE_FILESYSTEM
        places.extend([model.localize(), model.localize()])

    in_load(bench, localize)
    in_load(bench, localize, name="b")
    chain = bench.loader.load(source)
    assert len(set(places)) == 1
    assert (places[0] / "1" / "model.txt").read_bytes() == b"w"
    chain.complete()
    chain.unload()
    chain.unload_complete()
    assert not places[0].exists()


def test_writing_the_configuration_needs_an_acquired_location(bench: Any) -> None:
    error = refused(bench, lambda model: model.write_config(ModelConfig()))
    assert isinstance(error, UnavailableError)
    assert str(error) == "write_config writes into the acquired location; call acquire_location first"


def test_a_written_configuration_is_read_back_after_the_move(bench: Any) -> None:
    def convert(model: AgentModel) -> None:
        config = model.config
        assert config is not None
        config.backend = "converted"
        place = model.acquire_location()
        model.write_config(config)
        assert model.read_config() is not None
        assert model.read_config() == model.config
        model.update_location(place)
        reread = model.read_config()
        assert reread is not None
        assert reread.backend == "converted"

    seen: list[str] = []

    def look(model: AgentModel) -> None:
        assert model.config is not None
        seen.append(model.config.backend)

    in_load(bench, convert)
    in_load(bench, look, name="b")
    assert bench.load("a", "b").config.backend == "converted"
    assert seen == ["converted"]


def test_reading_a_configuration_that_is_not_there_gives_none(bench: Any) -> None:
    def look(model: AgentModel) -> None:
        place = model.acquire_location()
        model.update_location(place)
        assert model.read_config() is None

    in_load(bench, look)
    bench.load("a")


def test_keys_come_through_the_providers(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_TEST_KEY", "secret")
    keys: list[bytes] = []

    def ask(model: AgentModel) -> None:
        keys.append(model.key("env:REPOAGENT_TEST_KEY"))
        with pytest.raises(NotFoundError):
            model.key("env:REPOAGENT_NO_SUCH_KEY")
        with pytest.raises(InvalidArgumentError) as caught:
            model.key("the-key-itself")
        assert "the-key-itself" not in str(caught.value)

    in_load(bench, ask)
    bench.load("a")
    assert keys == [b"secret"]


def test_a_provider_of_a_plugin_is_used(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(key_providers={"vault": lambda uri: uri.encode()})
    keys: list[bytes] = []
    in_load(bench, lambda model: keys.append(model.key("vault:a/b")))
    bench.load("a")
    assert keys == [b"vault:a/b"]


def test_the_cache_builds_once_for_many_loads(bench: Any) -> None:
    built: list[Path] = []
    places: set[Path] = set()

    def build(target: Path) -> None:
        (target / "result").write_text("x")
        built.append(target)

    def use(model: AgentModel) -> None:
        places.add(model.cache.get_or_build("key", build))

    in_load(bench, use)
    for _ in range(2):
        chain = bench.load("a")
        chain.complete()
        chain.unload()
        chain.unload_complete()
    assert len(built) == 1
    (place,) = places
    assert (place / "result").read_text() == "x"


def test_the_cache_is_refused_in_a_confidential_load(bench: Any) -> None:
    def use(model: AgentModel) -> None:
        cache = model.cache
        model.acquire_location(confidential=True)
        cache.get_or_build("key", lambda target: None)

    error = refused(bench, use)
    assert isinstance(error, UnsupportedError)
    assert str(error) == "the load is confidential: what an agent makes of its plaintext may not be cached"


def test_confidential_locations_lie_in_memory_and_so_do_all_later_ones(bench: Any) -> None:
    in_load(bench, lambda model: model.update_location(model.acquire_location(confidential=True)))
    places: list[Path] = []
    in_load(bench, lambda model: places.append(model.acquire_location()), name="b")
    chain = bench.load("a", "b")
    assert Path(chain.location).is_relative_to(bench.memory)
    assert places[0].is_relative_to(bench.memory)
    chain.complete()
    assert Path(chain.location).exists()
    chain.unload()
    chain.unload_complete()
    assert bench.left_over() == []


def test_a_location_given_on_disk_does_not_become_confidential_afterwards(bench: Any) -> None:
    def acquire(model: AgentModel) -> None:
        model.acquire_location()
        model.acquire_location(confidential=True)

    assert isinstance(refused(bench, acquire), InvalidArgumentError)


def test_a_size_that_does_not_fit_is_refused(bench: Any) -> None:
    error = refused(bench, lambda model: model.acquire_location(size_hint=1 << 60))
    assert isinstance(error, UnavailableError)


def test_a_child_program_runs_and_its_failure_is_the_agents(bench: Any) -> None:
    outputs: list[str] = []

    def run(model: AgentModel) -> None:
        done: subprocess.CompletedProcess[str] = model.run_child([sys.executable, "-c", "print('hello')"])
        outputs.append(done.stdout)
        model.run_child([sys.executable, "-c", "import sys; sys.exit('broken')"])

    error = refused(bench, run)
    assert isinstance(error, RepoAgentError)
    assert error.code is ErrorCode.INTERNAL
    assert str(error).endswith("ended with status 1: broken")
    assert outputs == ["hello\n"]


def test_a_child_is_killed_when_the_load_is_cancelled_but_not_in_what_follows(bench: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = f"import time; open({str(pipe)!r}, 'w').close(); time.sleep(600)"
    cancelled = threading.Event()
    after: list[str] = []

    def act(model: AgentModel, action: Action) -> None:
        if action is Action.LOAD:
            model.run_child([sys.executable, "-c", code])
        else:
            assert not model.cancelled
            after.append(model.run_child([sys.executable, "-c", "print('undone')"]).stdout)

    in_each(bench, act)

    def cancel_when_it_runs() -> None:
        pipe.read_bytes()
        cancelled.set()

    watcher = threading.Thread(target=cancel_when_it_runs)
    watcher.start()
    with pytest.raises(CancelledError) as caught:
        bench.loader.load(bench.model("a"), cancelled=cancelled.is_set)
    watcher.join(60)
    assert after == ["undone\n"]
    assert [(action.action, action.outcome) for action in caught.value.report.entries[0].actions] == [
        ("LOAD", "cancelled"),
        ("LOAD_FAIL", "ok"),
    ]


def test_progress_reaches_the_caller_and_the_last_step_always_does(bench: Any) -> None:
    seen: list[Progress] = []

    def work(model: AgentModel) -> None:
        for done in range(1000):
            model.progress(done, 999, "bytes")

    in_load(bench, work)
    bench.loader.load(bench.model("a"), on_progress=seen.append)
    assert seen[0] == Progress("m", "a", 0, 999, "bytes")
    assert seen[-1] == Progress("m", "a", 999, 999, "bytes")
    assert len(seen) < 100


def test_a_caller_that_cannot_show_progress_does_not_stop_the_load(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(progress: Progress) -> None:
        raise ValueError("no screen")

    in_load(bench, lambda model: model.progress(1, 1))
    bench.loader.load(bench.model("a"), on_progress=broken).complete()
    assert "showing progress failed" in caplog.text


def test_what_an_agent_reports_stands_in_the_line_of_its_call(bench: Any) -> None:
    def act(model: AgentModel, action: Action) -> None:
        if action is Action.LOAD:
            model.report(bytes_read=10, digests={"a": "1"}, note="one")
            model.report(bytes_read=5, bytes_written=3, digests={"b": "2"}, note="two")
        if action is Action.LOAD_COMPLETE:
            model.report(note="ready")

    in_each(bench, act)
    chain = bench.load("a")
    chain.complete()
    load, complete = chain.report.entries[0].actions
    assert (load.bytes_read, load.bytes_written, load.digests, load.notes) == (
        15,
        3,
        {"a": "1", "b": "2"},
        ("one", "two"),
    )
    assert (complete.bytes_read, complete.notes) == (0, ("ready",))


def test_the_state_belongs_to_one_load(bench: Any) -> None:
    states: list[object] = []

    def act(model: AgentModel, action: Action) -> None:
        states.append((model.name, model.state))
        model.state = f"{model.name} {action.name}"

    in_each(bench, act)
    bench.load("a", name="one").complete()
    bench.load("a", name="two").complete()
    assert states == [("one", ""), ("one", "one LOAD"), ("two", ""), ("two", "two LOAD")]


def test_a_model_without_configuration_shows_none(make_bench: Callable[..., Any]) -> None:
    from repoagent.loader.plan import ConfigPlanner, PlannedAgent

    class Always(ConfigPlanner):
        def plan(self, model_name: str, config: ModelConfig | None, *, overridden: bool = False) -> list[PlannedAgent]:
            assert config is None
            return [PlannedAgent("a", origin="policy")]

    bench = make_bench(planner=Always())
    source = bench.model()
    (Path(source.root) / "config.pbtxt").unlink()
    seen: list[object] = []
    in_load(bench, lambda model: seen.extend([model.config, model.read_config()]))
    chain = bench.loader.load(source)
    assert seen == [None, None]
    assert chain.config is None
    assert chain.report.entries[0].origin == "policy"
    assert read_text("") == ModelConfig()
