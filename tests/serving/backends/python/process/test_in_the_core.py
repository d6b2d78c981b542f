"""Models in processes of their own in a whole core: instances, batches, other models, unloading."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InternalError, InvalidArgumentError, UnavailableError
from repoagent.serving.backends.python.process import supervisor
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

CONFIG = """
backend: "python" {more}
input {{ name: "x" data_type: TYPE_FP32 dims: [1] }} output {{ name: "y" data_type: TYPE_FP32 dims: [1] }}
"""
PROCESS = 'parameters { key: "EXECUTION" value { string_value: "process" } } '

# 1 and 2 meet, 3 kills, 4 asks another model
MODEL = """
import os
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_output({{"name": "where", "data_type": "TYPE_INT64", "dims": [1]}})
        return config
    def execute(self, requests):
        import numpy as np
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x")
            if x.as_numpy()[0] == 1:
                open({pipe!r}, "w").close()
            if x.as_numpy()[0] == 2:
                open({pipe!r}).read()
            if x.as_numpy()[0] == 3:
                os.abort()
            y = pb_utils.Tensor("y", x.as_numpy())
            if x.as_numpy()[0] == 4:
                call = pb_utils.InferenceRequest(model_name="plain", inputs=[x], requested_output_names=["y"])
                y = pb_utils.get_output_tensor_by_name(call.exec(), "y")
            answers.append(pb_utils.InferenceResponse([y, pb_utils.Tensor("where", np.array([os.getpid()]))]))
        return answers
"""
PLAIN = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 10)])]
"""


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Callable[..., ServingCore]]:
    cores = []
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def start(more: str, **settings: str) -> ServingCore:
        for name, code, text in (("m", MODEL.format(pipe=str(pipe)), more), ("plain", PLAIN, "")):
            directory = tmp_path / "models" / name / "1"
            directory.mkdir(parents=True)
            (directory / "model.py").write_text(code)
            (directory.parent / "config.pbtxt").write_text(CONFIG.format(more=text))
        cores.append(
            ServingCore(
                CoreOptions(
                    repositories=(str(tmp_path / "models"),),
                    control_mode=ControlMode.EXPLICIT,
                    repoagent_directory=None,
                    backend_config={"python": {key.replace("_", "-"): value for key, value in settings.items()}},
                )
            )
        )
        cores[-1].start()
        return cores[-1]

    yield start
    for entry in cores:
        entry.stop()


def ask(core: ServingCore, value: float) -> Any:
    response = core.infer(InferRequest(Asked("m", {"x": Tensor.of(np.array([value], np.float32))})))
    return {name: tensor.array[0] for name, tensor in response.outputs.items()}


@pytest.mark.slow
def test_every_instance_has_a_process_and_they_work_at_the_same_time(core: Callable[..., ServingCore]) -> None:
    serving = core(PROCESS + "instance_group { count: 2 }")
    serving.load("m")
    seen: list[int] = []
    threads = [threading.Thread(target=lambda x=x: seen.append(ask(serving, x)["where"])) for x in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(seen)) == 2
    assert os.getpid() not in seen


@pytest.mark.slow
def test_a_crash_costs_the_requests_of_one_instance_and_nothing_else(core: Callable[..., ServingCore]) -> None:
    serving = core(PROCESS)
    serving.load("m")
    serving.load("plain")
    with pytest.raises(InternalError, match=r"Stub process 'm_0' is not healthy\."):
        ask(serving, 3.0)
    assert ask(serving, 4.0)["y"] == 40.0
    statistics = serving.statistics("m", "1")["model_stats"][0]
    assert statistics["inference_stats"]["fail"]["count"] == 1
    assert statistics["inference_stats"]["success"]["count"] == 1


@pytest.mark.slow
def test_a_model_is_not_ready_while_it_has_no_process_and_a_load_brings_it_back(
    core: Callable[..., ServingCore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_ATTEMPTS", 1)
    serving = core(PROCESS)
    serving.load("m")
    assert serving.model_ready("m")
    path = tmp_path / "models" / "m" / "1" / "model.py"
    aside = path.rename(tmp_path / "aside")  # What the restart runs is gone.
    with pytest.raises(InternalError, match="is not healthy"):
        ask(serving, 3.0)
    assert not serving.model_ready("m")
    with pytest.raises(UnavailableError, match="could not be started again, 1 times in a row; load the model again"):
        ask(serving, 0.0)
    assert [entry["state"] for entry in serving.index() if entry["name"] == "m"] == ["READY"]
    aside.rename(path)
    serving.load("m")  # Nothing has changed, and still it is loaded.
    assert serving.model_ready("m")
    assert ask(serving, 0.0)["y"] == 0.0


@pytest.mark.slow
def test_the_server_may_say_it_for_all_models(core: Callable[..., ServingCore]) -> None:
    serving = core("", execution="process")
    serving.load("m")
    process = os.pidfd_open(ask(serving, 0.0)["where"])
    serving.unload("m")
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(process), 0)
    os.close(process)


def pid_of(pidfd: int) -> int:
    """The process of a descriptor; -1 turned into one that cannot be if it has ended."""
    (line,) = (row for row in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines() if row.startswith("Pid:"))
    number = int(line.split()[1])
    if number < 0:
        raise ProcessLookupError
    return number


def test_a_model_that_names_no_such_place_does_not_load(core: Callable[..., ServingCore]) -> None:
    serving = core(PROCESS.replace("process", "elsewhere"))
    with pytest.raises(InvalidArgumentError, match="must be 'process' or 'in-process', not 'elsewhere'"):
        serving.load("m")
