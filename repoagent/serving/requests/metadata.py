"""The metadata of a model as the KServe v2 protocol and Triton give it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from repoagent.serving.requests.tensor import DataType

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["model_metadata"]


def _tensor(item: Any, batching: bool) -> dict[str, Any]:
    shape = list(item.dims)
    if batching and not item.is_shape_tensor:
        shape.insert(0, -1)
    return {"name": item.name, "datatype": DataType(item.data_type).name, "shape": shape}


def model_metadata(name: str, config: "ModelConfig", versions: Iterable[int]) -> dict[str, Any]:
    """The body of ``GET v2/models/NAME``: ``versions`` are those that are ready."""
    batching = config.max_batch_size > 0
    return {
        "name": name,
        "versions": [str(version) for version in sorted(versions)],
        "platform": config.platform or config.backend,
        "inputs": [_tensor(item, batching) for item in config.input],
        "outputs": [_tensor(item, batching) for item in config.output],
    }
