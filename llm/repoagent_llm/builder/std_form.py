"""The graph in standard operators of opset 24 only, within the limits of TensorRT's operator list.

The cache is scattered into outside of Attention, everything is 4-D, and the mask comes from the positions.
"""

import numpy as np

from repoagent_llm.builder.architecture import rope_tables
from repoagent_llm.builder.decoder import Toolbox
from repoagent_llm.builder.weights import LayerWeights, Linear, Norm

OPSET = 24


class StdForm:
    """Inputs input_ids, position_ids, write_indices, logits_index and the cache; logits of the rows asked for."""

    def __init__(self, tools: Toolbox, capacity: int | None = None) -> None:
        """Write with ``tools``; ``capacity``: how many tokens a row of the cache has, where that is fixed."""
        self._tools = tools
        self._capacity: int | str = capacity or "capacity"
        self._graph = tools.graph
        self._shape = tools.shape

    def begin(self) -> None:
        """See DecoderForm."""
        graph, shape = self._graph, self._shape
        graph.input("input_ids", np.int64, ["batch", "tokens"])
        graph.input("position_ids", np.int64, ["batch", "tokens"])
        graph.input("write_indices", np.int64, ["batch"])
        graph.input("logits_index", np.int64, ["rows"])
        for number in range(shape.layers):
            for part in ("key", "value"):
                size: list[str | int] = ["batch", shape.kv_heads, self._capacity, shape.head_size]
                graph.input(f"past_key_values.{number}.{part}", self._tools.dtype, size)
        self._mask()
        if not shape.is_gpt2:
            cosines, sines = rope_tables(shape)
            self._tools.weight("cos_cache", cosines)
            self._tools.weight("sin_cache", sines)

    def _mask(self) -> None:
        """True [batch, 1, tokens, capacity] where a cached token is not after the token that attends."""
        graph = self._graph
        columns = self._columns()
        places = graph.node("Unsqueeze", ["position_ids", self._tools.integers("mask.axes", [1, 3])], "places")
        seen = graph.node("LessOrEqual", [columns, places], "mask.causal")
        window = self._shape.sliding_window
        if window is None:
            graph.node("Identity", [seen], "mask")
            return
        first = graph.node("Sub", [places, graph.weight("window", np.array(window, np.int64))], "mask.window_start")
        near = graph.node("Greater", [columns, first], "mask.near")
        graph.node("And", [seen, near], "mask")

    def _columns(self) -> str:
        """The places of a row of the cache: 0, 1, 2, ..."""
        graph = self._graph
        if isinstance(self._capacity, int):
            return graph.weight("columns", np.arange(self._capacity, dtype=np.int64))
        capacity = graph.node("Shape", ["past_key_values.0.key"], "capacity", start=2, end=3)
        limit = graph.node("Squeeze", [capacity], "capacity.scalar")
        start = graph.weight("zero.scalar", np.array(0, np.int64))
        step = graph.weight("one.scalar", np.array(1, np.int64))
        return graph.node("Range", [start, limit, step], "columns")

    def positions(self) -> str:
        """See DecoderForm."""
        return "position_ids"

    def norm(self, x: str, norm: Norm, name: str) -> str:
        """See DecoderForm."""
        scale = self._tools.weight(f"{name}.scale", norm.scale)
        epsilon = self._shape.norm_epsilon
        if norm.bias is None:
            return self._graph.node("RMSNormalization", [x, scale], name, axis=-1, epsilon=epsilon)
        bias = self._tools.weight(f"{name}.bias", norm.bias)
        return self._graph.node("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=epsilon)

    def add_norm(self, x: str, residual: str, norm: Norm, name: str) -> tuple[str, str]:
        """See DecoderForm."""
        total = self._graph.node("Add", [x, residual], f"{name}.residual")
        return self.norm(total, norm, name), total

    def attention(self, qkv: str, layer: LayerWeights, number: int) -> str:
        """See DecoderForm."""
        graph, shape, stem = self._graph, self._shape, f"layers.{number}"
        sizes = [shape.heads * shape.head_size] + [shape.kv_heads * shape.head_size] * 2
        names = [f"{stem}.query", f"{stem}.key", f"{stem}.value"]
        graph.nodes("Split", [qkv, self._tools.integers("qkv.sizes", sizes)], names, axis=2)
        query = self._place(self._heads(names[0], shape.heads, layer.query_norm))
        cached = [
            self._store(self._place(self._heads(names[1], shape.kv_heads, layer.key_norm)), number, "key"),
            self._store(self._heads(names[2], shape.kv_heads, None), number, "value"),
        ]
        scale = shape.head_size**-0.5
        mixed = graph.node("Attention", [query, *cached, "mask"], f"{stem}.mixed.heads", scale=scale)
        turned = graph.node("Transpose", [mixed], f"{stem}.mixed.turned", perm=[0, 2, 1, 3])
        flat = self._tools.integers("flat", [0, 0, shape.heads * shape.head_size])
        return graph.node("Reshape", [turned, flat], f"{stem}.mixed")

    def _heads(self, x: str, heads: int, norm: Norm | None) -> str:
        """[batch, tokens, heads * size] -> [batch, heads, tokens, size]."""
        target = self._tools.integers(f"heads.{heads}", [0, 0, heads, self._shape.head_size])
        apart = self._graph.node("Reshape", [x, target], f"{x}.heads")
        if norm is not None:
            apart = self.norm(apart, norm, f"{x}.normed")
        return self._graph.node("Transpose", [apart], f"{x}.turned", perm=[0, 2, 1, 3])

    def _place(self, x: str) -> str:
        if self._shape.is_gpt2:
            return x
        operands = [x, "cos_cache", "sin_cache", "position_ids"]
        return self._graph.node("RotaryEmbedding", operands, f"{x}.rotated")

    def _store(self, x: str, number: int, part: str) -> str:
        operands = [f"past_key_values.{number}.{part}", x, "write_indices"]
        return self._graph.node("TensorScatter", operands, f"present.{number}.{part}", axis=-2)

    def finish(self, hidden: str, head: Linear) -> None:
        """See DecoderForm."""
        graph, shape = self._graph, self._shape
        rows = graph.node("Flatten", [hidden], "rows.all", axis=2)
        wanted = graph.node("Gather", [rows, "logits_index"], "rows.wanted", axis=0)
        self._tools.linear(wanted, head, "logits")
        graph.output("logits", self._tools.dtype, ["rows", shape.vocab_size])
        for number in range(shape.layers):
            for part in ("key", "value"):
                size: list[str | int] = ["batch", shape.kv_heads, self._capacity, shape.head_size]
                graph.output(f"present.{number}.{part}", self._tools.dtype, size)
