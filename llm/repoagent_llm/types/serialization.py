"""Results as bytes: a JSON head and the raw tensors behind it. No pickle, so foreign bytes cannot run code.

Layout: 4 bytes ``RAR1``, the head's length as a little-endian 32-bit number, the head, the tensors in the order
in which the head names them.
"""

import json
import re
import struct
from typing import Any, Final

import numpy as np

from repoagent.nested_text import read_json
from repoagent_llm.types.enums import FinishReason
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.result import AdditionalOutput, Result
from repoagent_llm.types.tensors import Array

MAGIC: Final = b"RAR1"
_PLAIN: Final = (
    "is_final",
    "output_token_ids",
    "cum_log_probs",
    "log_probs",
    "sequence_index",
    "is_sequence_final",
    "decoding_iter",
    "avg_decoded_tokens_per_iter",
)
_NUMBERS: Final = re.compile(r"[<>|][biufc]\d{1,2}")
_TENSORS: Final = ("context_logits", "generation_logits", "encoder_output")


def serialize_result(result: Result) -> bytes:
    """The result as bytes; perf metrics and disaggregated-serving parameters are left out."""
    tensors = [(name, getattr(result, name)) for name in _TENSORS if getattr(result, name) is not None]
    tensors += [(f"+{extra.name}", extra.output) for extra in result.additional_outputs]
    arrays = [(name, np.ascontiguousarray(array)) for name, array in tensors]
    head: dict[str, Any] = {name: getattr(result, name) for name in _PLAIN}
    head["finish_reasons"] = [int(reason) for reason in result.finish_reasons]
    head["tensors"] = [[name, array.dtype.str, list(array.shape)] for name, array in arrays]
    encoded = json.dumps(head).encode()
    return b"".join((MAGIC, struct.pack("<I", len(encoded)), encoded, *(array.tobytes() for _, array in arrays)))


def deserialize_result(data: bytes) -> Result:
    """The result that ``serialize_result`` wrote; raises ``CheckError`` for anything else."""
    try:
        return _parse(memoryview(data))
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise CheckError(f"these {len(data)} bytes are not a serialized Result: {error}") from error


def _parse(data: memoryview) -> Result:
    if bytes(data[:4]) != MAGIC:
        raise ValueError(f"expected the mark {MAGIC!r}, not {bytes(data[:4])!r}")
    (size,) = struct.unpack("<I", data[4:8])
    head = read_json(bytes(data[8 : 8 + size]))
    result = Result(**{name: head[name] for name in _PLAIN})
    result.finish_reasons = [FinishReason(number) for number in head["finish_reasons"]]
    offset = 8 + size
    for name, dtype, shape in head["tensors"]:
        array = _tensor(data, offset, dtype, tuple(shape))
        offset += array.nbytes
        _attach(result, name, array)
    if offset != len(data):
        raise ValueError(f"expected {offset} bytes")
    return result


def _tensor(data: memoryview, offset: int, dtype: str, shape: tuple[int, ...]) -> Array:
    if not _NUMBERS.fullmatch(dtype):  # NumPy would evaluate more than names
        raise ValueError(f"a tensor of type {dtype!r} is not allowed here")
    return np.frombuffer(data, dtype, int(np.prod(shape)), offset).reshape(shape).copy()


def _attach(result: Result, name: str, array: Array) -> None:
    if name.startswith("+"):
        result.additional_outputs.append(AdditionalOutput(name[1:], array))
    elif name in _TENSORS:
        setattr(result, name, array)
    else:
        raise ValueError(f"unknown tensor {name!r}")
