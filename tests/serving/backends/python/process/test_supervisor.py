"""The processes of a model start together, and none is left that no instance was made of."""

import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from repoagent.config import read_text
from repoagent.errors import InternalError
from repoagent.serving.backends.python.backend import PythonBackend
from repoagent.serving.backends.python.process.child_process import ChildProcess, Program
from repoagent.serving.instances.backend import InstanceSpec


@pytest.fixture
def forked() -> None:
    """Processes are started here, not forked."""


CONFIG = """
name: "m" backend: "python" instance_group { name: "m_0" count: 3 kind: KIND_CPU }
parameters { key: "EXECUTION" value { string_value: "process" } }
"""


@pytest.mark.slow
def test_all_of_them_run_before_the_first_instance_is_made(write_model: Any, tmp_path: Path, files_of: Any) -> None:
    write_model("class TritonPythonModel:\n    def execute(self, requests):\n        return []\n")
    backend = PythonBackend({})
    backend.bind(object())  # type: ignore[arg-type]
    model = backend.load(read_text(CONFIG), files_of(tmp_path / "m"), 1)
    children = dict(model._started)
    assert len({child.pid for child in children.values()}) == 3
    instance: Any = model.create_instance(InstanceSpec("m_0_1", "CPU"))
    assert instance.supervisor.child is children["m_0_1"]
    model.close()
    assert [child.exited.is_set() for child in children.values()] == [True, False, True]
    instance.close()
    assert children["m_0_1"].exited.is_set()


def test_none_is_left_if_one_cannot_be_started(write_model: Any, tmp_path: Path, files_of: Any) -> None:
    write_model("")
    environment = tmp_path / "python"
    environment.write_text("this is no program")
    environment.chmod(0o755)
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    backend = PythonBackend({"environments": str(tmp_path)})
    backend.bind(object())  # type: ignore[arg-type]
    with pytest.raises(InternalError, match=r"the process '.*/python' of model instance 'm_0_0' cannot be started"):
        backend.load(read_text(CONFIG + parameter), files_of(tmp_path / "m"), 1)
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("repoagent-m_0")]:
        thread.join(60)  # It ends with the process, which has ended.
        assert not thread.is_alive()


def test_whatever_keeps_a_process_from_starting_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(_: ChildProcess) -> None:
        raise MemoryError("no room for a process")

    monkeypatch.setattr(ChildProcess, "_spawn", spawn)
    raised: list[str] = []

    def start() -> None:
        try:
            ChildProcess(Program(("python",), {}), "m", "m_0")
        except MemoryError as error:
            raised.append(str(error))

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(10)
    assert raised == ["no room for a process"]


def test_none_is_left_if_its_configuration_cannot_be_handed_over(
    write_model: Any, tmp_path: Path, files_of: Any
) -> None:
    """What is too long for a packet goes through shared memory, of which there may be none."""
    write_model("class TritonPythonModel:\n    def execute(self, requests):\n        return []\n")
    backend = PythonBackend({})
    backend.bind(object())  # type: ignore[arg-type]
    long = f'parameters {{ key: "long" value {{ string_value: "{"x" * (4 << 20)}" }} }}'
    model = backend.load(read_text(CONFIG + long), files_of(tmp_path / "m"), 1)
    child = model._started["m_0_0"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))
    try:
        with pytest.raises(InternalError, match=r"in initialize, it cannot be given .*: \[Errno 27\] File too large"):
            model.create_instance(InstanceSpec("m_0_0", "CPU"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        model.close()
    assert child.exited.is_set()


def test_none_is_left_where_no_thread_can_end_it(
    write_model: Any, tmp_path: Path, files_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(
        "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    )
    backend = PythonBackend({})
    backend.bind(object())  # type: ignore[arg-type]
    start, refused = threading.Thread.start, list[Any]()

    def start_some(thread: threading.Thread) -> None:
        if thread.name.endswith("-end"):
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    backend.auto_complete(read_text(CONFIG), files_of(tmp_path / "m"), 1)
    (ending,) = refused
    assert ending._target.__self__.exited.is_set()
