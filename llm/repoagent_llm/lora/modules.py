"""LoRA modules by TensorRT-LLM's numbers, and where in our graphs they go."""

from dataclasses import dataclass
from enum import IntEnum

from repoagent_llm.runner.protocol import LoraShape
from repoagent_llm.types.executor_errors import CheckError


class LoraModule(IntEnum):
    """The first number of a row of ``LoraConfig.config``."""

    ATTN_QKV = 0
    ATTN_Q = 1
    ATTN_K = 2
    ATTN_V = 3
    ATTN_DENSE = 4
    MLP_H_TO_4H = 5
    MLP_4H_TO_H = 6
    MLP_GATE = 7
    CROSS_ATTN_QKV = 8
    CROSS_ATTN_Q = 9
    CROSS_ATTN_K = 10
    CROSS_ATTN_V = 11
    CROSS_ATTN_DENSE = 12
    MOE_H_TO_4H = 13
    MOE_4H_TO_H = 14
    MOE_GATE = 15
    MOE_ROUTER = 16
    MLP_ROUTER = 17
    MLP_GATE_UP = 18


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """Columns [start, stop) of what a linear layer of the graph gives; ``inputs``: the columns it takes."""

    site: str
    inputs: int
    start: int
    stop: int

    @property
    def outputs(self) -> int:
        """How many columns the module gives."""
        return self.stop - self.start


def columns_of(number: int, layer: int, shape: LoraShape) -> ColumnRange:
    """Where a module goes; raises ``CheckError``, with TensorRT-LLM's texts, for one that the model does not have.

    ``MLP_H_TO_4H`` is the layer whose output is activated: ``gate_proj`` of a gated MLP, of which ``MLP_GATE`` is
    ``up_proj``; that is how TensorRT-LLM converts checkpoints and adapters.
    """
    if not 0 <= layer < shape.layers:
        raise CheckError(f"Expected layerId to be in the range [0, numModelLayers), not {layer} of {shape.layers}")
    try:
        module = LoraModule(number)
    except ValueError:
        raise CheckError(f"lora module INVALID (number {number}) not enabled for this model") from None
    gated = f"layers.{layer}.gate" in shape.sites
    joined = f"layers.{layer}.qkv" in shape.sites
    names = {
        LoraModule.ATTN_QKV: "qkv",
        LoraModule.ATTN_Q: "qkv" if joined else "q",
        LoraModule.ATTN_K: "qkv" if joined else "k",
        LoraModule.ATTN_V: "qkv" if joined else "v",
        LoraModule.ATTN_DENSE: "attention_out",
        LoraModule.MLP_H_TO_4H: "gate" if gated else "up",
        LoraModule.MLP_4H_TO_H: "mlp_out",
    }
    if gated:
        names[LoraModule.MLP_GATE] = "up"
    site = f"layers.{layer}.{names.get(module, '')}"
    if site not in shape.sites:
        raise CheckError(f"lora module {module.name.lower()} not enabled for this model")
    inputs, outputs = shape.sites[site]
    start, stop = _columns(module, outputs, shape.kv_size) if joined else (0, outputs)
    return ColumnRange(site, inputs, start, stop)


def _columns(module: LoraModule, outputs: int, kv_size: int) -> tuple[int, int]:
    """Queries, keys and values lie side by side in one layer."""
    queries = outputs - 2 * kv_size
    if module is LoraModule.ATTN_Q:
        return 0, queries
    if module is LoraModule.ATTN_K:
        return queries, queries + kv_size
    if module is LoraModule.ATTN_V:
        return queries + kv_size, outputs
    return 0, outputs
