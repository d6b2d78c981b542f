"""The Python interpreter that runs a model's processes: the server's, or one of the model's or the operator's own."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.serving.backends.python.process.child_process import Program

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["ENVIRONMENT", "environment_of", "program_for"]

ENVIRONMENT: Final = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_STUB: Final = Path(__file__).with_name("stub.py")


def environment_of(config: "ModelConfig") -> str:
    """What the model's ``EXECUTION_ENV_PATH`` names; empty for the server's own interpreter."""
    # Asking a protobuf map for a key that it has not would add it.
    return config.parameters[ENVIRONMENT].string_value if ENVIRONMENT in config.parameters else ""


def program_for(config: "ModelConfig", model_directory: Path, environments: Sequence[Path] = ()) -> Program:
    """The program that runs an instance: the server's interpreter, or that of ``EXECUTION_ENV_PATH``.

    Raises:
        InvalidArgumentError: there is no interpreter, or it lies neither in the model nor in ``environments``.
        UnsupportedError: the environment is an archive.
    """
    environment = dict(os.environ)
    interpreter = sys.executable
    if named := environment_of(config):
        interpreter = str(_interpreter(named, config.name, model_directory, environments))
        # What the server was started with is for the server's interpreter.
        for name in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):
            environment.pop(name, None)
        environment["PATH"] = os.pathsep.join([str(Path(interpreter).parent), environment.get("PATH", os.defpath)])
    if not interpreter:
        raise InvalidArgumentError(
            f"model '{config.name}' is to run in a process of its own, but this program does not know its Python "
            f"interpreter: name one with the parameter {ENVIRONMENT}"
        )
    return Program([interpreter, "-P", "-u", str(_STUB)], environment)


def _interpreter(named: str, model_name: str, model_directory: Path, environments: Sequence[Path]) -> Path:
    """The interpreter at the path ``named``, or that of the environment in the directory ``named``."""
    given = Path(named.replace(_MODEL_DIRECTORY, str(model_directory)))
    found = given / "bin" / "python" if given.is_dir() else given
    # Before anything is said about the file: whether it exists is nothing that a model should learn.
    if not (_lies_in_model(found, model_directory) or any(_lies_below(found, place) for place in environments)):
        raise InvalidArgumentError(
            f"{ENVIRONMENT} of model '{model_name}' is '{named}', which is neither inside the model "
            f"({_MODEL_DIRECTORY}/...) nor in a directory of --backend-config=python,environments"
        )
    if given.name.endswith((".tar.gz", ".tgz", ".tar", ".zip")):
        raise UnsupportedError(
            f"{ENVIRONMENT} of model '{model_name}' is an archive ({given.name}): unpack it and name its directory"
        )
    if not os.access(found, os.X_OK) or found.is_dir():
        raise InvalidArgumentError(
            f"{ENVIRONMENT} of model '{model_name}' is '{named}', where no interpreter can be run; name a virtual "
            "environment's directory, or a Python program"
        )
    return found


def _lies_below(interpreter: Path, place: Path) -> bool:
    """Whether ``interpreter`` is ``place`` or below it, and no directory on the way is a link to elsewhere.

    The program itself may be a link, as in every virtual environment: the operator's own lead to the system's Python.
    """
    path = Path(os.path.normpath(interpreter))
    if path == Path(os.path.normpath(place)):
        return True
    return path.is_relative_to(os.path.normpath(place)) and _real(path.parent).is_relative_to(_real(place))


def _lies_in_model(interpreter: Path, model: Path) -> bool:
    """As :func:`_lies_below`; the program may be a link to the server's interpreter, or to a file of the model."""
    if not _lies_below(interpreter, model):
        return False
    target = _real(interpreter)
    return target.is_relative_to(_real(model)) or (bool(sys.executable) and target == _real(Path(sys.executable)))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
