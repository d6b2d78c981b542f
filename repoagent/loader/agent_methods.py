"""What an agent's class gets wrong about the methods that are called: seen before a model depends on it."""

import inspect
import logging
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from types import FunctionType, MappingProxyType
from typing import Any, Final

from repoagent.api.agent import Agent

__all__ = ["fault_in_methods", "warn_of_misspelt_methods"]

logger = logging.getLogger(__name__)

_CALLED: Final = MappingProxyType(
    {name: member for name, member in vars(Agent).items() if callable(member) and not name.startswith("_")}
)
"""The methods that the loader calls."""
_CLOSE: Final = 0.87
"""``finalise`` and ``load_completed`` are as close as that, ``upload`` and ``reload`` are not."""


def fault_in_methods(kind: type[Agent]) -> str:
    """Why no model could be loaded through ``kind``; empty if its methods can be called.

    An agent whose one method is misspelt would accept every model.
    """
    if all(getattr(kind, name) is base for name, base in _CALLED.items()):
        near = "".join(f"; did you mean '{name}' by '{wrong}'?" for wrong, name in _misspelt(kind))
        return f"{kind.__name__} lacks the methods that are called, at least one of: {', '.join(_CALLED)}{near}"
    for name, base in _CALLED.items():
        member = inspect.getattr_static(kind, name)
        if not callable(getattr(kind, name)):
            return f"{kind.__name__}.{name} is not a method but an object of type {type(member).__name__}"
        if isinstance(member, FunctionType) and not _takes(member, len(inspect.signature(base).parameters)):
            wanted = ", ".join(inspect.signature(base).parameters)
            return f"{kind.__name__}.{name} cannot be called as the loader does: write def {name}({wanted})"
    return ""


def warn_of_misspelt_methods(kind: type[Agent], where: str) -> None:
    """Log the methods of ``kind`` whose names are almost those of methods that are called."""
    for wrong, name in _misspelt(kind):
        logger.warning("%s: %s.%s is never called; did you mean '%s'?", where, kind.__name__, wrong, name)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _misspelt(kind: type[Agent]) -> Iterator[tuple[str, str]]:
    for wrong, member in vars(kind).items():
        if isinstance(member, FunctionType) and not wrong.startswith("_") and not hasattr(Agent, wrong):
            letters = [name for name in _CALLED if sorted(name) == sorted(wrong)]
            for name in (letters or get_close_matches(wrong, _CALLED, n=1, cutoff=_CLOSE))[:1]:
                yield wrong, name
