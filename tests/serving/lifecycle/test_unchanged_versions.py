"""A load of a loaded model keeps the versions that have not changed: instances, statistics and running requests."""

import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.config import ModelConfig
from repoagent.errors import NotFoundError, RepoAgentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.versions.served_model import ServedModel
from repoagent.storage.files.files import ModelFiles
from tests.serving.conftest import ScriptedBackend, ScriptedModel
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first, in_thread

ALL = 'backend: "scripted" version_policy { all {} } '


def served(core: ServingCore, version: int, name: str = "m") -> ServedModel:
    return core.find(InferRequest(Asked(name, {}, str(version))))


def count(core: ServingCore, version: int) -> int:
    (entry,) = core.statistics("m", str(version))["model_stats"]
    return int(entry["inference_count"])


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_new_version_is_loaded_beside_those_that_serve_and_nothing_else_is(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any, loader: Any
) -> None:
    write_model("m", {1: "1", 2: "2"}, ALL)
    core = new_core()
    core.load("m")
    core.infer(request_of(model_version="1"))
    before = {version: served(core, version) for version in (1, 2)}
    del loader.trace[:]
    while scripted.loading.acquire(blocking=False):
        pass
    write_model("m", {3: "3"}, ALL)
    scripted.hold = threading.Event()
    load, _ = in_thread(lambda: core.load("m"))
    assert scripted.loading.acquire(timeout=60)
    assert scripted.models_open == 2  # At the peak there is one more.
    scripted.hold.set()
    load.join(60)
    assert not scripted.loading.acquire(blocking=False)
    assert scripted.models_open == 3
    assert {version: served(core, version) for version in (1, 2)} == before
    assert count(core, 1) == 1
    assert [first(core.infer(request_of(model_version=v))) for v in ("1", "2", "3", "")] == [2, 3, 4, 4]
    # The chain ran once, for the model.
    assert loader.trace == ["m2 LOAD", "m1 UNLOAD", "m2 LOAD_COMPLETE", "m1 UNLOAD_COMPLETE"]
    assert {entry["version"]: entry["state"] for entry in core.index()} == {"1": "READY", "2": "READY", "3": "READY"}


def test_a_request_that_runs_goes_on_in_a_version_that_is_kept_and_holds_nobody_up(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any, loader: Any
) -> None:
    write_model("m", {1: "1"}, ALL)
    core = new_core()
    core.load("m")
    (runner,) = scripted.runners
    runner.hold = threading.Event()
    infer, answers = in_thread(lambda: core.infer(request_of()))
    assert runner.running.acquire(timeout=60)
    write_model("m", {2: "2"}, ALL)
    core.load("m")
    assert loader.trace[-1] == "m1 UNLOAD_COMPLETE"  # The chain before goes although a request still runs.
    runner.hold.set()
    infer.join(60)
    assert first(answers[0]) == 2  # type: ignore[arg-type]
    assert not runner.closed


def test_a_version_that_is_gone_goes_and_the_others_stay(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any
) -> None:
    directory = write_model("m", {1: "1", 2: "2"}, ALL)
    core = new_core()
    core.load("m")
    before = served(core, 2)
    (directory / "1" / "model.txt").unlink()
    (directory / "1").rmdir()
    core.load("m")
    assert served(core, 2) is before
    with pytest.raises(RepoAgentError):
        core.infer(request_of(model_version="1"))
    assert scripted.models_open == 1
    core.unload("m")
    assert scripted.models_open == 0
    with pytest.raises(NotFoundError):
        core.infer(request_of())


def test_a_load_that_fails_leaves_what_would_have_been_kept_as_it_was(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any
) -> None:
    write_model("m", {1: "1"}, ALL + "instance_group { count: 1 }")
    core = new_core()
    core.load("m")
    before = served(core, 1)
    write_model("m", {2: "fail no such luck"}, ALL + "instance_group { count: 4 }")
    with pytest.raises(RepoAgentError, match="no such luck"):
        core.load("m")
    assert served(core, 1) is before
    assert scripted.models_open == 1
    assert [runner.closed for runner in scripted.runners] == [False, True, True, True]
    assert first(core.infer(request_of())) == 2


# -- what counts as a change -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda directory: (directory / "1" / "model.txt").write_text("5"), [2]),
        (lambda directory: os.utime(directory / "1" / "model.txt", (1, 1)), [2]),
        (lambda directory: (directory / "1" / "extra.txt").write_text("x"), [2]),
        (lambda directory: (directory / "labels.txt").write_text("a"), []),
        (lambda directory: (directory / "config.pbtxt").write_text(ALL + "max_batch_size: 8"), []),
        (lambda directory: (directory / "config.pbtxt").write_text(ALL + 'parameters { key: "x" }'), []),
        (lambda directory: (directory / "config.pbtxt").write_text(ALL + "# a remark"), [1, 2]),
        (
            lambda directory: (directory / "config.pbtxt").write_text(
                ALL + 'model_repository_agents { agents { name: "a" parameters { key: "k" value: "other" } } }'
            ),
            [1, 2],
        ),
        (
            lambda directory: (directory / "config.pbtxt").write_text(
                'backend: "scripted" version_policy { specific { versions: [1, 2] } }'
            ),
            [1, 2],
        ),
    ],
    ids=["content", "time", "file", "shared", "batching", "parameter", "remark", "agents", "policy"],
)
def test_a_version_is_kept_if_its_files_and_its_share_of_the_configuration_are_equal(
    new_core: CoreMaker, write_model: ModelWriter, change: Callable[[Path], object], kept: list[int]
) -> None:
    directory = write_model("m", {1: "1", 2: "2"}, ALL)
    core = new_core()
    core.load("m")
    before = {version: served(core, version) for version in (1, 2)}
    change(directory)
    core.load("m")
    assert [version for version in (1, 2) if served(core, version) is before[version]] == kept


def test_the_configuration_that_is_shown_of_a_kept_version_is_the_new_one(
    new_core: CoreMaker, write_model: ModelWriter
) -> None:
    write_model("m", {1: "1", 2: "2"}, ALL)
    core = new_core()
    core.load("m")
    write_model("m", {}, 'backend: "scripted" version_policy { specific { versions: [1] } }')
    core.load("m")
    assert core.model_config("m")["version_policy"] == {"specific": {"versions": [1]}}


def test_an_ensemble_follows_only_a_member_that_is_not_kept(
    new_core: CoreMaker, write_model: ModelWriter, ensemble_config: Callable[..., str]
) -> None:
    write_model("m", {1: "1"}, ALL)
    write_model("e", {}, ensemble_config(("m:1", {"x": "x"}, {"y": "y"})))
    core = new_core()
    core.load("e")
    before = served(core, 1, "e")
    write_model("m", {2: "2"}, ALL)
    core.load("m")
    assert served(core, 1, "e") is before


# -- folders that a version takes up ---------------------------------------------------------------------------------


@pytest.fixture
def extra(monkeypatch: pytest.MonkeyPatch, scripted: ScriptedBackend, tmp_path: Path) -> Callable[[str], None]:
    """Writes what scripted models take up: the offset of their runners, in the folder ``extra``."""

    def refresh(_: ScriptedModel, config: ModelConfig, files: ModelFiles, version: int) -> Callable[[], None]:
        offset = float(files.bytes(f"{version}/extra/offset.txt"))

        def take() -> None:
            for runner in scripted.runners:
                runner.offset = offset

        return take

    def write(text: str) -> None:
        (tmp_path / "models/m/1/extra").mkdir(exist_ok=True)
        (tmp_path / "models/m/1/extra/offset.txt").write_text(text)

    monkeypatch.setattr(ScriptedModel, "refreshable", ("extra",))
    monkeypatch.setattr(ScriptedModel, "refresh", refresh)
    return write


def test_a_version_takes_up_a_folder_and_ensembles_forget_its_answers(
    new_core: CoreMaker,
    write_model: ModelWriter,
    request_of: RequestMaker,
    extra: Callable[[str], None],
    ensemble_config: Callable[..., str],
) -> None:
    write_model("m", {1: "1"}, ALL)
    extra("0")
    write_model("e", {}, ensemble_config(("m:1", {"x": "x"}, {"y": "y"})))
    core = new_core()
    core.load("e")
    before, ensemble = served(core, 1), served(core, 1, "e")
    core.load("m")
    assert served(core, 1, "e") is ensemble
    extra("10")
    core.load("m")
    assert served(core, 1) is before
    assert first(core.infer(request_of())) == 11
    assert served(core, 1, "e") is not ensemble
    core.load("m")
    assert served(core, 1) is before


def test_a_folder_that_makes_no_sense_fails_the_load_and_changes_nothing(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, extra: Callable[[str], None]
) -> None:
    write_model("m", {1: "1"}, ALL)
    extra("0")
    core = new_core()
    core.load("m")
    before = served(core, 1)
    extra("no number")
    with pytest.raises(RepoAgentError, match="could not convert"):
        core.load("m")
    assert served(core, 1) is before
    assert first(core.infer(request_of())) == 2


def test_a_version_whose_answers_are_kept_is_made_again(
    new_core: CoreMaker, write_model: ModelWriter, extra: Callable[[str], None]
) -> None:
    write_model("m", {1: "1"}, ALL + "response_cache { enable: true }")
    extra("0")
    core = new_core()
    core.load("m")
    before = served(core, 1)
    extra("10")
    core.load("m")
    assert served(core, 1) is not before


# -- with real agents --------------------------------------------------------------------------------------------------

MOVING = """
import shutil
from repoagent.api import Agent

class Moving(Agent):
    api_version = 1

    def load(self, model):
        target = model.acquire_location() / "m"
        shutil.copytree(model.location, target)
        for path in target.glob("*/model.*"):
            path.write_bytes(path.read_bytes())  # Made by this load: only the contents can be compared.
        model.update_location(target)
"""

Serving = Callable[..., ServingCore]


@pytest.fixture
def moving(tmp_path: Path) -> Callable[[], ServingCore]:
    """A core whose models can name an agent that makes a copy of them, anew for each load."""
    (tmp_path / "agents" / "moving").mkdir(parents=True)
    (tmp_path / "agents" / "moving" / "agent.py").write_text(MOVING)

    def make() -> ServingCore:
        return ServingCore(
            CoreOptions(
                repositories=(str(tmp_path / "models"),),
                repoagent_directory=tmp_path / "agents",
                workspace_directory=tmp_path / "work",
                control_mode=ControlMode.EXPLICIT,
            )
        )

    return make


def test_what_agents_make_is_compared_by_its_contents(
    tmp_path: Path, moving: Callable[[], ServingCore], add_constant: Callable[[float], bytes], request_of: RequestMaker
) -> None:
    directory = tmp_path / "models" / "m"
    for version in (1, 2):
        (directory / str(version)).mkdir(parents=True)
        (directory / str(version) / "model.onnx").write_bytes(add_constant(version))
    (directory / "config.pbtxt").write_text(
        'backend: "onnxruntime" version_policy { all {} } model_repository_agents { agents { name: "moving" } }'
    )
    with moving() as core:
        core.load("m")
        before = {version: served(core, version) for version in (1, 2)}
        (directory / "2" / "model.onnx").write_bytes(add_constant(7))
        os.utime(directory / "1" / "model.onnx")
        core.load("m")
        assert served(core, 1) is before[1]
        assert served(core, 2) is not before[2]
        assert [first(core.infer(request_of(model_version=version))) for version in ("1", "2")] == [2, 8]


def test_a_version_that_reads_files_of_the_load_before_is_not_kept(
    tmp_path: Path, moving: Callable[[], ServingCore], request_of: RequestMaker
) -> None:
    """A Python model finds its files while it serves: those that an agent made go with their load."""
    code = (
        "import numpy, pathlib\nimport triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        "        self.file = pathlib.Path(args['model_repository'], args['model_version'], 'data.txt')\n"
        "    def execute(self, requests):\n"
        "        value = numpy.full((1, 4), float(self.file.read_text()), numpy.float32)\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', value)]) for _ in requests]\n"
    )
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] } output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }'
    )
    for name, agents in {"m": 'model_repository_agents { agents { name: "moving" } }', "plain": ""}.items():
        directory = tmp_path / "models" / name
        for version in (1, 2):
            (directory / str(version)).mkdir(parents=True)
            (directory / str(version) / "model.py").write_text(code)
            (directory / str(version) / "data.txt").write_text(str(version))
        (directory / "config.pbtxt").write_text(f'backend: "python" version_policy {{ all {{}} }} {tensors} {agents}')
    with moving() as core:
        for name in ("m", "plain"):
            core.load(name)
            before = served(core, 1, name)
            (tmp_path / "models" / name / "2" / "data.txt").write_text("5")
            core.load(name)
            assert (served(core, 1, name) is before) == (name == "plain")
            assert first(core.infer(request_of(name, model_version="1"))) == 1
            assert first(core.infer(request_of(name, model_version="2"))) == 5


# -- memory ------------------------------------------------------------------------------------------------------------

WEIGHTS = 32 << 20


def test_the_memory_at_the_peak_is_that_of_one_more_version(
    tmp_path: Path, moving: Callable[[], ServingCore], request_of: RequestMaker
) -> None:
    """With real weights: a version takes 32 MiB, two are loaded, and a third one comes."""
    code = (
        "import numpy\nimport triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        f"        self.weights = numpy.full({WEIGHTS // 4}, float(args['model_version']), numpy.float32)\n"
        "    def execute(self, requests):\n"
        "        value = self.weights[:4].reshape(1, 4)\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', value)]) for _ in requests]\n"
    )
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] } output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }'
    )
    directory = tmp_path / "models" / "m"
    for version in (1, 2):
        (directory / str(version)).mkdir(parents=True)
        (directory / str(version) / "model.py").write_text(code)
    (directory / "config.pbtxt").write_text(
        f'backend: "python" version_policy {{ all {{}} }} {tensors} instance_group {{ kind: KIND_CPU count: 1 }}'
    )
    with moving() as core:
        core.load("m")
        tracemalloc.start()
        try:
            (directory / "3").mkdir()
            (directory / "3" / "model.py").write_text(code)
            core.load("m")
            grown, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert WEIGHTS <= grown < 1.1 * WEIGHTS
        assert peak < 1.1 * WEIGHTS
        assert [first(core.infer(request_of(model_version=version))) for version in "123"] == [1, 2, 3]
