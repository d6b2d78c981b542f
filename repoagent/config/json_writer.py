"""The JSON form of a model configuration, as Triton's model-configuration endpoint shows it."""

import math
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from repoagent.config.model_config_pb2 import ModelConfig
from repoagent.config.schema import enum_of, fields_of, is_agent_parameters, is_map, map_fields

__all__ = ["write_json"]


def write_json(config: ModelConfig) -> dict[str, Any]:
    """``config`` as plain dictionaries, lists, strings, numbers and booleans, ready for any JSON encoder.

    Field names are those of the schema, in its order. Fields that are not set show their defaults, except messages
    and members of a oneof, which are left out. 64-bit integers are numbers, enum values are names, agent parameters
    are a map in which the last value of a key wins.
    """
    return _message(config)


def _message(message: Message) -> dict[str, Any]:
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in fields_of(message)
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if is_map(field):
        _, item = map_fields(field)
        return {str(key): _single(item, value[key]) for key in sorted(value)}
    if is_agent_parameters(field):
        return {parameter.key: parameter.value for parameter in value}
    if field.is_repeated:
        return [_single(field, element) for element in value]
    return _single(field, value)


def _single(field: FieldDescriptor, value: Any) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            return _message(value)
        case FieldDescriptor.TYPE_ENUM:
            known = enum_of(field).values_by_number.get(value)
            return known.name if known else value
        case FieldDescriptor.TYPE_FLOAT:
            return _float(_shortest(value))
        case FieldDescriptor.TYPE_DOUBLE:
            return _float(value)
        case _:
            return value


def _float(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _shortest(value: float) -> float:
    """The number with the fewest digits that is the same in 32 bits: 0.1, not 0.10000000149011612."""
    for digits in range(6, 9):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("f", candidate) == struct.pack("f", value):
            return candidate
    return value
