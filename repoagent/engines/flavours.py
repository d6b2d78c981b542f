"""Which TensorRT is installed. Two libraries have the same interface: TensorRT, and TensorRT for RTX.

Looking imports nothing; importing is :func:`import_tensorrt`, for :mod:`repoagent.engines.bindings` and the probe.
"""

import enum
import importlib
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final

from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.installing import install_hint

CHOICE: Final = "REPOAGENT_TENSORRT"
"""The environment variable that chooses a flavour where both are installed: ``tensorrt`` or ``tensorrt_rtx``."""


class Flavour(enum.StrEnum):
    """The members of the family that build and execute plans, in the order in which they are preferred."""

    TENSORRT = "tensorrt"
    RTX = "tensorrt_rtx"

    @property
    def title(self) -> str:  # type: ignore[override]
        """What people call it."""
        return "TensorRT for RTX" if self is Flavour.RTX else "TensorRT"


# The second name is that of the wheel with the bindings, where the small package with the first name is missing.
_MODULES: Final[Mapping[Flavour, tuple[str, ...]]] = MappingProxyType(
    {flavour: (flavour.value, f"{flavour.value}_bindings") for flavour in Flavour}
)


_VERSION: Final = re.compile(r"""^__version__ = ["']([^"']+)["']""", re.MULTILINE)


def module_name(flavour: Flavour) -> str | None:
    """The module to import for ``flavour``; None if it is not installed. Imports nothing."""
    return next((name for name in _MODULES[flavour] if find_spec(name) is not None), None)


def installed() -> list[Flavour]:
    """The flavours that are installed and allowed, the preferred one first. Imports nothing. Raises
    ``InvalidArgumentError`` if ``REPOAGENT_TENSORRT`` names another one."""
    chosen = os.environ.get(CHOICE, "")
    if chosen and chosen not in set(Flavour):
        raise InvalidArgumentError(f"{CHOICE} must be one of {', '.join(Flavour)}, not '{chosen}'")
    return [flavour for flavour in Flavour if chosen in ("", flavour.value) and module_name(flavour) is not None]


def import_tensorrt() -> tuple[Flavour, ModuleType]:
    """Import the preferred flavour whose libraries can be opened. ``UnsupportedError`` states why there is none, and
    what to install."""
    flavours = installed()
    if not flavours:
        raise UnsupportedError(not_installed())
    failures = []
    for flavour in flavours:
        name = module_name(flavour)
        assert name is not None
        try:
            return flavour, importlib.import_module(name)
        except ImportError as error:  # The bindings are here, a library that they need is not.
            failures.append(f"{flavour.title} is installed, but cannot be imported: {error}")
        except Exception as error:
            failures.append(f"{flavour.title} failed while it was imported: {type(error).__name__}: {error}")
    raise UnsupportedError("; ".join(failures))


def not_installed() -> str:
    """Why there is no TensorRT, and what to do about it, where nothing is installed."""
    hint = install_hint("repoagent-core", "tensorrt-rtx")
    chosen = os.environ.get(CHOICE, "")
    what = (
        f"{Flavour(chosen).title}, which {CHOICE} asks for, is not"
        if chosen
        else "neither TensorRT nor TensorRT for RTX is"
    )
    return f"{what} installed; {hint} (or the extra 'tensorrt')"


def installed_version(flavour: Flavour) -> str:
    """The version of an installed flavour, read from the bindings' own text without an import. Raises
    ``UnsupportedError`` if it is not there."""
    for name in reversed(_MODULES[flavour]):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        found = _VERSION.search(Path(spec.origin).read_text(encoding="utf-8", errors="replace"))
        if found is not None:
            return found[1]
    raise UnsupportedError(f"{flavour.title} is installed, but its package states no version")
