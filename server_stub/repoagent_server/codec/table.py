"""Tables as users of pandas and MLflow send and read them: rows and columns instead of tensors.

The forms of a request are those of MLflow's scoring protocol: ``dataframe_split``, ``dataframe_records``, ``instances``
and ``inputs``; the answer is ``{"predictions": [...]}``.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from math import nan
from typing import Any, Final, cast

import numpy as np

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.request import Asked, InferResponse, ParameterValue
from repoagent.serving.requests.tensor import Tensor
from repoagent_server.codec.binary import BY_NAME, BY_TYPE, Buffer, JsonKind, RequestLabel, TypeInfo
from repoagent_server.codec.fields import check_parameters, parameter_value
from repoagent_server.codec.infer_response import json_values
from repoagent_server.codec.json_data import array_of_values
from repoagent_server.codec.json_text import dumps, loads, too_deep
from repoagent_server.codec.long_json import LONG_JSON

MAX_TABLE: Final = LONG_JSON - 1
"""Bytes of a table. What is longer is read in pieces elsewhere, which do not show where a row ends; in one go, a
million empty lists would keep the interpreter from others for a second."""

_FEW: Final = 8
_SHOWN: Final = 64
"""Names in an error, and characters of each."""

_Columns = dict[str, list[Any]]


def read_table(
    body: Buffer,
    metadata: Mapping[str, Any],
    model: str,
    version: str,
    max_input_size: int,
    limits: Limits = DEFAULT_LIMITS,
) -> Asked:
    """Parse the table in ``body`` for the model that ``metadata`` describes.

    A column becomes the input of its name, a shape of ``[-1, 1]`` or ``[-1]``. Where the model has one input and no
    column is called so, all columns are its matrix, in the order in which they come. ``instances`` and ``inputs``
    without names are the only input. In numbers null is NaN, and a boolean is 0 or 1.

    Args:
        body: JSON text.
        metadata: The model's metadata as the protocol gives them.
        model: Its name.
        version: The version wanted, or "".
        max_input_size: How many bytes the tensors may have together.
        limits: How many members and elements the JSON may have.

    Raises:
        InvalidArgumentError: it cannot be parsed, is not a table, is too large, or does not fit the model.
    """
    if len(body) > MAX_TABLE:
        raise InvalidArgumentError(
            f"the table has {len(body)} bytes, more than {MAX_TABLE}; send fewer rows, or tensors to 'infer'"
        )
    try:
        document = loads(body)
    except InternalError as error:
        raise InvalidArgumentError(error.message) from None
    form, table = _form(document)
    given = document.get("params") or {}
    if type(given) is not dict:
        raise InvalidArgumentError("'params' of the table is not an object")
    check_parameters(len(given), limits)
    inputs = {item["name"]: item for item in metadata["inputs"]}
    tensors = _Tensors(RequestLabel(model, limits=limits), max_input_size, limits.json_depth)
    for name, values in _placed(_READ[form](table), inputs).items():
        tensors.add(name, BY_NAME[inputs[name]["datatype"]], len(inputs[name]["shape"]), values)
    parameters: dict[str, ParameterValue] = {name: parameter_value(name, value) for name, value in given.items()}
    return Asked(model, tensors.made, version, parameters=parameters)


def _form(document: object) -> tuple[str, Any]:
    """The name of the only table, and the table."""
    found = [name for name in _READ if name in document] if type(document) is dict else []
    if type(document) is not dict or len(found) != 1:
        raise InvalidArgumentError(f"a table is an object with one of {_listed(_READ)}")
    if unknown := document.keys() - {found[0], "params"}:
        raise InvalidArgumentError(f"a table has no member {_listed(sorted(unknown))}")
    return found[0], document[found[0]]


def _split(table: Any) -> _Columns:
    columns, rows = (table.get("columns"), table.get("data")) if type(table) is dict else (None, None)
    if type(columns) is not list or type(rows) is not list:
        raise InvalidArgumentError("'dataframe_split' is an object with the lists 'columns' and 'data'")
    names = [str(name) for name in columns]
    if len(set(names)) != len(names):
        raise InvalidArgumentError("'columns' has a name twice")
    for number, row in enumerate(rows):
        if type(row) is not list or len(row) != len(names):
            raise InvalidArgumentError(f"row {number} of 'data' has not {len(names)} values, one for each column")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _records(rows: Any) -> _Columns:
    if type(rows) is not list or not rows or type(rows[0]) is not dict:
        raise InvalidArgumentError("'dataframe_records' is a list with an object for each row")
    names = list(rows[0])
    for number, row in enumerate(rows):
        if type(row) is not dict or row.keys() != rows[0].keys():
            raise InvalidArgumentError(f"row {number} has not the members of row 0: {_listed(names)}")
    return {name: [row[name] for row in rows] for name in names}


def _instances(rows: Any) -> _Columns | list[Any]:
    if type(rows) is not list:
        raise InvalidArgumentError("'instances' is a list with an element for each row")
    return _records(rows) if rows and type(rows[0]) is dict else rows


def _inputs(table: Any) -> _Columns | list[Any]:
    if type(table) is list or (type(table) is dict and all(type(values) is list for values in table.values())):
        columns: _Columns | list[Any] = table
        return columns
    raise InvalidArgumentError("'inputs' is a list, or an object with a list for each input")


_READ: Final[Mapping[str, Callable[[Any], _Columns | list[Any]]]] = {
    "dataframe_split": _split,
    "dataframe_records": _records,
    "instances": _instances,
    "inputs": _inputs,
}


def _placed(table: _Columns | list[Any], inputs: Mapping[str, Any]) -> _Columns:
    """The values of each input; columns that no input is called after are left out, as MLflow does."""
    if type(table) is list:
        if len(inputs) != 1:
            raise InvalidArgumentError(f"the table has no names, and the model has the inputs {_listed(inputs)}")
        return {next(iter(inputs)): table}
    columns = cast(_Columns, table)
    named = {name: values for name, values in columns.items() if name in inputs}
    if named:
        return named
    if len(inputs) != 1:
        raise InvalidArgumentError(f"the table's columns are {_listed(columns)}, and the inputs {_listed(inputs)}")
    name, info = next(iter(inputs.items()))
    width = info["shape"][-1] if info["shape"] else 1
    if width not in (-1, len(columns)):
        raise InvalidArgumentError(f"the table has {len(columns)} columns, and the model takes {width}")
    return {name: list(map(list, zip(*columns.values(), strict=True)))}


class _Tensors:
    """Makes the tensors of one request."""

    def __init__(self, label: RequestLabel, max_input_size: int, max_depth: int) -> None:
        self.made: dict[str, Tensor] = {}
        self._label = label
        self._left = max_input_size
        self._max_depth = max_depth

    def add(self, name: str, info: TypeInfo, rank: int, values: list[Any]) -> None:
        """Make input ``name`` of ``values``, nested evenly; dimensions of 1 are added until it has ``rank``."""
        if info.json is JsonKind.NONE:
            raise InvalidArgumentError(f"input '{name}' has unsupported datatype {info.name}")
        flat, shape = _flat(name, values, self._max_depth)
        if info.json is JsonKind.STRING:
            self._label.count_texts(len(flat))
        else:
            flat = [_number(value, info.json) for value in flat]
        try:
            array = array_of_values(info, flat)
        except RepoAgentError as error:
            raise InvalidArgumentError(f"{error.message}: input '{name}'") from None
        self._left -= array.nbytes
        if self._left < 0:
            raise InvalidArgumentError(f"the table's tensors are larger than allowed, from input '{name}' on")
        self.made[name] = Tensor(info.data_type, array.reshape(shape + [1] * (rank - len(shape))))


def _flat(name: str, values: list[Any], max_depth: int) -> tuple[list[Any], list[int]]:
    shape = [len(values)]
    while values and type(values[0]) is list:
        width = len(values[0])
        if not all(type(inner) is list and len(inner) == width for inner in values):
            raise InvalidArgumentError(f"the lists of input '{name}' have different lengths")
        if len(shape) == max_depth:
            raise too_deep(max_depth)
        values = list(chain.from_iterable(values))
        shape.append(width)
    return values, shape


def _number(value: object, kind: JsonKind) -> object:
    """As pandas means it: null is NaN where there is one, and a boolean among numbers is 0 or 1."""
    if value is None and kind is JsonKind.FLOAT:
        return nan
    return int(value) if type(value) is bool and kind is not JsonKind.BOOL else value


def _listed(names: Iterable[str]) -> str:
    some = [f"'{name[:_SHOWN]}'" for name in islice(names, _FEW + 1)]
    return ", ".join([*some[:_FEW], "..."] if len(some) > _FEW else some)


def write_table(response: InferResponse) -> bytes:
    """The JSON: a list of the rows, each an object if there is more than one output.

    Outputs whose rows are not as many are an object of lists instead.

    Raises:
        InvalidArgumentError: an output has a type that JSON cannot carry.
    """
    columns = {name: _rows(tensor) for name, tensor in response.outputs.items()}
    if len(columns) == 1:
        return dumps({"predictions": next(iter(columns.values()))})
    if len({len(rows) for rows in columns.values()}) == 1:
        return dumps(
            {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}
        )
    return dumps({"predictions": columns})


def _rows(tensor: Tensor) -> list[Any]:
    """The values as nested lists; a column of one value a row is flat."""
    shape = tensor.array.shape
    if tensor.array.size == 0:
        return cast(list[Any], np.empty(shape).tolist())
    values: list[Any] = loads(dumps(json_values(BY_TYPE[tensor.data_type], tensor)))  # the shortest decimals
    for width in reversed(shape[1:-1] if len(shape) == 2 and shape[1] == 1 else shape[1:]):
        values = [values[start : start + width] for start in range(0, len(values), width)]
    return values
