"""A real core with small models, and both front ends over it: a fixture for the folders that want it."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served as Parts
from repoagent_server.handlers.shared_memory import Regions
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.shared.grpc_options import GrpcOptions

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.tracing.trace_settings import TraceSettings

_EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples" / "backends" / "repository"
_IDENTITY: Final = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
"""
_ENSEMBLE: Final = """
platform: "ensemble"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling {
  step [ {
    model_name: "probs" model_version: -1
    input_map { key: "INPUT0" value: "X" }
    output_map { key: "OUTPUT0" value: "Y" }
  } ]
}
"""


def identity(folder: Path, name: str, data_type: str, dims: str = "[-1]", batch: int = 0, more: str = "") -> None:
    """Write a model that gives back its one input; ``more`` goes into the configuration of its output."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(_IDENTITY)
    tensor = f"data_type: TYPE_{data_type} dims: {dims}"
    (folder / name / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {batch}\n'
        f'input {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} {more} }}\n'
    )


def _write_models(folder: Path) -> None:
    identity(folder, "probs", "FP32", batch=8, more='label_filename: "labels.txt"')
    (folder / "probs" / "labels.txt").write_bytes(b"cat\ndog\n\nbird\n")
    identity(folder, "cube", "INT32", "[2, 3]", more='label_filename: "l.txt"')
    (folder / "cube" / "l.txt").write_bytes(b"a\r\nb")
    for name, data_type in (("u8", "UINT8"), ("f64", "FP64"), ("half", "FP16"), ("str", "STRING"), ("truth", "BOOL")):
        identity(folder, name, data_type)
    for name in ("square_int32", "simple_dyna_sequence", "simple_string_dyna_sequence"):
        shutil.copytree(_EXAMPLES / name, folder / name)
    (folder / "ens").mkdir()
    (folder / "ens" / "config.pbtxt").write_text(_ENSEMBLE)


@dataclass(frozen=True)
class Served:
    """A core, and where it is reached."""

    core: ServingCore
    models: Path
    regions: Regions
    http: tuple[str, int]
    grpc: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Models that give back what they get: ``probs`` (FP32, batches, labels), ``cube`` (INT32 [2, 3], labels), ``ens``
    (``probs`` as an ensemble), ``u8``, ``f64``, ``half``, ``str``, ``truth``; and three of the example backends."""
    folder = tmp_path_factory.mktemp("served")
    _write_models(folder / "models")
    options = CoreOptions(
        repositories=(str(folder / "models"),),
        control_mode=ControlMode.EXPLICIT,
        startup_models=("*",),
        workspace_directory=folder / "work",
        cache_directory=folder / "cache",
        trace=TraceSettings(file=str(folder / "traces")),
    )
    with ExitStack() as stack:
        core = stack.enter_context(ServingCore(options))
        regions = Regions(allowed=True)
        stack.callback(regions.close)
        http = HttpFrontend(Endpoint(port=0), api_service(Parts(core, allow_load_parameters=True, regions=regions)))
        grpc = GrpcFrontend(Parts(core, allow_load_parameters=True, regions=regions), GrpcOptions(port=0))
        for front in (http, grpc):
            stack.callback(front.stop)
            front.start()
        yield Served(core, folder / "models", regions, http.bind(), f"127.0.0.1:{grpc.bind()[1]}")
