"""Variables in configuration files: ``${NAME}`` stands for what the operator allowed it to stand for."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from repoagent.errors import ConfigError, InvalidArgumentError

__all__ = ["config_variables", "expand"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USE: Final = re.compile(r"\$\{([^{}\n]*)\}")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "'": "\\'", "\n": "\\n"})


def config_variables(names: Iterable[str]) -> dict[str, str]:
    """The values that the environment has for ``names`` now.

    Raises:
        InvalidArgumentError: a name that a variable cannot have, one that is not set, or a value with ``${`` in it.
    """
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
