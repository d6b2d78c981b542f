"""A request whose whole body is the one input of the model (``Inference-Header-Content-Length: 0``)."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from repoagent.serving.requests.request import Asked
from repoagent.serving.requests.tensor import Array, Tensor
from repoagent_server.codec.binary import Buffer, bytes_array, view
from repoagent_server.codec.datatypes import BY_NAME, JsonKind, TypeInfo
from repoagent_server.codec.infer_request import OutputEncoding
from repoagent_server.codec.request_label import RequestLabel

__all__ = ["read_raw"]


def read_raw(body: Buffer, config: Mapping[str, Any], model: str, version: str) -> tuple[Asked, OutputEncoding]:
    """Make the request; what the body leaves open (name, type, shape) is deduced from the model's ``config``.

    Raises:
        InvalidArgumentError: the model has several inputs, or its input's shape cannot be deduced.
    """
    label = RequestLabel(model)
    inputs = config["input"]
    if len(inputs) != 1:
        raise label.error(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(inputs)} inputs in '{model}' "
            "model configuration"
        )
    name = inputs[0]["name"]
    info = _type_named(inputs[0]["data_type"])
    dims = [int(size) for size in inputs[0]["dims"]]
    batch = [1] if int(config["max_batch_size"]) > 0 else []
    tensor = Tensor(info.data_type, _deduce(name, info, dims, batch, body, label))
    return Asked(model, {name: tensor}, version), OutputEncoding(default_binary=True)


def _type_named(config_name: str) -> TypeInfo:
    name = config_name.removeprefix("TYPE_")
    return BY_NAME["BYTES" if name == "STRING" else name]


def _deduce(name: str, info: TypeInfo, dims: list[int], batch: list[int], body: Buffer, label: RequestLabel) -> Array:
    open_axes = dims.count(-1)
    if open_axes > 1:
        raise label.error(
            f"The shape of the raw input '{name}' can not be deduced because there are more than one variable-sized "
            "dimension"
        )
    if info.json is JsonKind.STRING:
        if open_axes or prod(dims) != 1:
            raise label.error(f"For BYTE datatype raw input '{name}', the model must have input shape [1]")
        return bytes_array([bytes(body)]).reshape(batch + dims)
    size = len(body)
    left = size // (info.size * prod(length for length in dims if length != -1))
    shape = batch + [left if length == -1 else length for length in dims]
    expected = prod(shape) * info.size
    if expected != size:
        raise label.wrong_size("raw_input", expected, size)
    return view(info, body, 0, shape) if size else np.empty(shape, info.dtype)
