"""Whether TensorRT is usable here; found out in a child process, because the library may end the process."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Final

from repoagent.engines.flavours import CHOICE, installed, not_installed
from repoagent.errors import RepoAgentError, signal_name
from repoagent.nested_text import read_json
from repoagent.sentinel import mark


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as CUDA lists it."""

    index: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Findings:
    """The answer of the probe: the flavour that can be used, or why none can."""

    flavour: str = ""
    """``tensorrt`` or ``tensorrt_rtx``: the flavour that is installed; empty for none."""
    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    """Why no plan can run here; empty if plans can run."""

    @property
    def usable(self) -> bool:
        """Whether plans can run here."""
        return not self.problem

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Findings":
        """The other way; raises ``ValueError`` for any other text."""
        try:
            fields = read_json(text)
            gpus = tuple(
                Gpu(int(one["index"]), str(one["name"]), tuple(one["capability"]), int(one["memory_bytes"]))
                for one in fields["gpus"]
            )
            return cls(str(fields["flavour"]), str(fields["version"]), gpus, str(fields["problem"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a report of the probe: {error}") from error


_SECONDS: Final = 120.0
_MOST_BYTES: Final = 1 << 20
# What the loader of libraries, CUDA and Python need; secrets of this process are not for a child.
_PASSED: Final = ("HOME", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "TMPDIR", "VIRTUAL_ENV", CHOICE)
_PASSED_BEGINNINGS: Final = ("CUDA_", "NVIDIA_", "PYTHON")


def probe(*, seconds: float = _SECONDS) -> Findings:
    """Find out whether plans can run here. Never raises, and never harms this process.

    Without an installed flavour it costs microseconds; with one, the start of a child, killed after ``seconds``.
    """
    try:
        if not installed():
            return Findings(problem=not_installed())
        return _from_child(seconds)
    except RepoAgentError as error:
        return Findings(problem=error.message)
    except Exception as error:  # No process, no memory, no file descriptor: plans cannot run, and the server goes on.
        return Findings(problem=f"the probe for TensorRT could not run: {type(error).__name__}: {error}")


def _from_child(seconds: float) -> Findings:
    if not sys.executable:
        return Findings(problem="the probe for TensorRT needs a Python interpreter, and sys.executable names none")
    read, write = os.pipe()
    try:
        try:
            child = subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
                [sys.executable, "-P", "-m", "repoagent.engines.probe_child", str(write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(write,),
                env=_environment(),
                start_new_session=True,
            )
        finally:
            os.close(write)
        return _outcome(child, read, seconds)
    finally:
        os.close(read)


def _environment() -> dict[str, str]:
    passed = {
        name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_BEGINNINGS)
    }
    # The same packages as here, also where this process has changed its path.
    passed["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if os.path.isabs(path))
    return passed | mark()


def _outcome(child: "subprocess.Popen[bytes]", read: int, seconds: float) -> Findings:
    try:
        status = child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return Findings(problem=f"the probe for TensorRT hung while {_last_step(_drain(read))}; it was killed")
    lines = _drain(read)
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "found":
            return Findings.from_json(rest)
    how = f"was ended by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
    return Findings(problem=f"the probe for TensorRT {how} while {_last_step(lines)}")


def _drain(read: int) -> list[str]:
    os.set_blocking(read, False)
    try:
        data = os.read(read, _MOST_BYTES)
    except BlockingIOError:  # The child left a process of its own, which holds the other end.
        data = b""
    return data.decode(errors="replace").splitlines()


def _last_step(lines: list[str]) -> str:
    steps = [line.removeprefix("step ") for line in lines if line.startswith("step ")]
    return steps[-1] if steps else "starting"
