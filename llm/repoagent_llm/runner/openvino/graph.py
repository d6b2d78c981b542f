"""A decoder as a graph with paged attention, from the description and the weights of its folder."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent_llm.runner.decoder_spec import DecoderSpec
from repoagent_llm.runner.openvino.operator import constant, integers, openvino, paged_attention, parameter
from repoagent_llm.runner.paged_folder import FolderWeights, PagedLayout
from repoagent_llm.types.executor_errors import CheckError, DecoderError

__all__ = ["PagedGraph"]


class PagedGraph:
    """``model``: takes packed tokens [T]. ``sites``: (inputs, outputs) of layers that take adapters.

    Hidden states are [T, 1, size], the form for which the plugin has fused kernels. The graph shares the memory of
    ``weights``, and of what ``kept`` holds: both must live as long as what is compiled of it.
    """

    def __init__(
        self, spec: DecoderSpec, layout: PagedLayout, weights: FolderWeights, extras: Sequence[str], *, lora: bool
    ) -> None:
        self.kept: list[Any] = [weights]
        self.sites: dict[str, tuple[int, int]] = {}
        self._spec = spec
        self._layout = layout
        self._weights = weights
        self._lora = lora
        self._op = openvino().op
        self._inputs: list[Any] = []
        self._named: dict[str, Any] = {}
        self.model = self._build(extras)

    def _build(self, extras: Sequence[str]) -> Any:
        op, spec = self._op, self._spec
        tokens, positions = self._input("input_ids", "i64", [-1]), self._input("position_ids", "i64", [-1])
        names = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
        tables = [self._input(name, "i32", [-1]) for name in names]
        longest, rows = self._input("max_context_len", "i32", []), self._input("rows", "i64", [-1])
        self._mask = self._input("lora.mask", "f32", [-1, 1, -1]) if self._lora else None
        x, turns = self._embed(tokens, positions), self._turns(positions)
        for number in range(spec.layers):
            stem = f"layers.{number}"
            normed = self._norm(x, f"{stem}.attention_input")
            x = op.add(x, self._attention(normed, stem, number, [tables, longest], turns))
            x = op.add(x, self._mlp(self._norm(x, f"{stem}.mlp_input"), stem))
        hidden = op.gather(self._norm(x, "last_hidden"), rows, constant(np.int64(0)))
        logits = op.matmul(hidden, self._head(), False, True)
        best = op.topk(logits, constant(np.int64(1)), -1, "max", "none", index_element_type="i32")
        results = [op.result(logits), op.result(best.output(1)), *map(self._extra, extras)]
        return openvino().ov.Model(results, self._inputs, "decoder")

    def _input(self, name: str, kind: str, shape: Sequence[int]) -> Any:
        made = parameter(name, kind, shape)
        self._inputs.append(made)
        return made

    def _extra(self, name: str) -> Any:
        if name not in self._named:
            known = "last_hidden, layers.N.attention_input, layers.N.qkv, layers.N.mixed and the like"
            raise CheckError(f"{self._spec.place}: the decoder has no tensor {name!r}; it has {known}")
        return self._op.result(self._op.squeeze(self._named[name], integers(1)))

    def _note(self, name: str, x: Any) -> Any:
        self._named[name] = x
        return x

    def _shared(self, array: npt.NDArray[Any], shape: Sequence[int], kind: str) -> Any:
        """A constant in the memory of ``array``."""
        ov = openvino().ov
        self.kept.append(array)
        return ov.op.Constant(ov.Tensor(array, ov.Shape(list(shape)), getattr(ov.Type, kind)))

    def _matrix(self, name: str, outputs: int, inputs: int, kept: str) -> Any:
        """[outputs, inputs] in float32; the plugin keeps it in the form in which it lies in the file."""
        op, weights = self._op, self._weights
        if kept == "fp32":
            return self._shared(weights.array(name, "F32", outputs, inputs), (outputs, inputs), "f32")
        if kept == "bf16":
            halves = self._shared(weights.array(name, "BF16", outputs, inputs), (outputs, inputs), "bf16")
            return op.convert(halves, "f32")
        if kept == "int8":
            levels = self._shared(weights.array(name, "I8", outputs, inputs), (outputs, inputs), "i8")
            scales = constant(weights.array(f"{name}.scale", "F32", outputs, 1))
            return op.multiply(op.convert(levels, "f32"), scales)
        block = self._layout.block
        if inputs % block or block % 2:
            raise DecoderError(f"{inputs} weights cannot be in blocks of {block}", source=self._spec.place)
        count = inputs // block
        packed = weights.array(name, "U8", outputs, count, block // 2)
        levels = self._shared(packed, (outputs, count, block), "i4")
        scales = constant(weights.array(f"{name}.scale", "F16", outputs, count, 1))
        spread = op.multiply(op.convert(levels, "f16"), scales)
        return op.convert(op.reshape(spread, integers(outputs, inputs), False), "f32")

    def _vector(self, name: str, size: int, rank: int = 3) -> Any:
        return constant(self._weights.array(name, "F32", size).reshape((1,) * (rank - 1) + (size,)))

    def _linear(self, x: Any, name: str, inputs: int, outputs: int) -> Any:
        """A linear layer, with what each token's adapter adds to it."""
        op = self._op
        y = op.matmul(x, self._matrix(name, outputs, inputs, self._layout.matrices), False, True)
        if f"{name}.bias" in self._weights:
            y = op.add(y, self._vector(f"{name}.bias", outputs))
        if self._lora:
            self.sites[name] = inputs, outputs
            a = self._input(f"lora.{name}.a", "f32", [inputs, -1])
            b = self._input(f"lora.{name}.b", "f32", [-1, outputs])
            y = op.add(y, op.matmul(op.multiply(op.matmul(x, a, False, False), self._mask), b, False, False))
        return self._note(name, y)

    def _norm(self, x: Any, name: str, size: int | None = None, rank: int = 3) -> Any:
        op, layout = self._op, self._layout
        size = size or self._spec.hidden_size

        def number(value: float) -> Any:
            return constant(np.full((1,) * rank, value, np.float32))

        if layout.root_mean_square:
            mean = op.reduce_mean(op.power(x, number(2)), integers(-1), True)
            x = op.multiply(x, op.divide(number(1), op.sqrt(op.add(mean, number(layout.norm_epsilon)))))
        else:
            x = op.mvn(x, integers(-1), True, layout.norm_epsilon, "inside_sqrt")
        x = op.multiply(x, self._vector(f"{name}.scale", size, rank))
        if f"{name}.bias" in self._weights:
            x = op.add(x, self._vector(f"{name}.bias", size, rank))
        return self._note(name, x) if rank == 3 else x

    def _embed(self, tokens: Any, positions: Any) -> Any:
        op, spec, zero = self._op, self._spec, constant(np.int32(0))
        kept = "bf16" if self._layout.matrices == "bf16" else "fp32"
        table = self._matrix("embedding", spec.vocab_size, spec.hidden_size, kept)
        x = op.unsqueeze(op.gather(table, op.convert(tokens, "i32"), zero), integers(1))
        places = self._input("embedding_places", "i64", [-1])
        rows = self._input("embeddings", "f32", [-1, spec.hidden_size])
        x = op.scatter_update(x, places, op.unsqueeze(rows, integers(1)), constant(np.int64(0)))
        if not self._layout.rotary:
            learned = self._matrix("positions", spec.context_length, spec.hidden_size, kept)
            x = op.add(x, op.unsqueeze(op.gather(learned, op.convert(positions, "i32"), zero), integers(1)))
        return x

    def _turns(self, positions: Any) -> tuple[Any, Any] | None:
        """Cosines and sines [T, 1, 1, head size]."""
        if not self._layout.rotary:
            return None
        op, size = self._op, self._spec.head_size
        speeds = constant(self._weights.array("rotary", "F32", size // 2).reshape(1, 1, -1))
        at = op.unsqueeze(op.unsqueeze(op.convert(positions, "f32"), integers(1)), integers(2))
        angles = op.matmul(at, speeds, False, False)
        angles = op.concat([angles, angles], -1)
        return op.unsqueeze(op.cos(angles), constant(np.int64(1))), op.unsqueeze(op.sin(angles), constant(np.int64(1)))

    def _attention(self, x: Any, stem: str, number: int, tables: Sequence[Any], turns: tuple[Any, Any] | None) -> Any:
        op, spec, layout = self._op, self._spec, self._layout
        queries, kv = layout.heads * spec.head_size, spec.kv_heads * spec.head_size
        qkv = self._linear(x, f"{stem}.qkv", spec.hidden_size, queries + 2 * kv)
        parts = op.variadic_split(qkv, constant(np.int64(2)), integers(queries, kv, kv))
        query = self._heads(parts.output(0), f"{stem}.query_norm", layout.heads, turns)
        key = self._heads(parts.output(1), f"{stem}.key_norm", spec.kv_heads, turns)
        value = op.reshape(parts.output(2), integers(0, -1), True)
        caches = [self._input(f"{part}_cache.{number}", "dynamic", [-1] * 4) for part in ("key", "value")]
        mixed = paged_attention(
            [query, key, value],
            caches,
            *tables,
            kv_heads=spec.kv_heads,
            head_size=spec.head_size,
            window=layout.window,
        )
        mixed = self._note(f"{stem}.mixed", op.unsqueeze(mixed, integers(1)))
        return self._linear(mixed, f"{stem}.attention_out", queries, spec.hidden_size)

    def _heads(self, x: Any, norm: str, heads: int, turns: tuple[Any, Any] | None) -> Any:
        """Queries or keys [T, 1, heads * size], normalised and turned -> [T, heads * size]."""
        op, size = self._op, self._spec.head_size
        x = op.reshape(x, integers(0, 0, heads, size), True)
        if self._layout.norms_heads:
            x = self._norm(x, norm, size, 4)
        x = op.transpose(x, integers(0, 2, 1, 3))
        if turns is not None:
            first = op.slice(x, integers(0), integers(size // 2), integers(1), integers(3))
            second = op.slice(x, integers(size // 2), integers(2**63 - 1), integers(1), integers(3))
            less = op.multiply(second, constant(np.full((1, 1, 1, 1), -1, np.float32)))
            x = op.add(op.multiply(x, turns[0]), op.multiply(op.concat([less, first], -1), turns[1]))
        return op.reshape(op.transpose(x, integers(0, 2, 1, 3)), integers(0, -1), True)

    def _mlp(self, x: Any, stem: str) -> Any:
        op, hidden, inner = self._op, self._spec.hidden_size, self._layout.inner_size
        up = self._linear(x, f"{stem}.up", hidden, inner)
        if self._layout.gated:
            active = op.multiply(op.swish(self._linear(x, f"{stem}.gate", hidden, inner)), up)
        else:
            active = op.gelu(up, "tanh")
        return self._linear(active, f"{stem}.mlp_out", inner, hidden)

    def _head(self) -> Any:
        spec = self._spec
        kept = "int8" if self._layout.matrices == "int4" else self._layout.matrices
        tied = "head" not in self._weights
        return self._matrix("embedding" if tied else "head", spec.vocab_size, spec.hidden_size, kept)
