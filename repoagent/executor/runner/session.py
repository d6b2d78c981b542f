"""Opens an inference session on a decoder's changed graph."""

from typing import Any

import numpy as np
import onnxruntime as ort

from repoagent.executor.runner import surgery
from repoagent.executor.runner.options import RunnerOptions
from repoagent.executor.runner.spec import DecoderSpec

__all__ = ["make_session"]


def make_session(spec: DecoderSpec, options: RunnerOptions) -> Any:
    """An inference session on the changed graph; weights stay in the folder's own file."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    if options.threads is not None:
        settings.intra_op_num_threads = options.threads
    settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if options.spinning else "0")
    if options.yielding:
        settings.add_session_config_entry("session.force_spinning_stop", "1")
    if spec.graph is None:
        settings.add_session_config_entry("session.model_external_initializers_file_folder_path", str(spec.folder))
    elif spec.weights:
        values = [ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for array in spec.weights.values()]
        settings.add_external_initializers(list(spec.weights), values)
    graph = surgery.operate(spec, options.extra_outputs, lora=options.lora)
    return ort.InferenceSession(graph, settings, providers=["CPUExecutionProvider"])
