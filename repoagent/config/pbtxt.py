"""The text form of a model configuration: ``config.pbtxt``, and the variables that the operator allows in it."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from google.protobuf import text_format

from repoagent.config.model_config_pb2 import ModelConfig
from repoagent.errors import ConfigError, InvalidArgumentError, did_you_mean

_BYTE_ORDER_MARK: Final = "\ufeff"
_PLACE: Final = re.compile(r"\A\d+:\d+ : ")
_UNKNOWN_FIELD: Final = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>[^"]*)"')
_UNKNOWN_VALUE: Final = re.compile(r'Enum type "(?P<type>[\w.]+)" has no value named (?P<name>\w+)')
# The parser repeats the text it stumbled over. These two may be the value of a parameter, so it is left out.
_QUOTED_TOKEN: Final = re.compile(r"\A(?P<what>String missing ending quote|Expected string but found): .*\Z", re.DOTALL)


def read_text(text: str, *, source: str = "config.pbtxt") -> ModelConfig:
    """Read a configuration in protobuf text format; both ``f [ {..}, {..} ]`` and ``f {..} f {..}`` make a list.

    Raises :class:`~repoagent.errors.ConfigError` with line and column for text that is not well formed, a field or an
    enum value that does not exist (naming the closest one that does), and a value that does not fit its field.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise _config_error(error, text, source) from None
    except ValueError as error:  # a lone surrogate in a string: text that no file can hold, but a caller may bring
        raise ConfigError(f"not valid text: {type(error).__name__}", source=source) from None
    return config


def write_text(config: ModelConfig) -> str:
    """Write ``config`` in protobuf text format, fields in the order of the schema. ``read_text`` reads it back."""
    return text_format.MessageToString(config, as_utf8=True, use_index_order=True)


def _config_error(error: text_format.ParseError, text: str, source: str) -> ConfigError:
    line, column = error.GetLine(), error.GetColumn()
    detail = _without_source_line(_PLACE.sub("", str(error)), text, line)
    return ConfigError(_explain(detail), source=source, line=line, column=column)


def _without_source_line(detail: str, text: str, line: int | None) -> str:
    """Take out the line that the parser quotes: line and column are given, and the line may hold a secret."""
    lines = text.split("\n")
    if line is None or not 0 < line <= len(lines):
        return detail
    return detail.removeprefix(f"'{lines[line - 1]}': ")


def _explain(detail: str) -> str:
    if match := _UNKNOWN_FIELD.search(detail):
        message = ModelConfig.DESCRIPTOR.file.pool.FindMessageTypeByName(match["type"])
        known = [field.name for field in message.fields]
        return f"{message.name} has no field '{match['name']}'{did_you_mean(match['name'], known)}"
    if match := _UNKNOWN_VALUE.search(detail):
        enum = ModelConfig.DESCRIPTOR.file.pool.FindEnumTypeByName(match["type"])
        known = [value.name for value in enum.values]
        return f"{enum.name} has no value '{match['name']}'{did_you_mean(match['name'], known)}"
    if match := _QUOTED_TOKEN.search(detail):
        return f"{match['what']}: a string is written in quotes, on one line"
    if detail.startswith("'': ") or detail.endswith((": ", " but found: ''")):
        wanted = detail.removeprefix("'': ").removesuffix(" but found: ''").rstrip(" :.")
        return f"{wanted}: the text ends here"
    return detail.replace(f"{ModelConfig.DESCRIPTOR.file.package}.", "")


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USE: Final = re.compile(r"\$\{([^{}\n]*)\}")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "'": "\\'", "\n": "\\n"})


def config_variables(names: Iterable[str]) -> dict[str, str]:
    """The values that the environment has for ``names`` now. Raises ``InvalidArgumentError`` for a name that a variable
    cannot have, one that is not set, or a value with ``${`` in it."""
    found = {}
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(f"{name!r} is not a name of an environment variable")
        value = os.environ.get(name)
        if value is None:
            raise InvalidArgumentError(f"the environment variable {name}, which configurations may use, is not set")
        if "${" in value:
            # An agent may write the configuration out again, and the next reader would take it for a variable.
            raise InvalidArgumentError(
                f"the value of the environment variable {name} contains '${{', which is not allowed"
            )
        found[name] = value
    return found


def expand(text: str, variables: Mapping[str, str], *, source: str = "config.pbtxt") -> str:
    """``text`` with every ``${NAME}`` replaced; without ``variables`` it stays as it is.

    A value cannot end the quoted text that it stands in: quotes, backslashes and line ends are escaped.

    Raises:
        ConfigError: a name that is not among ``variables``.
    """
    if not variables:
        return text

    def value(use: re.Match[str]) -> str:
        name = use[1]
        if name not in variables:
            line = text.count("\n", 0, use.start()) + 1
            raise ConfigError(
                f"{source}:{line}: the variable '{name}' is not allowed in configurations; the operator allows "
                f"{', '.join(sorted(variables))}"
            )
        return variables[name].translate(_ESCAPES)

    return _USE.sub(value, text)
