"""ONNX Runtime as a converter's tool: its version, public error texts, the processor, what a configuration names."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = [
    "has_vnni",
    "processor",
    "public_error",
    "refuse_other_backend",
    "runtime_version",
    "serve_with_onnx_runtime",
]


BACKEND: Final = "onnxruntime"
PLATFORM: Final = "onnxruntime_onnx"
DEFAULT_FILE_NAME: Final = "model.onnx"


def refuse_other_backend(config: "ModelConfig | None") -> None:
    """Raise where the configuration names another backend: then the file is something else, or meant for it.

    Raises:
        InvalidArgumentError: it does.
    """
    if config is None:
        return
    if config.backend not in ("", BACKEND) or config.platform not in ("", PLATFORM):
        other = config.backend or config.platform
        raise InvalidArgumentError(f"converts models of the backend '{BACKEND}', but the configuration has '{other}'")


def serve_with_onnx_runtime(config: "ModelConfig", output: str) -> None:
    """Name the backend and the file, where they are not what is taken anyway."""
    if output != (config.default_model_filename or DEFAULT_FILE_NAME):
        config.default_model_filename = output
    if not (config.backend or config.platform):
        config.backend = BACKEND


_CPU_INFO: Final = Path("/proc/cpuinfo")


def processor() -> str:
    """The same text on machines between which results may be exchanged."""
    digest = hashlib.sha256(" ".join(sorted(_features())).encode()).hexdigest()
    return f"{platform.machine()} with the features {digest[:16]}"


def has_vnni() -> bool:
    """Whether products of eight bits are added in 32: else pairs of them are added in 16, and may saturate."""
    return any("vnni" in feature for feature in _features())


def _features() -> set[str]:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(value.split())
    return set()


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
