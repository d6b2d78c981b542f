"""ONNX in, ONNX out: ONNX Runtime's graph optimisations, run once and written down."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnxruntime as ort

from repoagent.api import InvalidArgumentError, UnavailableError
from repoagent_convert.options import Level

__all__ = ["RUNTIME_VERSION", "Optimization"]

RUNTIME_VERSION: Final[str] = ort.__version__

_ERRORS_ONLY: Final = 3
_MIN_EXTERNAL_BYTES: Final = "1024"


@dataclass(frozen=True, slots=True)
class Optimization:
    """One model file to optimise.

    ``name`` is what messages call ``source``; ``output`` is the name of the result. With ``external`` its weights go to
    a file of their own, ``<output>.data``: a must above 2 GiB, the most that one ONNX file can hold.
    """

    source: Path
    name: str
    output: str
    level: Level
    external: bool

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the files that may be written."""
        return (self.output, f"{self.output}.data")

    def write_to(self, directory: Path) -> None:
        """Write the optimised model into ``directory``.

        Raises:
            UnavailableError: there is no room for the result.
            InvalidArgumentError: ONNX Runtime cannot load the model, or cannot write the result.
        """
        try:
            # The session optimises and writes as it is made; nothing else is wanted of it.
            ort.InferenceSession(str(self.source), self._session_options(directory), ["CPUExecutionProvider"])
        except Exception as error:  # The errors of ONNX Runtime have no base of their own.
            self._check_room(directory)
            raise InvalidArgumentError(f"{self.name} cannot be optimised: {self._public(error, directory)}") from error

    def _check_room(self, directory: Path) -> None:
        """ONNX Runtime does not say why it could not write; this does where the disk may be it."""
        free = shutil.disk_usage(directory).free
        if free < self.source.stat().st_size:
            raise UnavailableError(
                f"{self.name} cannot be optimised: no room for the result ({free} bytes are free where it is written)"
            )

    def _session_options(self, directory: Path) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.graph_optimization_level = _level(self.level)
        options.optimized_model_filepath = str(directory / self.output)
        options.log_severity_level = _ERRORS_ONLY
        options.add_session_config_entry("session.disable_prepacking", "1")
        if self.external:
            prefix = "session.optimized_model_external_initializers"
            options.add_session_config_entry(f"{prefix}_file_name", self.results[1])
            options.add_session_config_entry(f"{prefix}_min_size_in_bytes", _MIN_EXTERNAL_BYTES)
        return options

    def _public(self, error: Exception, directory: Path) -> str:
        """The text of ``error`` without the private directories it may name."""
        text = str(error).replace(str(self.source), self.name).replace(f"{self.source.parent}/", "")
        return text.replace(f"{directory}/", "").removeprefix("[ONNXRuntimeError] : ")


def _level(level: Level) -> ort.GraphOptimizationLevel:
    levels = ort.GraphOptimizationLevel
    return {
        Level.BASIC: levels.ORT_ENABLE_BASIC,
        Level.EXTENDED: levels.ORT_ENABLE_EXTENDED,
        Level.ALL: levels.ORT_ENABLE_ALL,
    }[level]
