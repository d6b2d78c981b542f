"""The functions of the Triton server that this process is, for the bridge."""

import ctypes
import logging
from typing import Any, Final

from repoagent.api import ArtifactType, Parameters
from repoagent.errors import ErrorCode, RepoAgentError, error_of

_VOID: Final = ctypes.c_void_p
_TEXT: Final = ctypes.c_char_p
_library: Any = ctypes.CDLL(None)

_LEVELS: Final = ((logging.ERROR, 2), (logging.WARNING, 1), (logging.INFO, 0))


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_library, name)
    function.restype, function.argtypes = result, arguments
    return function


_error_new = _function("TRITONSERVER_ErrorNew", _VOID, ctypes.c_int, _TEXT)
_error_delete = _function("TRITONSERVER_ErrorDelete", None, _VOID)
_error_code = _function("TRITONSERVER_ErrorCode", ctypes.c_int, _VOID)
_error_message = _function("TRITONSERVER_ErrorMessage", _TEXT, _VOID)
_log = _function("TRITONSERVER_LogMessage", _VOID, ctypes.c_int, _TEXT, ctypes.c_int, _TEXT)
_to_json = _function("TRITONSERVER_MessageSerializeToJson", _VOID, _VOID, _VOID, _VOID)
_message_delete = _function("TRITONSERVER_MessageDelete", _VOID, _VOID)
_location = _function("TRITONREPOAGENT_ModelRepositoryLocation", _VOID, _VOID, _VOID, _VOID, _VOID)
_update = _function("TRITONREPOAGENT_ModelRepositoryUpdate", _VOID, _VOID, _VOID, ctypes.c_int, _TEXT)
_count = _function("TRITONREPOAGENT_ModelParameterCount", _VOID, _VOID, _VOID, _VOID)
_parameter = _function("TRITONREPOAGENT_ModelParameter", _VOID, _VOID, _VOID, ctypes.c_uint32, _VOID, _VOID)
_config = _function("TRITONREPOAGENT_ModelConfig", _VOID, _VOID, _VOID, ctypes.c_uint32, _VOID)


def _check(error: int | None) -> None:
    if error is None:
        return
    code, text = _error_code(error), _error_message(error)
    _error_delete(error)
    raise error_of(code, text.decode(errors="surrogateescape"))


def error_of_exception(error: BaseException) -> int | None:
    """A new error of Triton's; Triton deletes it."""
    code = error.code if isinstance(error, RepoAgentError) else ErrorCode.INTERNAL
    made: int | None = _error_new(int(code), (str(error) or type(error).__name__).encode(errors="surrogateescape"))
    return made


def is_triton() -> bool:
    """Whether the server is Triton, and not this project's own, whose log takes what is logged here anyway."""
    return not hasattr(_library, "repoagent_core_install")


class Handles:
    """One model that Triton calls an agent for."""

    def __init__(self, agent: int, model: int) -> None:
        self._agent = agent
        self._model = model

    def location(self) -> tuple[ArtifactType, str]:
        """Where the model is now."""
        kind, text = ctypes.c_int(), ctypes.c_char_p()
        _check(_location(self._agent, self._model, ctypes.byref(kind), ctypes.byref(text)))
        return ArtifactType(kind.value), (text.value or b"").decode(errors="surrogateescape")

    def update(self, location: str) -> None:
        """Let the agents that follow, and the server, use another directory."""
        _check(_update(self._agent, self._model, 0, location.encode(errors="surrogateescape")))

    def parameters(self) -> Parameters:
        """What the configuration gives this agent, in Triton's order."""
        count, name, value = ctypes.c_uint32(), ctypes.c_char_p(), ctypes.c_char_p()
        _check(_count(self._agent, self._model, ctypes.byref(count)))
        pairs = []
        for index in range(count.value):
            _check(_parameter(self._agent, self._model, index, ctypes.byref(name), ctypes.byref(value)))
            pairs.append(tuple((text.value or b"").decode(errors="surrogateescape") for text in (name, value)))
        return Parameters((key, text) for key, text in pairs)

    def config(self) -> bytes:
        """The configuration as JSON."""
        message, text, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        _check(_config(self._agent, self._model, 1, ctypes.byref(message)))
        try:
            _check(_to_json(message, ctypes.byref(text), ctypes.byref(size)))
            return ctypes.string_at(text.value or 0, size.value)
        finally:
            _error_delete(_message_delete(message))


class LogHandler(logging.Handler):
    """Writes what this project logs into Triton's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        level = next((number for least, number in _LEVELS if record.levelno >= least), 3)
        text = self.format(record).encode(errors="replace")
        _error_delete(_log(level, record.filename.encode(errors="replace"), record.lineno, text))
