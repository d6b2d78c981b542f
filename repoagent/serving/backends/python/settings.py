"""What ``--backend-config=python,...`` sets, and in which process and interpreter a model runs."""

import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.config import ModelConfig
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.serving.backends.python.process.child_process import Program
from repoagent.serving.backends.registry import warn_of_unknown

ENVIRONMENT: Final = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_STUB: Final = Path(__file__).with_name("process") / "stub.py"
EXECUTION: Final = "EXECUTION"
_REFUSED: Final = re.compile(r"""[;|&$`<>()\[\]{}\\"'*?~#!\s]""")
"""In the name of a model with processes: what Triton refuses, and blanks, at which its older versions split names."""
_MODES: Final = {"process": True, "in-process": False}
_FORCED: Final = "process-only"
_GRACE: Final = "stub-timeout-seconds"
_SPIN: Final = "spin-microseconds"
_MOST_SPIN: Final = 10_000
_AHEAD: Final = "requests-ahead"
_MOST_AHEAD: Final = 64
_READY: Final = "is-ready-timeout-seconds"
_PLACES: Final = "environments"


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """What the server's settings state for all Python models."""

    own_process: bool = False
    """Whether a model that does not choose gets processes of its own."""
    forced: bool = False
    """Whether a model may not choose otherwise."""
    grace_seconds: float = 30.0
    """How long the process of an instance may take to end before it is killed."""
    ready_seconds: float = 5.0
    """How long a model's ``is_ready`` may take before the model counts as not ready."""
    spin_microseconds: int = 0
    """How long a process with nothing to do looks for more before it sleeps: a core is busy meanwhile."""
    requests_ahead: int = 16
    """How many requests to a quick model a process is given at once; 1: each by itself."""
    environments: tuple[Path, ...] = ()
    """Where the operator keeps interpreters that models may name, beside those in the models themselves."""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "PythonSettings":
        """Read the Python backend's part of ``backend_config``; ``InvalidArgumentError`` for a senseless value."""
        warn_of_unknown("python", settings, ("execution", _GRACE, _READY, _SPIN, _AHEAD, _PLACES))
        mode = settings.get("execution", "in-process")
        if mode not in (*_MODES, _FORCED):
            raise InvalidArgumentError(
                f"--backend-config=python,execution must be 'process', 'in-process' or '{_FORCED}', not '{mode}'"
            )
        places = tuple(Path(place) for place in settings.get(_PLACES, "").split(os.pathsep) if place)
        if not all(place.is_absolute() for place in places):
            raise InvalidArgumentError(
                f"--backend-config=python,{_PLACES} must be absolute paths separated by '{os.pathsep}', "
                f"not '{settings[_PLACES]}'"
            )
        grace, ready = _seconds(settings, _GRACE, 30.0), _seconds(settings, _READY, 5.0)
        spin = _count(settings, _SPIN, 0, 0, _MOST_SPIN)
        ahead = _count(settings, _AHEAD, 16, 1, _MOST_AHEAD)
        return cls(mode != "in-process", mode == _FORCED, grace, ready, spin, ahead, places)


def _seconds(settings: Mapping[str, str], name: str, default: float) -> float:
    text = settings.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise InvalidArgumentError(f"--backend-config=python,{name} must be a positive number, not '{text}'")
    return seconds


def _count(settings: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = settings.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and least <= int(text) <= most):
        raise InvalidArgumentError(
            f"--backend-config=python,{name} must be a whole number from {least} to {most}, not '{text[:80]}'"
        )
    return int(text)


def runs_in_process_of_its_own(config: ModelConfig, settings: PythonSettings) -> bool:
    """What ``EXECUTION`` states; a model with an interpreter of its own can run nowhere else. Raises
    ``InvalidArgumentError`` for another value, or if the model's name is not one for processes."""
    own = _asks_for_process(config, settings)
    if own and (found := _REFUSED.search(config.name)):
        raise InvalidArgumentError(
            f"Invalid stub name: contains invalid characters: model '{config.name}' runs in processes of its own, so "
            f"that its name cannot have the character {found[0]!r}: rename it"
        )
    return own


def _asks_for_process(config: ModelConfig, settings: PythonSettings) -> bool:
    needs = bool(environment_of(config))
    if EXECUTION not in config.parameters:
        return settings.own_process or needs
    text = config.parameters[EXECUTION].string_value
    if text not in _MODES:
        raise InvalidArgumentError(
            f"parameter '{EXECUTION}' of model '{config.name}' must be 'process' or 'in-process', not '{text}'"
        )
    mode = _MODES[text]
    if settings.forced and not mode:
        raise InvalidArgumentError(
            f"model '{config.name}' asks for '{EXECUTION}' = 'in-process', but this server runs Python models only in "
            f"processes of their own (--backend-config=python,execution={_FORCED})"
        )
    if needs and not mode:
        raise InvalidArgumentError(
            f"model '{config.name}' has an {ENVIRONMENT}, which the server's own process cannot use: leave "
            f"'{EXECUTION}' out, or use 'process'"
        )
    return mode


def environment_of(config: ModelConfig) -> str:
    """What the model's ``EXECUTION_ENV_PATH`` names; empty for the server's own interpreter."""
    # Asking a protobuf map for a key that it has not would add it.
    return config.parameters[ENVIRONMENT].string_value if ENVIRONMENT in config.parameters else ""


def program_for(config: ModelConfig, model_directory: Path, environments: Sequence[Path] = ()) -> Program:
    """The program that runs an instance: the server's interpreter, or that of ``EXECUTION_ENV_PATH``. Raises
    ``InvalidArgumentError`` if it is missing, or outside of the model and ``environments``, and ``UnsupportedError``
    for an archive."""
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
    return Program((interpreter, "-P", "-u", str(_STUB)), environment)


def _interpreter(named: str, model_name: str, model_directory: Path, environments: Sequence[Path]) -> Path:
    """The interpreter at the path ``named``, or that of the environment in the directory ``named``."""
    given = Path(named.replace(_MODEL_DIRECTORY, str(model_directory)))
    found = given / "bin" / "python" if given.is_dir() else given
    # Before an error about the file: whether it exists is nothing that a model should learn.
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
