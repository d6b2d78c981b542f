"""One loaded version of an ONNX model: a session per device, which its instances share."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from repoagent.serving.backends.onnxruntime.options import run_options
from repoagent.serving.backends.onnxruntime.runner import OnnxRuntimeRunner
from repoagent.serving.backends.signatures import Signature
from repoagent.serving.instances.backend import BackendModel, InstanceSpec

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["OnnxRuntimeModel", "device_of"]


def device_of(spec: InstanceSpec) -> int | None:
    """The device of an instance; None for the CPU."""
    return spec.device_id if spec.kind == "GPU" else None


class OnnxRuntimeModel(BackendModel):
    """One version: a single session per device, whatever the number of instances.

    A session may be run by many threads at once; sharing it keeps one copy of the weights and one thread pool.
    Triton makes one per instance unless ``share_session_between_instances`` is set, because there an instance may
    also be a GPU.
    """

    def __init__(
        self,
        config: "ModelConfig",
        sessions: Mapping[int | None, Any],
        signature: Signature,
        open_on: Callable[[int | None], Any],
        *,
        loops: bool = False,
    ) -> None:
        """``sessions``: by device, None for the CPU. ``open_on`` opens one where an instance is added later.

        ``loops``: see ``may_loop``.
        """
        self._sessions = dict(sessions)
        self._open_on = open_on
        self._lock = threading.Lock()
        self._signature = signature
        self._outputs = [item.name for item in config.output]
        self._new_options = partial(run_options, config)
        self._loops = loops
        self._batching = config.max_batch_size > 0

    def create_instance(self, spec: InstanceSpec) -> OnnxRuntimeRunner:
        """See :class:`~repoagent.serving.instances.backend.BackendModel`.

        Raises:
            UnsupportedError: the instance is to run on a GPU, and ONNX Runtime cannot use it.
        """
        place = device_of(spec)
        with self._lock:
            session = self._sessions.get(place)
            if session is None:
                session = self._sessions[place] = self._open_on(place)
        return OnnxRuntimeRunner(
            session, self._signature, self._outputs, self._new_options, batching=self._batching, loops=self._loops
        )

    def close(self) -> None:
        """See :class:`~repoagent.serving.instances.backend.BackendModel`."""
        self._sessions.clear()
