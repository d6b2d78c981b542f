"""The decoder's graph, apart from attention and normalisation, which the two forms write in their own operators."""

from typing import Any, Protocol

import numpy as np

from repoagent_llm.builder.architecture import Architecture
from repoagent_llm.builder.graph import GraphWriter, finite
from repoagent_llm.builder.products import Product
from repoagent_llm.builder.weights import LayerWeights, Linear, Norm, Weights


class Toolbox:
    """What both forms use: the graph, the element type, linear layers."""

    def __init__(
        self, graph: GraphWriter, shape: Architecture, dtype: Any, product: Product, *, lora: bool = False
    ) -> None:
        self.graph = graph
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._product = product
        self._lora = lora

    def weight(self, name: str, array: Any) -> str:
        """A constant in the graph's element type, all of it finite."""
        return self.graph.weight(name, finite(array, self.dtype, name))

    def integers(self, name: str, values: list[int]) -> str:
        """An int64 constant, shared by all that name it."""
        return self.graph.weight(name, np.array(values, np.int64))

    def adapted(self, x: str, layer: Linear, name: str) -> str:
        """A linear layer to which every row of the batch may add its own low-rank product.

        The inputs ``lora.NAME.a`` [batch, inputs, rank] and ``lora.NAME.b`` [batch, rank, outputs] have rank 0 when
        no row has an adapter.
        """
        if not self._lora:
            return self.linear(x, layer, name)
        outputs, inputs = layer.matrix.shape
        rank = f"rank.{name}"
        a = self.graph.input(f"lora.{name}.a", self.dtype, ["batch", inputs, rank])
        b = self.graph.input(f"lora.{name}.b", self.dtype, ["batch", rank, outputs])
        narrow = self.graph.node("MatMul", [x, a], f"{name}.narrow")
        change = self.graph.node("MatMul", [narrow, b], f"{name}.change")
        return self.graph.node("Add", [self.linear(x, layer, f"{name}.base"), change], name)

    def linear(self, x: str, layer: Linear, name: str) -> str:
        """x [batch, tokens, inputs] -> [batch, tokens, outputs], called ``name``."""
        product = self._product(x, layer, name if layer.bias is None else f"{name}.product")
        if layer.bias is not None:
            self.graph.node("Add", [product, self.weight(f"{name}.bias", layer.bias)], name)
        return name


class DecoderForm(Protocol):
    """What a form of graph writes in its own way."""

    def begin(self) -> None:
        """Declare inputs, write what all layers share."""

    def positions(self) -> str:
        """The name of int64 positions [batch, tokens], for models with learned positions."""

    def norm(self, x: str, norm: Norm, name: str) -> str:
        """Normalise x."""

    def add_norm(self, x: str, residual: str, norm: Norm, name: str) -> tuple[str, str]:
        """(the norm of x + residual, the sum)."""

    def attention(self, qkv: str, layer: LayerWeights, number: int) -> str:
        """Packed queries, keys and values -> [batch, tokens, heads * head size]; updates the cache."""

    def finish(self, hidden: str, head: Linear) -> None:
        """The LM head and the outputs."""


class DecoderWriter:
    """Writes all layers through a form."""

    def __init__(self, tools: Toolbox, form: DecoderForm, weights: Weights) -> None:
        self._tools = tools
        self._form = form
        self._weights = weights

    def write(self) -> None:
        """The whole graph."""
        self._form.begin()
        residual, mlp = self._embed(), ""
        for number in range(self._tools.shape.layers):
            layer = self._weights.layer(number)
            name = f"layers.{number}.attention_input"
            assert layer.before_attention is not None, "see Architecture.check_onnx"
            if number == 0:
                normed = self._form.norm(residual, layer.before_attention, name)
            else:
                normed, residual = self._form.add_norm(mlp, residual, layer.before_attention, name)
            mlp, residual = self._layer(normed, residual, layer, number)
        hidden, _ = self._form.add_norm(mlp, residual, self._weights.final_norm(), "last_hidden")
        self._form.finish(hidden, self._weights.head())

    def _embed(self) -> str:
        tools = self._tools
        table = tools.weight("embedding", self._weights.embedding())
        learned = self._weights.positions()
        embedded = "embedded" if learned is None else "embedded.tokens"
        tools.graph.node("Gather", [table, "input_ids"], embedded)
        if learned is not None:
            places = tools.graph.node(
                "Gather", [tools.weight("positions", learned), self._form.positions()], "embedded.positions"
            )
            tools.graph.node("Add", [embedded, places], "embedded")
        return "embedded"

    def _layer(self, normed: str, residual: str, layer: LayerWeights, number: int) -> tuple[str, str]:
        stem = f"layers.{number}"
        qkv = self._tools.adapted(normed, layer.qkv, f"{stem}.qkv")
        mixed = self._form.attention(qkv, layer, number)
        attended = self._tools.adapted(mixed, layer.attention_out, f"{stem}.attention_out")
        assert layer.before_mlp is not None
        normed, residual = self._form.add_norm(attended, residual, layer.before_mlp, f"{stem}.mlp_input")
        return self._mlp(normed, layer, stem), residual

    def _mlp(self, x: str, layer: LayerWeights, stem: str) -> str:
        graph = self._tools.graph
        assert layer.up is not None
        assert layer.down is not None
        up = self._tools.adapted(x, layer.up, f"{stem}.up")
        if layer.gate is None:
            active = graph.node("Gelu", [up], f"{stem}.active", approximate="tanh")
        else:
            gate = self._tools.adapted(x, layer.gate, f"{stem}.gate")
            squashed = graph.node("Sigmoid", [gate], f"{stem}.sigmoid")
            silu = graph.node("Mul", [gate, squashed], f"{stem}.silu")
            active = graph.node("Mul", [silu, up], f"{stem}.active")
        return self._tools.adapted(active, layer.down, f"{stem}.mlp_out")
