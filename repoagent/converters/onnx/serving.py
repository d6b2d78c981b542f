"""What the configuration of a model that ONNX Runtime executes must name."""

from typing import TYPE_CHECKING, Final

from repoagent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["refuse_other_backend", "serve_with_onnx_runtime"]

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
