"""What ``--backend-config=python,...`` sets, and whether a model runs in the server's process or in its own."""

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.errors import InvalidArgumentError
from repoagent.serving.backends.python.process.interpreter import ENVIRONMENT, environment_of
from repoagent.serving.backends.registry import warn_of_unknown

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["EXECUTION", "PythonSettings", "runs_in_process_of_its_own"]

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
    """What the server's settings say for all Python models."""

    own_process: bool = False
    """Whether a model that does not say gets processes of its own."""
    forced: bool = False
    """Whether a model may not say otherwise."""
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
        """Read the part of ``backend_config`` that is the Python backend's.

        Raises:
            InvalidArgumentError: a value makes no sense.
        """
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


def runs_in_process_of_its_own(config: "ModelConfig", settings: PythonSettings) -> bool:
    """What ``EXECUTION`` says; a model with an interpreter of its own can run nowhere else.

    Raises:
        InvalidArgumentError: it says something else, or the model's name is not one for processes.
    """
    own = _asks_for_process(config, settings)
    if own and (found := _REFUSED.search(config.name)):
        raise InvalidArgumentError(
            f"Invalid stub name: contains invalid characters: model '{config.name}' runs in processes of its own, so "
            f"that its name cannot have the character {found[0]!r}: rename it"
        )
    return own


def _asks_for_process(config: "ModelConfig", settings: PythonSettings) -> bool:
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
