"""The classification extension: instead of an output its largest values, where they are, and what that is called."""

from typing import Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import OutputClasses
from repoagent.serving.requests.tensor import Array, DataType, Tensor

__all__ = ["classify"]

_RANKED: Final = frozenset(
    {
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
        DataType.UINT64,
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.INT64,
        DataType.FP32,
        DataType.FP64,
    }
)


def classify(name: str, tensor: Tensor, count: int, classes: OutputClasses) -> Tensor:
    """The ``count`` largest values of output ``name`` (all, if it has fewer), largest first, as text.

    Args:
        name: The output.
        tensor: Its values. Of a batch each item is ranked by itself; the other dimensions count as one.
        count: How many, at least 1.
        classes: Whether the first dimension is a batch, and the labels.

    Returns:
        BYTES of shape [batch, n] or [n], each element ``VALUE:INDEX`` or ``VALUE:INDEX:LABEL``.

    Raises:
        InvalidArgumentError: the type has no order (Triton's text).
    """
    if tensor.data_type not in _RANKED:
        raise InvalidArgumentError(
            f"class result not available for output due to unsupported type '{tensor.data_type.name}'"
        )
    array = tensor.array
    batch = array.shape[:1] if classes.batching and array.ndim and array.shape[0] else ()
    rows = array.reshape(*(batch or (1,)), -1)
    places = _descending(rows)[:, :count]
    texts = np.empty(places.size, np.object_)
    values = np.take_along_axis(rows, places, 1)
    texts[:] = [
        _text(value, place, classes.label(name, place))
        for value, place in zip(values.ravel().tolist(), places.ravel().tolist(), strict=True)
    ]
    return Tensor(DataType.BYTES, texts.reshape(*batch, places.shape[1]))


def _descending(rows: Array) -> Array:
    """The order of each row: largest first, of equal ones the first, NaN last."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), -np.inf, rows)
    # Sorting from the other end keeps equal values in their order. (Negating would not do: unsigned types, INT64's
    # smallest value.)
    last = rows.shape[1] - 1
    order: Array = last - np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1]
    return order


def _text(value: int | float, place: int, label: bytes) -> bytes:
    number = b"%d" % value if isinstance(value, int) else b"%f" % value
    return b"%b:%d:%b" % (number, place, label) if label else b"%b:%d" % (number, place)
