"""Loading ONNX models."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import onnxruntime

from repoagent.errors import InvalidArgumentError
from repoagent.serving.backends.onnxruntime.model import OnnxRuntimeModel, device_of
from repoagent.serving.backends.onnxruntime.options import session_options
from repoagent.serving.backends.onnxruntime.providers import Choice, GpuProviders, check_used
from repoagent.serving.backends.onnxruntime.session import MODEL_FILENAME, may_loop, model_file, open_session
from repoagent.serving.backends.onnxruntime.signature import left_out, signature_of
from repoagent.serving.backends.registry import warn_of_unknown
from repoagent.serving.backends.signatures import complete, validate
from repoagent.serving.instances.instance import instance_specs
from repoagent.storage.files.files import ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["OnnxRuntimeBackend"]

logger = logging.getLogger(__name__)

_SETTINGS: Final = ("default-max-batch-size", "engine-cache-directory", "provider-library")


class OnnxRuntimeBackend:
    """Serves ONNX models with ONNX Runtime: on the CPU, or with its GPU providers where it has any.

    ``settings`` are the backend's part of the server's ``backend_config``:

    - ``default-max-batch-size`` (4)
    - ``provider-library``: ``NAME=PATH``, a provider in a library; several are separated by ``:``.
    - ``engine-cache-directory``: where GPU providers keep what they build.
    """

    name: ClassVar[str] = "onnxruntime"
    platforms: ClassVar[tuple[str, ...]] = ("onnxruntime_onnx",)
    default_model_filename: ClassVar[str] = MODEL_FILENAME
    keeps_files_open: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        warn_of_unknown("onnxruntime", settings or {}, _SETTINGS)
        text = (settings or {}).get("default-max-batch-size", "4")
        try:
            self._default_max_batch_size = int(text)
        except ValueError:
            raise InvalidArgumentError(f"default-max-batch-size must be a whole number, not '{text}'") from None
        cache = (settings or {}).get("engine-cache-directory", "")
        libraries = _libraries((settings or {}).get("provider-library", ""))
        self._providers = GpuProviders(libraries, Path(cache) if cache else None)

    def gpus(self) -> Sequence[int]:
        """See :class:`~repoagent.serving.instances.backend.Backend`: those of ONNX Runtime's GPU providers.

        Raises:
            UnsupportedError: a provider's library cannot be loaded.
        """
        return self._providers.gpus()

    def auto_complete(self, config: "ModelConfig", files: ModelFiles, version: int) -> None:
        """See :class:`~repoagent.serving.instances.backend.Backend`. Only looks at the file if something is missing."""
        if config.input and config.output:
            return
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        signature = signature_of(open_session(config, files, version, options))
        complete(config, signature, default_max_batch_size=self._default_max_batch_size)

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> OnnxRuntimeModel:
        """See :class:`~repoagent.serving.instances.backend.Backend`."""
        instances = sum(max(1, group.count) for group in config.instance_group) or 1

        def open_on(device: int | None) -> Any:
            """A session on the CPU for None."""
            choices = [] if device is None else self._choose(config, files, version, device)
            session = open_session(config, files, version, session_options(config, instances), choices)
            check_used(config, session, choices)
            return session

        places = dict.fromkeys(device_of(spec) for spec in instance_specs(config)) or {None: None}
        sessions = {place: open_on(place) for place in places}
        session = next(iter(sessions.values()))
        signature = signature_of(session)
        for reason in left_out(session):
            logger.warning("model '%s' is served without one of its outputs: %s", config.name, reason)
        validate(config, signature)
        return OnnxRuntimeModel(config, sessions, signature, open_on, loops=may_loop(config, files, version))

    def _choose(self, config: "ModelConfig", files: ModelFiles, version: int, device: int) -> list[Choice]:
        _, path = model_file(config, files, version)
        return self._providers.choose(config, device, hashlib.sha256(files.bytes(path)).hexdigest())


def _libraries(text: str) -> dict[str, Path]:
    """Read ``NAME=PATH:NAME=PATH``.

    Raises:
        InvalidArgumentError: it is something else.
    """
    libraries = {}
    for one in filter(None, text.split(":")):
        name, _, path = one.partition("=")
        if not name or not Path(path).is_absolute():
            raise InvalidArgumentError(f"provider-library must be NAME=PATH with an absolute path, not '{one}'")
        libraries[name] = Path(path)
    return libraries
