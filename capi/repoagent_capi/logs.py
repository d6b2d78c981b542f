"""The log of the process, for C."""

from pathlib import PurePath
from typing import Any

from repoagent.server.enums import LogFormat, LogLevel
from repoagent.server.logs import log_message as write
from repoagent.server.logs import server_log
from repoagent_capi.errors import as_text, crossing
from repoagent_capi.triton_bindings.options import ServerOptions


@crossing
def log_message(level: int, file: Any, line: int, text: Any) -> None:
    write(LogLevel(level), PurePath(as_text(file)).name, line, as_text(text))


@crossing
def log_is_enabled(level: int, enabled: Any) -> None:
    enabled[0] = server_log().enabled(LogLevel(level))


@crossing
def log_set(setting: Any, text: Any, number: int) -> None:
    options = ServerOptions()
    match as_text(setting):
        case "set_log_file":
            options.set_log_file(as_text(text))
        case "set_log_format":
            options.set_log_format(LogFormat(number))
        case "set_log_verbose":
            options.set_log_verbose(number)
        case flag:
            getattr(options, flag)(bool(number))
