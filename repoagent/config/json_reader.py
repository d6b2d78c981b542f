"""Reading the JSON form of a model configuration, as load requests bring it."""

import json
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from repoagent.config import relaxed_json
from repoagent.config.json_scalars import Misfit, read_scalar
from repoagent.config.model_config_pb2 import ModelConfig
from repoagent.config.schema import descriptor_of, is_agent_parameters, is_map, map_fields
from repoagent.config.suggestions import did_you_mean
from repoagent.errors import ConfigError

__all__ = ["read_json"]

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
        return relaxed_json.loads(text if isinstance(text, str) else text.decode())
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
