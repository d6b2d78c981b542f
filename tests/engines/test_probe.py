"""The probe over packages that behave as TensorRT and CUDA do in every state that could be seen without a GPU."""

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from repoagent.engines.flavours import CHOICE
from repoagent.engines.probe import Findings, Gpu, probe

pytestmark = pytest.mark.slow

TENSORRT = """
__version__ = "11.1.0.106"
class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)
class ICudaEngine:
    def get_aliased_input_tensor(self, name):
        pass
class Runtime:
    def __init__(self, logger):
        {runtime}
"""
CUDA = """
from enum import IntEnum
class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorInsufficientDriver = 35
class Properties:
    name = b"NVIDIA Test"
    major, minor, totalGlobalMem = 8, 9, 1 << 34
def cudaGetDeviceCount():
    return {count}
def cudaGetDeviceProperties(index):
    return cudaError_t.cudaSuccess, Properties()
"""
ONE_GPU = "cudaError_t.cudaSuccess, 1"


class Machine:
    """Packages that stand before the installed ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def tensorrt(self, runtime: str = "pass", *, code: str = "", name: str = "tensorrt") -> None:
        self._write(f"{name}/__init__.py", code or TENSORRT.format(runtime=textwrap.indent(runtime, " " * 8).strip()))

    def cuda(self, count: str) -> None:
        self._write("cuda/__init__.py", "")
        self._write("cuda/bindings/__init__.py", "")
        self._write("cuda/bindings/runtime.py", CUDA.format(count=count))

    def _write(self, name: str, code: str) -> None:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv(CHOICE, "tensorrt")
    return Machine(tmp_path)


def test_with_nothing_installed_no_child_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent.engines.probe.installed", list)
    monkeypatch.setattr(subprocess, "Popen", None)
    found = probe()
    assert not found.usable
    assert "installed; from a checkout: pip install" in found.problem


def test_a_usable_machine_lists_its_gpus(machine: Machine) -> None:
    machine.tensorrt()
    machine.cuda(ONE_GPU)
    gpu = Gpu(0, "NVIDIA Test", (8, 9), 1 << 34)
    assert probe() == Findings("tensorrt", "11.1.0.106", (gpu,))
    assert probe().usable


def test_a_missing_library_is_named(machine: Machine) -> None:
    machine.tensorrt(code="raise ImportError('libnvinfer.so.11: cannot open shared object file')")
    found = probe()
    assert found.problem == (
        "TensorRT is installed, but cannot be imported: libnvinfer.so.11: cannot open shared object file"
    )


def test_without_a_driver_no_runtime_is_made(machine: Machine) -> None:
    machine.tensorrt("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    machine.cuda("cudaError_t.cudaErrorInsufficientDriver, None")
    found = probe()
    assert "CUDA finds no usable driver (cudaErrorInsufficientDriver)" in found.problem
    assert (found.flavour, found.version) == ("tensorrt", "11.1.0.106")


def test_a_machine_without_gpus(machine: Machine) -> None:
    machine.tensorrt()
    machine.cuda("cudaError_t.cudaSuccess, 0")
    assert "CUDA lists no GPU" in probe().problem


def test_a_version_without_what_engines_need_is_too_old(machine: Machine) -> None:
    machine.tensorrt(code='__version__ = "10.14.1.48"\nclass ICudaEngine: pass')
    machine.cuda(ONE_GPU)
    assert probe().problem.startswith("TensorRT 10.14.1.48 is too old: TensorRT 10.15 or newer is needed")


def test_without_cuda_bindings_the_package_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.tensorrt()
    machine.cuda(ONE_GPU)
    (tmp_path / "cuda/bindings/runtime.py").write_text("raise ImportError('libcudart is missing')")
    assert probe().problem.startswith("cuda-bindings cannot be imported, with which GPUs are reached: libcudart")


@pytest.mark.parametrize(
    ("runtime", "problem"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV while making a runtime of"),
        ("import os; os._exit(3)", "ended with status 3 while making a runtime of TensorRT"),
        ("raise TypeError('factory function returned nullptr')", "cannot make a runtime: factory function returned"),
        ("logger.log(ILogger.ERROR, 'error: 35')", "made a runtime, but logged: error: 35"),
    ],
)
def test_a_library_that_fails_or_kills_leaves_this_process_alone(machine: Machine, runtime: str, problem: str) -> None:
    machine.tensorrt(runtime)
    machine.cuda(ONE_GPU)
    assert problem in probe().problem


def test_a_warning_of_the_library_is_not_a_failure(machine: Machine) -> None:
    machine.tensorrt("logger.log(ILogger.WARNING, 'lazy loading is off')")
    machine.cuda(ONE_GPU)
    assert probe().usable


def test_a_library_that_kills_while_it_is_imported(machine: Machine) -> None:
    machine.tensorrt(code="import os, signal; os.kill(os.getpid(), signal.SIGABRT)")
    assert probe().problem == "the probe for TensorRT was ended by SIGABRT while importing TensorRT"


def test_a_library_that_hangs_is_killed(machine: Machine) -> None:
    machine.tensorrt(code="import threading; threading.Event().wait()")
    assert probe(seconds=3).problem == "the probe for TensorRT hung while importing TensorRT; it was killed"


def test_what_the_library_prints_is_not_taken_for_the_answer(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    machine.tensorrt("print('found {}', flush=True)")
    machine.cuda(ONE_GPU)
    assert probe().usable
    assert capfd.readouterr() == ("", "")


def test_the_child_inherits_no_secret(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "AGE-SECRET-KEY-1")
    machine.tensorrt(code="import os; raise ImportError(' '.join(os.environ))")
    assert "MODEL_KEY" not in probe().problem
    assert "PATH" in probe().problem


def test_files_in_the_working_directory_are_not_imported(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "json.py").write_text("import os; os._exit(9)")
    monkeypatch.chdir(trap)
    machine.tensorrt()
    machine.cuda(ONE_GPU)
    assert probe().usable


def test_a_process_that_cannot_start_another_one_goes_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.tensorrt()
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert "the probe for TensorRT could not run: FileNotFoundError" in probe().problem
    monkeypatch.setattr(sys, "executable", "")
    assert "needs a Python interpreter" in probe().problem


def _pipes() -> set[str]:
    """The pipes that this process has open. Threads of other tests open and close other descriptors."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has just been closed
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return {link for link in found if "pipe:" in link}


def test_no_descriptor_and_no_process_is_left(machine: Machine) -> None:
    machine.tensorrt()
    machine.cuda(ONE_GPU)
    before = _pipes()
    probe()
    assert _pipes() <= before
