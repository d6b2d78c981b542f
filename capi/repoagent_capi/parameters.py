"""Parameters as they cross."""

from typing import Any

from repoagent.serving.requests.request import ParameterValue
from repoagent_capi._crossing import ffi
from repoagent_capi.errors import as_bytes, as_text
from repoagent_capi.triton_bindings.values import Parameter, ParameterType


def value_of(item: Any) -> Any:
    """What a ``core_parameter`` holds."""
    match ParameterType(item.type):
        case ParameterType.STRING:
            return as_text(ffi.cast("const char*", item.bytes))
        case ParameterType.INT:
            return item.integer
        case ParameterType.BOOL:
            return bool(item.integer)
        case ParameterType.DOUBLE:
            return item.real
        case ParameterType.BYTES:
            return bytes(ffi.buffer(item.bytes, item.byte_size)) if item.byte_size else b""


def parameters_in(items: Any, count: int) -> list[Parameter]:
    """``count`` of them, as servers take them."""
    return [Parameter(as_text(items[index].name), value_of(items[index])) for index in range(count)]


def parameters_out(values: dict[str, ParameterValue], kept: list[Any]) -> Any:
    """An array of ``core_parameter``; ``kept`` must live as long as it is used."""
    items = ffi.new("core_parameter[]", len(values))
    kept.append(items)
    for item, (name, value) in zip(items, values.items(), strict=True):
        kept.append(text := ffi.new("char[]", as_bytes(name)))
        item.name = text
        match value:
            case bool():
                item.type, item.integer = 2, value
            case int():
                item.type, item.integer = 1, value
            case float():
                item.type, item.real = 3, value
            case _:
                kept.append(text := ffi.new("char[]", as_bytes(str(value))))
                item.type, item.bytes = 0, text
    return items
