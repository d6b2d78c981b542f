"""ONNX Runtime as a tool: its version, without importing it, and texts of its errors without private paths."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["public_error", "runtime_version"]


def runtime_version() -> str:
    """The version of the installed ONNX Runtime."""
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    import onnxruntime

    return str(onnxruntime.__version__)


def public_error(error: Exception, *directories: Path) -> str:
    """The text of ``error`` without the private directories that it may name."""
    text = " ".join(str(error).split())
    for directory in directories:
        text = text.replace(f"{directory}/", "")
    return text.removeprefix("[ONNXRuntimeError] : ")
