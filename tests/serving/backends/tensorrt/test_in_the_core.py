"""Plans in a server: configurations completed from them, batches, instances, and machines without TensorRT."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.engines.probe import Findings
from repoagent.errors import RepoAgentError
from repoagent.serving.assembly import ControlMode, CoreOptions
from repoagent.serving.backends.tensorrt.backend import TensorRtBackend
from repoagent.serving.core import ServingCore
from repoagent.serving.instances.backend import Capability
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.versions.instance_set import InstanceSet
from tests.engines.models import matmul, twice
from tests.engines.standin import StandInPlatform
from tests.serving.backends.tensorrt.kit import GPU, load, plan, rows

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


class Server:
    """A core over one repository."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.models = directory / "models"
        self.models.mkdir()
        self.core = ServingCore(
            CoreOptions(
                repositories=(str(self.models),),
                control_mode=ControlMode.EXPLICIT,
                workspace_directory=directory / "workspace",
                cache_directory=directory / "cache",
                repoagent_directory=None,
                backend_config={"tensorrt": settings},
            )
        )
        self.core.start()

    def write(self, name: str, content: bytes, config: str = "") -> None:
        directory = self.models / name / "1"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.plan").write_bytes(content)
        (self.models / name / "config.pbtxt").write_text(config)

    def infer(self, name: str, values: Any) -> Any:
        request = InferRequest(Asked(name, {"x": Tensor.of(np.asarray(values, np.float32))}), DISCARD)
        return self.core.infer(request).outputs["y"].array


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Any]:
    servers: list[Server] = []

    def make(**settings: str) -> Server:
        servers.append(Server(tmp_path, **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.core.stop()


@pytest.fixture
def server(new_server: Any, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr("repoagent.engines.cuda.find_platform", StandInPlatform)
    made: Server = new_server()
    return made


def test_a_plan_without_a_configuration_is_served(server: Server) -> None:
    server.write("m", plan(matmul(), rows(1, 2, x=(4,)), rows(3, 16, x=(4,))))
    server.core.load("m")
    config = server.core.model_config("m")
    assert (config["backend"], config["platform"], config["max_batch_size"]) == ("tensorrt", "tensorrt_plan", 16)
    (group,) = config["instance_group"]
    assert (group["kind"], group["gpus"]) == ("KIND_GPU", [0])
    np.testing.assert_array_equal(server.infer("m", [[1, 2, 3, 4]]), np.array([[1, 2, 3, 4]]) @ WEIGHTS)


@pytest.mark.parametrize(
    ("most", "config"),
    [
        (16, "dynamic_batching { } instance_group { count: 2 kind: KIND_GPU }"),
        (16, "dynamic_batching { max_queue_delay_microseconds: 500 }"),
        (4, "dynamic_batching { } optimization { cuda { graphs: true } }"),
        (4, ""),
    ],
)
def test_many_clients_at_once_get_their_own_numbers(server: Server, most: int, config: str) -> None:
    server.write("m", plan(matmul(), rows(1, most, x=(4,))), f"max_batch_size: {most} {config}")
    server.core.load("m")
    wrong: list[Any] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            values = rng.integers(0, 100, (int(rng.integers(1, 5)), 4)).astype(np.float32)
            if not np.array_equal(server.infer("m", values), values @ WEIGHTS):
                wrong.append(values)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("config", "overlaps"),
    [
        ("max_batch_size: 4 dynamic_batching { }", True),
        ("max_batch_size: 1 dynamic_batching { }", True),
        ("max_batch_size: 1", False),
    ],
)
def test_runs_overlap_only_where_there_is_memory_for_two(config: str, overlaps: bool) -> None:
    complete, model = load(plan(matmul(), rows(1, 4, x=(4,))), config)
    version = VersionContext("m", 1, complete, ModelStatistics())
    change = InstanceSet(version, model, None).prepare(complete, lambda: False)
    (instance,) = change.added.values()
    assert (Capability.OVERLAPS in instance.capabilities) is overlaps
    assert model.create_instance(GPU).depth == 1 + overlaps
    change.discard()


def test_a_reload_changes_the_numbers_and_frees_the_old_plan(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = StandInPlatform()
    monkeypatch.setattr("repoagent.engines.cuda.find_platform", lambda: platform)
    server.write("m", plan(matmul(), rows(1, 4, x=(4,))))
    server.core.load("m")
    before = server.infer("m", [[1, 1, 1, 1]])
    server.write("m", plan(twice(), rows(1, 4, x=(4,))))
    server.core.load("m")
    assert before.shape == (1, 3)
    np.testing.assert_array_equal(server.infer("m", [[1, 1, 1, 1]]), [[2, 2, 2, 2]])
    assert platform.device(0).allocations
    server.core.unload("m")
    assert platform.device(0).allocations == 0


@pytest.mark.parametrize("kind", ["KIND_CPU", "KIND_MODEL"])
def test_an_instance_that_is_not_on_a_gpu_is_refused(server: Server, kind: str) -> None:
    server.write("m", plan(matmul(), rows(1, 4, x=(4,))), f"instance_group {{ kind: {kind} }}")
    with pytest.raises(RepoAgentError, match="and a TensorRT plan runs on a GPU: use KIND_GPU"):
        server.core.load("m")


def test_a_gpu_that_is_not_there_is_refused(server: Server) -> None:
    server.write("m", plan(matmul(), rows(1, 4, x=(4,))), "instance_group { kind: KIND_GPU gpus: 5 }")
    with pytest.raises(RepoAgentError, match="unsupported gpu id 5"):
        server.core.load("m")


def test_what_is_not_a_plan_is_refused(server: Server) -> None:
    server.write("m", b"\x08\x0b onnx")
    with pytest.raises(RepoAgentError, match="unable to load the plan of model 'm': not a plan of the stand-in"):
        server.core.load("m")


# -- machines on which no plan can run ----------------------------------------------------------------------------


PROBLEMS = [
    "neither TensorRT nor TensorRT for RTX is installed; from a checkout: pip install .",
    "CUDA finds no usable driver (cudaErrorInsufficientDriver): install NVIDIA's driver",
    "the probe for TensorRT was ended by SIGSEGV while making a runtime of TensorRT",
]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_server_survives_and_the_refusal_states_why(
    new_server: Any, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    monkeypatch.setattr("repoagent.engines.cuda.probe", lambda: Findings("tensorrt", "11.1", (), problem))
    server = new_server()
    server.write("m", plan(matmul(), rows(1, 4, x=(4,))))
    with pytest.raises(RepoAgentError) as caught:
        server.core.load("m")
    assert f"TensorRT plans cannot run here: {problem}" in str(caught.value)
    (entry,) = server.core.index()
    assert problem in entry["reason"]
    assert server.core.live()


def test_where_nothing_can_run_nothing_is_read(new_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent.engines.cuda.probe", lambda: Findings("tensorrt", "11.1", (), PROBLEMS[1]))
    monkeypatch.setattr(TensorRtBackend, "_read", lambda *_: pytest.fail("the plan was read"))
    server = new_server()
    server.write("m", plan(matmul(), rows(1, 4, x=(4,))))
    with pytest.raises(RepoAgentError, match="TensorRT plans cannot run here: CUDA finds no usable driver"):
        server.core.load("m")


@pytest.mark.slow
def test_a_real_probe_refuses_or_finds_a_gpu(new_server: Any) -> None:
    server = new_server()
    server.write("m", b"ftrt" + bytes(200))
    with pytest.raises(RepoAgentError, match="TensorRT"):
        server.core.load("m")


def test_a_setting_that_makes_no_sense_is_refused(new_server: Any) -> None:
    server = new_server(**{"allow-host-code": "perhaps"})
    server.write("m", b"")
    with pytest.raises(RepoAgentError, match="allow-host-code must be true or false, not 'perhaps'"):
        server.core.load("m")
