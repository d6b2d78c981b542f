"""The JSON form of a model configuration: read from load requests, written as Triton's endpoint shows it."""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from repoagent import nested_text
from repoagent.config.model_config_pb2 import ModelConfig, ModelRepositoryAgents
from repoagent.errors import ConfigError, did_you_mean

_AGENT_PARAMETER = ModelRepositoryAgents.Agent.Parameter.DESCRIPTOR.full_name


def descriptor_of(message: Message) -> Descriptor:
    """What describes the type of ``message``."""
    return cast(Descriptor, message.DESCRIPTOR)


def fields_of(message: Message) -> Sequence[FieldDescriptor]:
    """The fields of the type of ``message``, in the order of the schema."""
    return descriptor_of(message).fields


def enum_of(field: FieldDescriptor) -> EnumDescriptor:
    """The enum of a field of enum type."""
    return cast(EnumDescriptor, field.enum_type)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def map_fields(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Key and value of a field that is a map."""
    entry = cast(Descriptor, field.message_type)
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def is_agent_parameters(field: FieldDescriptor) -> bool:
    """Whether ``field`` holds the parameters of an agent: repeated entries here, a map in Triton's JSON."""
    return field.message_type is not None and field.message_type.full_name == _AGENT_PARAMETER


_ROOT: Final = ""


def read_json(text: str | bytes | Mapping[str, Any], *, source: str = "<override>") -> ModelConfig:
    """Read a configuration from JSON text, or from a mapping that was read from it.

    Accepted as in Triton: names in the schema's or in camelCase spelling, numbers and booleans as strings, enum values
    in any case or as numbers, one element in place of a list, ``null`` for "not given", and JSON with unquoted names,
    single quotes or trailing commas. The parameters of an agent may be a map or, to give a key twice, a list of
    ``{"key": .., "value": ..}``.

    Raises :class:`~repoagent.errors.ConfigError` that names the path to the fault (``input[0].dims``), or line and
    column where the text is not JSON.
    """
    config = ModelConfig()
    values = text if isinstance(text, Mapping) else _parse(text, source)
    try:
        _fill(config, values, _ROOT)
    except Misfit as fault:
        raise ConfigError(str(fault), source=source) from None
    return config


def _parse(text: str | bytes, source: str) -> Any:
    try:
        return load_relaxed_json(text if isinstance(text, str) else text.decode())
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg}", source=source, line=error.lineno, column=error.colno) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"not JSON: not UTF-8 at byte {error.start}", source=source) from None
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", source=source) from None


def _fill(message: Message, values: Any, path: str) -> None:
    if not isinstance(values, Mapping):
        raise Misfit(path, f"expected an object with the fields of {message.DESCRIPTOR.name}")
    for name, value in values.items():
        field = _find_field(descriptor_of(message), name, path)
        if value is not None:
            here = f"{path}.{field.name}" if path else field.name
            _refuse_second_choice(message, field, here)
            _set(message, field, value, here)


def _find_field(descriptor: Descriptor, name: Any, path: str) -> FieldDescriptor:
    field = descriptor.fields_by_name.get(name) or descriptor.fields_by_camelcase_name.get(name)
    if field is None:
        raise Misfit(
            path, f"{descriptor.name} has no field '{name}'{did_you_mean(str(name), descriptor.fields_by_name)}"
        )
    return field


def _refuse_second_choice(message: Message, field: FieldDescriptor, path: str) -> None:
    if field.containing_oneof is None:
        return
    chosen = message.WhichOneof(field.containing_oneof.name)
    if chosen not in (None, field.name):
        raise Misfit(path, f"cannot be set beside '{chosen}': choose one")


def _set(message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
    if is_map(field):
        _set_map(message, field, value, path)
    elif field.is_repeated:
        _set_list(message, field, value, path)
    elif field.message_type is not None:
        child = getattr(message, field.name)
        child.SetInParent()
        _fill(child, value, path)
    else:
        setattr(message, field.name, read_scalar(field, value, path))


def _set_map(message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
    if not isinstance(value, Mapping):
        raise Misfit(path, "expected an object: names and their values")
    key_field, value_field = map_fields(field)
    container = getattr(message, field.name)
    for name, element in value.items():
        here = f"{path}[{name}]"
        key = read_scalar(key_field, name, here)
        if value_field.message_type is not None:
            _fill(container[key], element, here)
        else:
            container[key] = read_scalar(value_field, element, here)


def _set_list(message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
    if is_agent_parameters(field) and isinstance(value, Mapping):
        value = [{"key": key, "value": element} for key, element in value.items()]
    container = getattr(message, field.name)
    for index, element in enumerate(value if isinstance(value, list | tuple) else [value]):
        here = f"{path}[{index}]"
        if field.message_type is not None:
            _fill(container.add(), element, here)
        else:
            container.append(read_scalar(field, element, here))


_INTEGER: Final = re.compile(r"[+-]?\d{1,20}")
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: range(-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: range(-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: range(2**32),
    FieldDescriptor.CPPTYPE_UINT64: range(2**64),
}


class Misfit(Exception):
    """A value that does not fit, at a path such as ``input[0].dims``."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)


def read_scalar(field: FieldDescriptor, value: Any, path: str) -> Any:
    """``value`` as ``field`` holds it; raises :class:`Misfit`. Values are never repeated in the reason."""
    return _READERS[field.cpp_type](field, value, path)


def _read_integer(field: FieldDescriptor, value: Any, path: str) -> int:
    allowed = _RANGES[field.cpp_type]
    number = _as_integer(value)
    if number is None or number not in allowed:
        raise Misfit(path, f"expected an integer from {allowed.start} to {allowed.stop - 1}")
    return number


def _as_integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    return None


def _read_float(field: FieldDescriptor, value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Misfit(path, "expected a number")
    try:
        number = float(value)
        if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
            struct.pack("f", number)
    except (ValueError, OverflowError):
        raise Misfit(path, "expected a number in range") from None
    return number


def _read_bool(_field: FieldDescriptor, value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    raise Misfit(path, "expected true or false")


def _read_string(_field: FieldDescriptor, value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise Misfit(path, "expected a string in quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit(path, "expected text; it holds half of a surrogate pair") from None
    return value


def _read_enum(field: FieldDescriptor, value: Any, path: str) -> int:
    enum = enum_of(field)
    if isinstance(value, str) and not _INTEGER.fullmatch(value.strip()):
        named = enum.values_by_name.get(value.upper())
        if named is None:
            raise Misfit(path, f"{enum.name} has no value '{value}'{did_you_mean(value.upper(), enum.values_by_name)}")
        return named.number
    number = _as_integer(value)
    if number is None or number not in enum.values_by_number:
        raise Misfit(path, f"expected one of {', '.join(enum.values_by_name)}")
    return number


_READERS: Final[dict[int, Callable[[FieldDescriptor, Any, str], Any]]] = {
    **dict.fromkeys(_RANGES, _read_integer),
    FieldDescriptor.CPPTYPE_FLOAT: _read_float,
    FieldDescriptor.CPPTYPE_DOUBLE: _read_float,
    FieldDescriptor.CPPTYPE_BOOL: _read_bool,
    FieldDescriptor.CPPTYPE_STRING: _read_string,
    FieldDescriptor.CPPTYPE_ENUM: _read_enum,
}


# Every alternative takes all that it has looked at (possessive, and an end of a string that is missing is none), so
# that the time stays proportional to the length of the text, whatever a client sends.
_TOKEN: Final = re.compile(
    r"""(?P<double>"(?:[^"\\]|\\.|\\\Z)*+"?)
      | '(?P<single>(?:[^'\\]|\\.|\\\Z)*+)(?P<close>'?)
      | (?P<name>[A-Za-z_$][\w$]*+)(?P<colon>\s*+:)?
      | (?P<comma>,)(?=\s*+[}\]])""",
    re.VERBOSE | re.DOTALL,
)


def load_relaxed_json(text: str) -> Any:
    """Read ``text`` as JSON, and if that fails, once more with the liberties above.

    Raises ``ValueError``; a ``json.JSONDecodeError`` (which is one) speaks about ``text`` as it was given.
    """
    try:
        return nested_text.read_json(text)
    except json.JSONDecodeError as error:
        try:
            return nested_text.read_json(_TOKEN.sub(_strict, text))
        except ValueError:
            raise error from None


def _strict(match: re.Match[str]) -> str:
    if match["comma"] is not None:
        return ""
    if match["colon"] is not None:
        return f'"{match["name"]}":'
    if match["single"] is not None:
        return '"' + match["single"].replace("\\'", "'").replace('"', '\\"') + match["close"].replace("'", '"')
    return match[0]


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
