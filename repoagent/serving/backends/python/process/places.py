"""Whether an interpreter lies where one may come from: in the model, or where the operator keeps them."""

import os
import sys
from pathlib import Path

__all__ = ["lies_below", "lies_in_model"]


def lies_below(interpreter: Path, place: Path) -> bool:
    """Whether ``interpreter`` is ``place`` or below it, and no directory on the way is a link to elsewhere.

    The program itself may be a link, as in every virtual environment: the operator's own lead to the system's Python.
    """
    path = Path(os.path.normpath(interpreter))
    if path == Path(os.path.normpath(place)):
        return True
    return path.is_relative_to(os.path.normpath(place)) and _real(path.parent).is_relative_to(_real(place))


def lies_in_model(interpreter: Path, model: Path) -> bool:
    """As :func:`lies_below`; the program may be a link to the server's interpreter, or to a file of the model."""
    if not lies_below(interpreter, model):
        return False
    target = _real(interpreter)
    return target.is_relative_to(_real(model)) or (bool(sys.executable) and target == _real(Path(sys.executable)))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
