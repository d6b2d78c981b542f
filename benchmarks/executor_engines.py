"""The engines that executor_speed.py compares, and the packages they need."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor_trace import Serve
from repoagent_llm.builder import Precision


@dataclass(frozen=True, slots=True)
class Engine:
    """A name, where it is opened ("module:function"), and the packages (by import name) that it needs."""

    name: str
    where: str
    packages: tuple[str, ...] = ()
    options: tuple[Any, ...] = ()
    """What the function gets behind the checkpoint: the kind of the weights."""

    def missing(self) -> list[str]:
        """What is not installed."""
        return [package for package in self.packages if importlib.util.find_spec(package) is None]

    def open(self, checkpoint: Path) -> Serve:
        """The engine on a checkpoint."""
        module, function = self.where.split(":")
        opening: Callable[..., Serve] = getattr(importlib.import_module(module), function)
        return opening(checkpoint, *self.options)


_GENAI = ("onnxruntime_genai",)
_CTRANSLATE2 = ("ctranslate2", "transformers", "torch")
_LLAMA = ("llama_cpp", "gguf")
_OPENVINO = ("openvino",)
ENGINES = {
    engine.name: engine
    for engine in (
        Engine("repoagent fp32", "executor_ours:ours"),
        Engine("repoagent pages fp32", "executor_ours:ours_paged", _OPENVINO),
        Engine("genai generator fp32", "executor_genai:genai_generator", _GENAI),
        Engine("genai engine fp32", "executor_genai:genai_engine", _GENAI),
        Engine("llama.cpp fp32", "executor_llamacpp:llamacpp", _LLAMA),
        Engine("ctranslate2 fp32", "executor_torch:ctranslate2_generator", _CTRANSLATE2),
        Engine("transformers fp32", "executor_torch:transformers_generate", ("transformers", "torch")),
        Engine("repoagent int8", "executor_ours:ours", (), (Precision.INT8,)),
        Engine("repoagent pages int8", "executor_ours:ours_paged", _OPENVINO, (Precision.INT8,)),
        Engine("repoagent pages int8 fast", "executor_ours:ours_paged", _OPENVINO, (Precision.INT8, 32, False)),
        Engine("genai generator int8", "executor_genai:genai_generator", _GENAI, (Precision.INT8,)),
        Engine("llama.cpp q8_0", "executor_llamacpp:llamacpp", _LLAMA, ("Q8_0",)),
        Engine("ctranslate2 int8", "executor_torch:ctranslate2_generator", _CTRANSLATE2, ("int8",)),
        Engine("repoagent int4", "executor_ours:ours", (), (Precision.INT4,)),
        Engine("repoagent pages int4", "executor_ours:ours_paged", _OPENVINO, (Precision.INT4,)),
        Engine("repoagent pages int4 fast", "executor_ours:ours_paged", _OPENVINO, (Precision.INT4, 32, False)),
        Engine("genai generator int4", "executor_genai:genai_generator", _GENAI, (Precision.INT4,)),
        Engine("repoagent int4/128", "executor_ours:ours", (), (Precision.INT4, 128)),
        Engine("genai generator i4/128", "executor_genai:genai_generator", _GENAI, (Precision.INT4, 128)),
        Engine("llama.cpp q4_0", "executor_llamacpp:llamacpp", _LLAMA, ("Q4_0",)),
    )
}
