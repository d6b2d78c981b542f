"""Wrapping functions of the storage by name, so that its code knows nothing of tests."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from repoagent.testing.fault_points import STORAGE_POINTS
from repoagent.testing.faults import FaultInjection

__all__ = ["storage_points"]


@contextmanager
def storage_points(faults: FaultInjection) -> Iterator[None]:
    """For a block, ``faults`` hears of each call of :data:`~repoagent.testing.fault_points.STORAGE_POINTS`.

    The wrapping holds for the whole process: one such block at a time.
    """
    with ExitStack() as stack:
        for name, target in STORAGE_POINTS.items():
            for owner, attribute, function in _places(target):
                stack.enter_context(patch.object(owner, attribute, _wrapped(function, f"storage {name}", faults)))
        yield


def _places(target: str) -> Iterator[tuple[object, str, Callable[..., Any]]]:
    """Everywhere that the function is found: its class, or each module that has imported it."""
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    owner, _, attribute = path.rpartition(".")
    if owner:
        kind = getattr(module, owner)
        yield kind, attribute, getattr(kind, attribute)
        return
    function: Callable[..., Any] = getattr(module, attribute)
    users: list[object] = [module for name, module in list(sys.modules.items()) if name.startswith("repoagent.")]
    for user in users:
        if vars(user).get(attribute) is function:
            yield user, attribute, function


def _wrapped(function: Callable[..., Any], name: str, faults: FaultInjection) -> Callable[..., Any]:
    @wraps(function, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        faults.reach(name)
        result = function(*args, **kwargs)
        faults.reach(name, after=True)
        return result

    return wrapper
