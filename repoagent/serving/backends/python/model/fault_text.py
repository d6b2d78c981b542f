"""What a client reads of an exception in a model's code: its text, and the lines of the model that it came through."""

import traceback
from pathlib import Path
from typing import Final

from repoagent.public_text import writable
from repoagent.serving.backends.python.model.context import ModelContext

__all__ = ["fault_text"]

_LONGEST: Final = 10
"""Lines of the model that are shown; the innermost come first."""


def fault_text(error: BaseException, context: ModelContext, hint: str = "") -> str:
    """``NameError: name 'x' is not defined`` and, as in Triton, ``At:`` with file, line and function.

    Files are named below the model's directory. Frames of other files are left out: their paths are the server's.
    """
    root = context.model_dir.parent.resolve()
    lines = []
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(root):
            lines.append(f"  {path.relative_to(root)}({frame.lineno}): {frame.name}\n")
    at = "\n\nAt:\n" + "".join(lines[:_LONGEST]) if lines else ""
    if isinstance(error, ModuleNotFoundError) and _lies_beside(error.name or "", context.model_dir):
        hint += " (in process, only import statements of the model's own files find it: set EXECUTION to 'process')"
    return writable(f"{type(error).__name__}: {_text(error)}{hint}{at}")


def _lies_beside(module: str, version: Path) -> bool:
    """Whether it is a file or a directory of the model, which code in a process of its own always finds."""
    root = module.partition(".")[0]
    return bool(root) and any(
        (place / name).exists() for place in (version, version.parent) for name in (root, f"{root}.py")
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # Also that is the model's code, or a number with too many digits.
        return f"({type(failure).__name__} where its text was made)"
