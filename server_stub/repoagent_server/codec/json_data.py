"""The ``data`` of a tensor: JSON to a NumPy array. Lists may be flat or nested; only the number of values counts."""

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import countOf
from typing import Any, Final

import numpy as np

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS
from repoagent.serving.requests.tensor import Array
from repoagent_server.codec.binary import BY_NAME, JsonKind, RequestLabel, TypeInfo, bytes_array
from repoagent_server.codec.fields import complaint
from repoagent_server.codec.json_text import too_deep


@dataclass(slots=True)
class Values:
    """An array in pieces, each a list without lists in it. No one holds the interpreter for longer than one takes."""

    pieces: list[list[Any]] = field(default_factory=list)
    nested: bool = False
    """Whether it was written with arrays in it; only their values are here."""

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def add(self, piece: list[Any]) -> None:
        """Append values."""
        self.pieces.append(piece)

    def taken(self) -> Iterator[list[Any]]:
        """The pieces, each forgotten here once the next is asked for."""
        self.pieces.reverse()
        while self.pieces:
            yield self.pieces.pop()

    def __del__(self) -> None:
        """Of a request that is refused: ten million values freed in one go would keep the interpreter from others."""
        while self.pieces:
            self.pieces.pop()


def array_from_json(
    info: TypeInfo,
    data: list[Any] | Values,
    shape: Sequence[int],
    count: int,
    name: str,
    label: RequestLabel,
    may_hold_booleans: bool = True,
    max_depth: int = DEFAULT_LIMITS.json_depth,
) -> Array:
    """Make the array of input ``name``: ``count`` values of type ``info`` in ``data``, shaped as ``shape``.

    ``may_hold_booleans`` False promises that none of the values is one. A flat list of numbers need not be looked
    through then: the packing refuses all but numbers and booleans.

    Raises:
        InvalidArgumentError: the type has no JSON form, a value is out of its range, or lists are nested more than
            ``max_depth`` deep.
        InternalError: a value of another type, or more or fewer values than the shape has (Triton's codes).
    """
    if isinstance(data, Values):
        return _array_of_pieces(info, data, count, name, label).reshape(shape)
    if not may_hold_booleans and info.code and 0 < count == len(data) <= _PACKED:
        try:
            array: Array = np.ndarray(shape, info.dtype, struct.pack(f"{count}{info.code}", *data))
            return array
        except (struct.error, OverflowError):
            pass  # there is something wrong with a value, or it is nested: below it is looked into
    form = _form(info, name)
    if count == 0:
        return np.empty(shape, info.dtype)
    flat = _flat(data, form, max_depth)
    if len(flat) != count:
        raise _wrong_count(info, name, label, count, len(flat))
    return form.build(info, flat).reshape(shape)


def _array_of_pieces(info: TypeInfo, values: Values, count: int, name: str, label: RequestLabel) -> Array:
    """The same of an array that was read in pieces, one by one, which are let go of meanwhile."""
    form = _form(info, name)
    if count and count != len(values):
        raise _wrong_count(info, name, label, count, len(values))
    array = np.empty(count, info.dtype)
    position = 0
    for piece in values.taken() if count else ():
        if not form.types.issuperset(map(type, piece)):
            raise InternalError(form.complaint)
        array[position : position + len(piece)] = form.build(info, piece) if piece else ()
        position += len(piece)
    return array


def _form(info: TypeInfo, name: str) -> "_Form":
    form = _FORMS.get(info.name)
    if form is None:
        raise InvalidArgumentError(
            f"receiving {info.name} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    return form


def _wrong_count(info: TypeInfo, name: str, label: RequestLabel, expected: int, found: int) -> RepoAgentError:
    if info.json is JsonKind.STRING:
        return label.wrong_count(name, expected, found)
    return InternalError("Unable to parse 'data': Shape does not match true shape of 'data' field")


def array_of_values(info: TypeInfo, values: list[Any] | Values) -> Array:
    """A one-dimensional array of ``values``, none of which may be a list. The type must have a JSON form.

    Raises:
        InternalError: a value of another type; the text is that of Triton's accessors.
        InvalidArgumentError: a number that does not fit the type.
    """
    if isinstance(values, Values):
        if values.nested:
            raise InternalError(_FORMS[info.name].complaint.removeprefix(_WHERE))
        count = len(values)
        arrays = [array_of_values(info, piece) for piece in values.taken()]
        return np.concatenate(arrays) if count else np.empty(0, info.dtype)
    form = _FORMS[info.name]
    negative = info.json is JsonKind.UNSIGNED and any(type(value) is int and value < 0 for value in values)
    if negative or not form.types.issuperset(map(type, values)):
        raise InternalError(form.complaint.removeprefix(_WHERE))
    return form.build(info, values) if values else np.empty(0, info.dtype)


def _numbers(info: TypeInfo, flat: list[Any]) -> Array:
    try:
        return _packed(info, flat) if len(flat) <= _PACKED else np.array(flat, info.dtype)
    except OverflowError:
        with np.errstate(over="ignore"):  # beyond the largest FP32: infinite, as in Triton
            return np.array(flat, info.dtype)


def _packed(info: TypeInfo, flat: list[Any]) -> Array:
    return np.frombuffer(struct.pack(f"{len(flat)}{info.code}", *flat), info.dtype)


def _integers(info: TypeInfo, flat: list[Any]) -> Array:
    """Unlike NumPy and Triton, the standard library refuses what does not fit instead of wrapping it."""
    try:
        if len(flat) <= _PACKED:
            return _packed(info, flat)
        return np.frombuffer(array(info.code, flat), info.dtype)
    except (struct.error, OverflowError):
        bounds = np.iinfo(info.dtype)
        wrong = next(value for value in flat if not bounds.min <= value <= bounds.max)
        raise InvalidArgumentError(f"Unable to parse 'data': {wrong} is out of range for {info.name}") from None


def _unsigned(info: TypeInfo, flat: list[Any]) -> Array:
    if min(flat) < 0:
        raise InternalError(f"Unable to parse 'data': {complaint('unsigned')}")
    return _integers(info, flat)


def _booleans(info: TypeInfo, flat: list[Any]) -> Array:
    return np.frombuffer(bytes(flat), info.dtype)


def _strings(_: TypeInfo, flat: list[Any]) -> Array:
    return bytes_array([text.encode("utf-8", "surrogateescape") for text in flat])


_PACKED: Final = 1 << 16
"""Up to so many values, packing them as the arguments of one call takes a third of the time that NumPy does."""

_WHERE: Final = "Unable to parse 'data': "


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of one kind come: as which Python types, the error for one that does not, how to make an array.

    ``usual`` is the one of the types that nearly all values have.
    """

    usual: type
    types: frozenset[type]
    complaint: str
    build: Callable[[TypeInfo, list[Any]], Array]


_KINDS: Final = {
    JsonKind.BOOL: _Form(bool, frozenset({bool}), _WHERE + complaint("boolean"), _booleans),
    JsonKind.SIGNED: _Form(int, frozenset({int}), _WHERE + complaint("signed"), _integers),
    JsonKind.UNSIGNED: _Form(int, frozenset({int}), _WHERE + complaint("unsigned"), _unsigned),
    JsonKind.FLOAT: _Form(float, frozenset({int, float}), _WHERE + complaint("double"), _numbers),
    JsonKind.STRING: _Form(str, frozenset({str}), f"Unable to parse JSON bytes array: {complaint('string')}", _strings),
}

_FORMS: Final = {name: _KINDS[info.json] for name, info in BY_NAME.items() if info.json is not JsonKind.NONE}


def _flat(data: list[Any], form: _Form, max_depth: int) -> list[Any]:
    """The values of ``data``, all of the types of ``form``, without the lists around them."""
    # The first test is the cheap one: a comparison by identity for each value, no set to be filled.
    depth = 1
    while countOf(map(type, data), form.usual) != len(data) and not form.types.issuperset(map(type, data)):
        kinds = set(map(type, data))
        if list not in kinds:
            raise InternalError(form.complaint)
        # One level at a time is fast where lists are nested evenly, and never ends where they are not.
        data = list(chain.from_iterable(data)) if kinds == {list} else list(_leaves(data, depth, max_depth))
        depth += 1
        if depth > max_depth:
            raise too_deep(max_depth)
    return data


def _leaves(data: list[Any], depth: int, max_depth: int) -> Iterator[Any]:
    stack = [iter(data)]
    while stack:
        if len(stack) + depth - 1 > max_depth:
            raise too_deep(max_depth)
        for item in stack[-1]:
            if type(item) is list:
                stack.append(iter(item))
                break
            yield item
        else:
            stack.pop()
