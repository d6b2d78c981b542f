"""GraphWriter: nodes and weights of a graph; large weights go to a file beside it as they come."""

from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from repoagent.errors import InvalidArgumentError

_INLINE_BYTES: Final = 1024
_ALIGNMENT: Final = 4096
MICROSOFT: Final = "com.microsoft"


class GraphWriter:
    """Collects a graph. Use as a context manager: the weights file is open inside."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data_name = f"{path.name}.data"
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._domains = {""}

    def __enter__(self) -> "GraphWriter":
        self._stream = (self._path.parent / self._data_name).open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def input(self, name: str, dtype: Any, shape: list[str | int]) -> str:
        """Declare an input of the graph."""
        self._inputs.append(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
        )
        return name

    def output(self, name: str, dtype: Any, shape: list[str | int]) -> None:
        """Declare an output of the graph."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def node(self, op: str, inputs: list[str], name: str, *, domain: str = "", **attributes: Any) -> str:
        """A node with one output, called ``name``; returns that name."""
        return self.nodes(op, inputs, [name], domain=domain, **attributes)[0]

    def nodes(
        self, op: str, inputs: list[str], outputs: list[str], *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """A node with several outputs; returns their names."""
        self._domains.add(domain)
        label = next(name for name in outputs if name)
        self._nodes.append(helper.make_node(op, inputs, outputs, name=f"{label}/{op}", domain=domain, **attributes))
        return outputs

    def weight(self, name: str, array: npt.NDArray[Any]) -> str:
        """A constant; written once per name, to the data file unless it is small."""
        if name in self._initializers:
            return name
        array = np.asarray(array, order="C")
        if array.nbytes < _INLINE_BYTES:
            self._initializers[name] = numpy_helper.from_array(array, name)
            return name
        self._stream.write(b"\0" * (-self._stream.tell() % _ALIGNMENT))
        tensor = TensorProto(
            name=name,
            dims=array.shape,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        place = {"location": self._data_name, "offset": self._stream.tell(), "length": array.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._stream.write(array.data)
        self._initializers[name] = tensor
        return name

    def save(self, opset: int) -> None:
        """Write the graph's file."""
        versions = [helper.make_opsetid("", opset)]
        if MICROSOFT in self._domains:
            versions.append(helper.make_opsetid(MICROSOFT, 1))
        graph = helper.make_graph(
            self._nodes, "decoder", self._inputs, self._outputs, initializer=list(self._initializers.values())
        )
        model = helper.make_model(graph, opset_imports=versions, ir_version=min(onnx.IR_VERSION, 11))
        self._path.write_bytes(model.SerializeToString())


def finite(array: npt.ArrayLike, dtype: Any, name: str) -> npt.NDArray[Any]:
    """The values in ``dtype``; raises ``InvalidArgumentError`` when one is no finite number then."""
    with np.errstate(over="ignore"):
        cast = np.asarray(array, dtype)
    if not np.isfinite(cast).all():
        raise InvalidArgumentError(f"{name} has values that are not finite as {np.dtype(dtype)}")
    return cast
