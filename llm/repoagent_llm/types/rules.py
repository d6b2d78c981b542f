"""Rules: each turns what a caller assigns into what a field stores, or raises.

``TypeError`` for a value of the wrong kind, ``CheckError`` for one out of range. A rule is called with the value
and the place ("SamplingConfig.top_k") that its error text names.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np

from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.tensors import to_numpy

Rule = Callable[[object, str], Any]
INT32: Final = (-(2**31), 2**31 - 1)
UINT64: Final = (0, 2**64 - 1)


def _wrong(where: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{where} must be {expected}, not {type(value).__name__}")


def _index(value: object, where: str, limits: tuple[int, int]) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _wrong(where, "an integer", value) from None
    if not limits[0] <= number <= limits[1]:
        raise TypeError(f"{where} must lie in {limits[0]}..{limits[1]}, not {number}")
    return number


def integer(low: int | None = None, high: int | None = None) -> Rule:
    """A 32-bit integer within ``low..high`` (both included)."""

    def rule(value: object, where: str) -> int:
        number = _index(value, where, INT32)
        if low is not None and number < low:
            raise CheckError(f"{where} must be >= {low}, not {number}")
        if high is not None and number > high:
            raise CheckError(f"{where} must be <= {high}, not {number}")
        return number

    return rule


token_id = integer()


def unsigned64(value: object, where: str) -> int:
    """An integer of 64 bits, not negative: ids, hashes, sizes in bytes."""
    return _index(value, where, UINT64)


def signed64(value: object, where: str) -> int:
    """An integer of 64 bits."""
    return _index(value, where, (-(2**63), 2**63 - 1))


def _real(value: object, where: str) -> float:
    if isinstance(value, (int, float, np.floating, np.integer)):
        try:
            return float(value)
        except OverflowError:
            raise TypeError(f"{where} must be a number that fits into 64 bits") from None
    raise _wrong(where, "a number", value)


def _single(value: object, where: str) -> float:
    with np.errstate(over="ignore"):  # becomes infinite, as in C++
        return float(np.float32(_real(value, where)))


def float32(
    *, above: float | None = None, low: float | None = None, below: float | None = None, high: float | None = None
) -> Rule:
    """A number kept in single precision, as the C++ classes keep it: ``0.7`` reads back as ``0.699999988079071``."""

    def rule(value: object, where: str) -> float:
        number = _single(value, where)
        if (
            (above is not None and not number > above)
            or (low is not None and not number >= low)
            or (below is not None and not number < below)
            or (high is not None and not number <= high)
        ):
            limits = ((">", above), (">=", low), ("<", below), ("<=", high))
            raise CheckError(
                f"{where} must be {' and '.join(f'{sign} {limit:g}' for sign, limit in limits if limit is not None)}, "
                f"not {number:g}"
            )
        return number

    return rule


def double(value: object, where: str) -> float:
    """A number in double precision."""
    return _real(value, where)


def boolean(value: object, where: str) -> bool:
    """True or False; integers are refused."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise _wrong(where, "a bool", value)


def text(value: object, where: str) -> str:
    """A string; a path is taken as its string."""
    if isinstance(value, str):
        return value
    if hasattr(value, "__fspath__"):
        return str(value)
    raise _wrong(where, "a string", value)


def raw_bytes(value: object, where: str) -> bytes:
    """Bytes."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise _wrong(where, "bytes", value)


def duration(value: object, where: str) -> timedelta:
    """A ``datetime.timedelta``."""
    if isinstance(value, timedelta):
        return value
    raise _wrong(where, "a timedelta", value)


def function(value: object, where: str) -> Callable[..., Any]:
    """Anything that can be called."""
    if callable(value):
        return value
    raise _wrong(where, "callable", value)


def instance(cls: type) -> Rule:
    """An object of ``cls``; it is kept by reference, so later changes to it show."""

    def rule(value: object, where: str) -> object:
        if isinstance(value, cls):
            return value
        raise _wrong(where, f"a {cls.__name__}", value)

    return rule


@dataclass(frozen=True, slots=True)
class _Maybe:
    rule: Rule

    def __call__(self, value: object, where: str) -> Any:
        return None if value is None else self.rule(value, where)


def maybe(rule: Rule) -> Rule:
    """None, or what ``rule`` accepts."""
    return _Maybe(rule)


def passes_none(rule: Rule) -> bool:
    """Whether ``rule`` stores None as None."""
    return isinstance(rule, _Maybe)


def list_of(rule: Rule) -> Rule:
    """A new list of what ``rule`` accepts, from any iterable but a string."""

    def items(value: object, where: str) -> list[Any]:
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise _wrong(where, "a sequence", value)
        return [rule(item, f"{where}[{index}]") for index, item in enumerate(value)]

    return items


def tokens(value: object, where: str) -> list[int]:
    """A new list of token ids; a one-dimensional integer array is taken too, and checked in one go."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        if value.size and not (INT32[0] <= int(value.min()) and int(value.max()) <= INT32[1]):
            raise TypeError(f"{where} holds a token id of more than 32 bits")
        return [int(item) for item in value]
    if isinstance(value, (list, tuple)) and set(map(type, value)) <= {int}:
        if value and not (INT32[0] <= min(value) and max(value) <= INT32[1]):
            raise TypeError(f"{where} holds a token id of more than 32 bits")
        return list(value)
    return [int(item) for item in list_of(token_id)(value, where)]


def mapping(value: object, where: str) -> dict[Any, Any]:
    """A mapping, copied into a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise _wrong(where, "a mapping", value)


def tensor(*, ndim: int | None = None, dtype: object = None) -> Rule:
    """Anything with DLPack or the array protocol, kept as a NumPy array; shares memory where that is possible."""

    def rule(value: object, where: str) -> np.ndarray[Any, np.dtype[Any]]:
        array = to_numpy(value, where)
        if ndim is not None and array.ndim != ndim:
            raise CheckError(f"{where} must have {ndim} dimension(s), not the shape {array.shape}")
        if dtype is not None and array.dtype != np.dtype(dtype):  # type: ignore[call-overload]
            raise CheckError(f"{where} must have the element type {np.dtype(dtype)}, not {array.dtype}")  # type: ignore[call-overload]
        return array

    return rule
