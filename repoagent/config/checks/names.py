"""Rules on the name of the model, its backend and platform, and on sizes and policies of the model as a whole."""

from collections.abc import Iterator

from repoagent.config.backends import BACKEND_OF_PLATFORM, ENSEMBLE, backend_of
from repoagent.config.model_config_pb2 import ModelConfig
from repoagent.config.suggestions import did_you_mean

__all__ = ["problems"]


def problems(config: ModelConfig, *, model_name: str | None, complete: bool) -> Iterator[str]:
    """Problems with names, ``max_batch_size`` and the presence of a version policy."""
    name = config.name or model_name or ""
    if not config.name and complete:
        yield "model configuration must specify 'name'"
    if config.name and model_name and config.name != model_name:
        yield (
            f"unexpected directory name '{model_name}' for model '{config.name}', directory name must equal model name"
        )
    yield from _backend_problems(config, name, complete)
    if config.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {name}"
    if complete and not config.HasField("version_policy"):
        yield f"must specify 'version policy' for {name}"


def _backend_problems(config: ModelConfig, name: str, complete: bool) -> Iterator[str]:
    platform, backend = config.platform, config.backend
    if platform == ENSEMBLE:
        if backend:
            yield f"Ensemble model '{name}' must have platform type '{platform}' and empty backend type"
    elif not backend:
        yield from _missing_backend(config, name, complete)
    elif platform and backend in BACKEND_OF_PLATFORM.values() and BACKEND_OF_PLATFORM.get(platform) != backend:
        yield f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}"


def _missing_backend(config: ModelConfig, name: str, complete: bool) -> Iterator[str]:
    if config.platform and config.platform not in BACKEND_OF_PLATFORM:
        meant = did_you_mean(config.platform, BACKEND_OF_PLATFORM)
        yield f"unexpected platform type '{config.platform}' for {name}{meant}"
    elif complete and not config.HasField("ensemble_scheduling") and not backend_of(config):
        yield (
            f"Invalid model name: Could not determine backend for model '{name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
