"""The graph in onnxruntime-genai's layout: GroupQueryAttention and fused norms, fast on ONNX Runtime's CPU provider."""

from typing import Any

import numpy as np

from repoagent_llm.builder.architecture import rope_tables
from repoagent_llm.builder.decoder import Toolbox
from repoagent_llm.builder.graph import MICROSOFT
from repoagent_llm.builder.weights import LayerWeights, Linear, Norm

OPSET = 22


class GqaForm:
    """Inputs input_ids, attention_mask, past_key_values; outputs logits of all tokens and the grown cache."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools
        self._graph = tools.graph
        self._shape = tools.shape

    def begin(self) -> None:
        """See DecoderForm."""
        graph, shape = self._graph, self._shape
        graph.input("input_ids", np.int64, ["batch_size", "sequence_length"])
        graph.input("attention_mask", np.int64, ["batch_size", "total_sequence_length"])
        if shape.is_gpt2:
            graph.input("position_ids", np.int64, ["batch_size", "sequence_length"])
        self._cache("past_key_values", "past_sequence_length", graph.input)
        self._lengths()
        if not shape.is_gpt2:
            cosines, sines = rope_tables(shape)
            self._tools.weight("cos_cache", cosines)
            self._tools.weight("sin_cache", sines)

    def _cache(self, stem: str, tokens: str, declare: Any) -> None:
        shape = self._shape
        for part in ("key", "value"):
            for number in range(shape.layers):
                declare(
                    f"{stem}.{number}.{part}",
                    self._tools.dtype,
                    ["batch_size", shape.kv_heads, tokens, shape.head_size],
                )

    def _lengths(self) -> None:
        """Row lengths minus one and the longest row, from the mask."""
        graph = self._graph
        one = self._tools.integers("one", [1])
        summed = graph.node("ReduceSum", ["attention_mask", one], "mask.sum", keepdims=0)
        less = graph.node("Sub", [summed, one], "mask.sum_less_one")
        graph.node("Cast", [less], "seqlens_k", to=6)
        shape = graph.node("Shape", ["attention_mask"], "mask.shape")
        index = graph.weight("one.scalar", np.array(1, np.int64))
        total = graph.node("Gather", [shape, index], "mask.total", axis=0)
        graph.node("Cast", [total], "total_length", to=6)

    def positions(self) -> str:
        """See DecoderForm."""
        return "position_ids"

    def norm(self, x: str, norm: Norm, name: str) -> str:
        """See DecoderForm."""
        scale = self._tools.weight(f"{name}.scale", norm.scale)
        if norm.bias is None:
            return self._graph.node(
                "SimplifiedLayerNormalization",
                [x, scale],
                name,
                axis=-1,
                epsilon=self._shape.norm_epsilon,
                stash_type=1,
            )
        bias = self._tools.weight(f"{name}.bias", norm.bias)
        return self._graph.node("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=self._shape.norm_epsilon)

    def add_norm(self, x: str, residual: str, norm: Norm, name: str) -> tuple[str, str]:
        """See DecoderForm."""
        operands = [residual, x, self._tools.weight(f"{name}.scale", norm.scale)]
        op = "SkipSimplifiedLayerNormalization"
        if norm.bias is not None:
            op = "SkipLayerNormalization"
            operands.append(self._tools.weight(f"{name}.bias", norm.bias))
        outputs = [name, "", "", f"{name}.residual"]
        self._graph.nodes(op, operands, outputs, domain=MICROSOFT, epsilon=self._shape.norm_epsilon)
        return name, outputs[3]

    def attention(self, qkv: str, layer: LayerWeights, number: int) -> str:
        """See DecoderForm."""
        shape, stem = self._shape, f"layers.{number}"
        query, key, value = (qkv, "", "") if layer.query_norm is None else self._split(qkv, layer, stem)
        rotary = not shape.is_gpt2
        outputs = [f"{stem}.mixed", f"present.{number}.key", f"present.{number}.value"]
        self._graph.nodes(
            "GroupQueryAttention",
            [
                query,
                key,
                value,
                f"past_key_values.{number}.key",
                f"past_key_values.{number}.value",
                "seqlens_k",
                "total_length",
                *(["cos_cache", "sin_cache"] if rotary else []),
            ],
            outputs,
            domain=MICROSOFT,
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            scale=shape.head_size**-0.5,
            do_rotary=int(rotary),
            local_window_size=-1 if shape.sliding_window is None else shape.sliding_window,
        )
        return outputs[0]

    def _split(self, qkv: str, layer: LayerWeights, stem: str) -> tuple[str, str, str]:
        """Queries, keys and values apart, the first two normalised per head."""
        shape, names = self._shape, [f"{stem}.query", f"{stem}.key", f"{stem}.value"]
        sizes = [shape.heads * shape.head_size] + [shape.kv_heads * shape.head_size] * 2
        self._graph.nodes("Split", [qkv, self._tools.integers("qkv.sizes", sizes)], names, axis=2)
        assert layer.query_norm is not None
        assert layer.key_norm is not None
        query = self._norm_heads(names[0], layer.query_norm, shape.heads)
        return query, self._norm_heads(names[1], layer.key_norm, shape.kv_heads), names[2]

    def _norm_heads(self, x: str, norm: Norm, heads: int) -> str:
        graph, size = self._graph, self._shape.head_size
        apart = graph.node("Reshape", [x, self._tools.integers(f"heads.{heads}", [0, 0, heads, size])], f"{x}.heads")
        normed = self.norm(apart, norm, f"{x}.normed")
        return graph.node("Reshape", [normed, self._tools.integers(f"flat.{heads}", [0, 0, heads * size])], f"{x}.flat")

    def finish(self, hidden: str, head: Linear) -> None:
        """See DecoderForm."""
        self._tools.linear(hidden, head, "logits")
        self._graph.output("logits", self._tools.dtype, ["batch_size", "sequence_length", self._shape.vocab_size])
        self._cache("present", "total_sequence_length", self._graph.output)
