"""A decoder as a graph with paged attention, from the description and the weights of its folder."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.runner.decoder_spec import DecoderSpec
from repoagent_llm.runner.openvino.operator import constant, integers, openvino, paged_attention, parameter
from repoagent_llm.runner.paged_folder import WIDE_BLOCK, ExpertLayout, FolderWeights, PagedLayout
from repoagent_llm.runner.rope import rope_speeds
from repoagent_llm.types.executor_errors import CheckError, DecoderError

_CLAMP: Final = 7.0
_STEEPNESS: Final = 1.702
"""Of the activation of gpt-oss."""


class PagedGraph:
    """``model``: takes packed tokens [T]. ``sites``: (inputs, outputs) of layers that take adapters.

    Hidden states are [T, 1, size], the form for which the plugin has fused kernels. The graph shares the memory of
    ``weights``, and of what ``kept`` holds: both must live as long as what is compiled of it. ``length``: tokens of the
    longest text, by which some rotary embeddings go.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        layout: PagedLayout,
        weights: FolderWeights,
        extras: Sequence[str],
        *,
        lora: bool,
        length: int,
    ) -> None:
        self.kept: list[Any] = [weights]
        self.sites: dict[str, tuple[int, int]] = {}
        self._spec = spec
        self._layout = layout
        self._weights = weights
        self._lora = lora
        self._length = length
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
            mixed = self._attention(self._norm(x, f"{stem}.attention_input"), number, [tables, longest], turns)
            x = self._add(x, self._norm(mixed, f"{stem}.attention_added"))
            wide = self._norm(x, f"{stem}.mlp_input")
            sparse = f"{stem}.experts.router" in self._weights
            added = self._experts(wide, f"{stem}.experts") if sparse else self._mlp(wide, stem, self._layout.inner_size)
            x = self._add(x, self._norm(added, f"{stem}.mlp_added"))
        hidden = op.gather(self._norm(x, "last_hidden"), rows, constant(np.int64(0)))
        logits = self._scaled(op.matmul(hidden, self._head(), False, True), "logits")
        best = op.topk(logits, constant(np.int64(1)), -1, "max", "none", index_element_type="i32")
        results = [op.result(logits), op.result(best.output(1)), *map(self._extra, extras)]
        return openvino().ov.Model(results, self._inputs, "decoder")

    def _scaled(self, x: Any, name: str) -> Any:
        """x [T, 1, n], times one of the multipliers."""
        factor = self._layout.multipliers[name]
        return x if factor == 1 else self._op.multiply(x, constant(np.full((1, 1, 1), factor, np.float32)))

    def _add(self, x: Any, part: Any) -> Any:
        return self._op.add(x, self._scaled(part, "residual"))

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

    def _matrix(self, name: str, outputs: int, inputs: int, kept: str = "", *, count: int = 0) -> Any:
        """[outputs, inputs] in float32; the plugin keeps it in the form in which it lies in the file.

        ``count``: of experts, whose matrices lie one below the other; then it is [count, outputs, inputs].
        """
        op, weights, kept = self._op, self._weights, kept or self._layout.matrices
        rows, shape = (count or 1) * outputs, (*([count] if count else ()), outputs)
        if kept == "fp32":
            return self._shared(weights.array(name, "F32", rows, inputs), (*shape, inputs), "f32")
        if kept == "bf16":
            halves = self._shared(weights.array(name, "BF16", rows, inputs), (*shape, inputs), "bf16")
            return op.convert(halves, "f32")
        if kept == "int8":
            if len(weights.shape(f"{name}.scale")) > 2:
                return self._wide_blocks(name, rows, shape, inputs)
            levels = self._shared(weights.array(name, "I8", rows, inputs), (*shape, inputs), "i8")
            scales = constant(weights.array(f"{name}.scale", "F32", rows, 1).reshape(*shape, 1))
            return op.multiply(op.convert(levels, "f32"), scales)
        block = self._layout.block
        if inputs % block or block % 2:
            raise DecoderError(f"{inputs} weights cannot be in blocks of {block}", source=self._spec.place)
        blocks = inputs // block
        packed = weights.array(name, "U8", rows, blocks, block // 2)
        levels = self._shared(packed, (*shape, blocks, block), "i4")
        scales = constant(weights.array(f"{name}.scale", "F16", rows, blocks, 1).reshape(*shape, blocks, 1))
        spread = op.multiply(op.convert(levels, "f16"), scales)
        return op.convert(op.reshape(spread, integers(*shape, inputs), False), "f32")

    def _wide_blocks(self, name: str, rows: int, shape: Sequence[int], inputs: int) -> Any:
        """Eight bits with a scale for each block, as a GGUF file may have them."""
        op, weights = self._op, self._weights
        if inputs % WIDE_BLOCK:
            raise DecoderError(f"{inputs} weights cannot be in blocks of {WIDE_BLOCK}", source=self._spec.place)
        blocks = inputs // WIDE_BLOCK
        levels = self._shared(weights.array(name, "I8", rows, inputs), (*shape, blocks, WIDE_BLOCK), "i8")
        scales = weights.array(f"{name}.scale", "F16", rows, blocks, 1).astype(np.float32)
        spread = op.multiply(op.convert(levels, "f32"), constant(scales.reshape(*shape, blocks, 1)))
        return op.reshape(spread, integers(*shape, inputs), False)

    def _vector(self, name: str, size: int, rank: int = 3) -> Any:
        return constant(self._weights.array(name, "F32", size).reshape((1,) * (rank - 1) + (size,)))

    def _linear(self, x: Any, name: str, inputs: int, outputs: int) -> Any:
        """A linear layer, with what each token's adapter adds to it."""
        op = self._op
        y = op.matmul(x, self._matrix(name, outputs, inputs), False, True)
        if f"{name}.bias" in self._weights:
            y = op.add(y, self._vector(f"{name}.bias", outputs))
        if self._lora:
            self.sites[name] = inputs, outputs
            a = self._input(f"lora.{name}.a", "f32", [inputs, -1])
            b = self._input(f"lora.{name}.b", "f32", [-1, outputs])
            y = op.add(y, op.matmul(op.multiply(op.matmul(x, a, False, False), self._mask), b, False, False))
        return self._note(name, y)

    def _norm(self, x: Any, name: str, size: int | None = None, rank: int = 3) -> Any:
        """x, normalised where the weights have such a norm."""
        op, layout = self._op, self._layout
        size = size or self._spec.hidden_size
        if f"{name}.scale" not in self._weights:
            return x

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
        x = self._scaled(op.unsqueeze(op.gather(table, op.convert(tokens, "i32"), zero), integers(1)), "embedding")
        places = self._input("embedding_places", "i64", [-1])
        rows = self._input("embeddings", "f32", [-1, spec.hidden_size])
        x = op.scatter_update(x, places, op.unsqueeze(rows, integers(1)), constant(np.int64(0)))
        if not self._layout.rotary_size:
            learned = self._matrix("positions", spec.context_length, spec.hidden_size, kept)
            x = op.add(x, op.unsqueeze(op.gather(learned, op.convert(positions, "i32"), zero), integers(1)))
        return x

    def _turns(self, positions: Any) -> list[tuple[Any, Any]]:
        """Of each rotary embedding cosines and sines [T, 1, 1, columns that turn]."""
        op, size, one = self._op, self._layout.rotary_size, constant(np.int64(1))
        found = []
        at = op.unsqueeze(op.unsqueeze(op.convert(positions, "f32"), integers(1)), integers(2))
        for rope in self._layout.ropes:
            speeds, factor = self._speeds(rope, size)
            angles = op.matmul(at, constant(speeds.astype(np.float32).reshape(1, 1, -1)), False, False)
            angles = op.concat([angles, angles], -1)
            waves = [op.cos(angles), op.sin(angles)]
            if factor != 1:
                waves = [op.multiply(wave, constant(np.full((1, 1, 1), factor, np.float32))) for wave in waves]
            found.append((op.unsqueeze(waves[0], one), op.unsqueeze(waves[1], one)))
        return found

    def _speeds(self, rope: Mapping[str, Any], size: int) -> tuple[npt.NDArray[np.float64], float]:
        try:
            return rope_speeds(rope, size, self._length)
        except (ArithmeticError, ValueError) as error:
            raise DecoderError(f"its rotary embedding cannot be made: {error}", source=self._spec.place) from error

    def _attention(self, x: Any, number: int, tables: Sequence[Any], turns: Sequence[tuple[Any, Any]]) -> Any:
        op, spec, layout, stem = self._op, self._spec, self._layout, f"layers.{number}"
        queries, kv = layout.heads * spec.head_size, spec.kv_heads * spec.head_size
        qkv = self._linear(x, f"{stem}.qkv", spec.hidden_size, queries + 2 * kv)
        parts = op.variadic_split(qkv, constant(np.int64(2)), integers(queries, kv, kv))
        rope = layout.layer_ropes[number]
        waves = turns[rope] if rope >= 0 else None
        query = self._heads(parts.output(0), f"{stem}.query_norm", layout.heads, waves)
        key = self._heads(parts.output(1), f"{stem}.key_norm", spec.kv_heads, waves)
        value = op.reshape(parts.output(2), integers(0, -1), True)
        caches = [self._input(f"{part}_cache.{number}", "dynamic", [-1] * 4) for part in ("key", "value")]
        sinks = f"{stem}.sinks"
        mixed = paged_attention(
            [query, key, value],
            caches,
            *tables,
            kv_heads=spec.kv_heads,
            head_size=spec.head_size,
            window=layout.windows[number],
            scale=layout.multipliers["attention"],
            sinks=self._weights.array(sinks, "F32", layout.heads) if sinks in self._weights else None,
        )
        mixed = self._note(f"{stem}.mixed", op.unsqueeze(mixed, integers(1)))
        return self._linear(mixed, f"{stem}.attention_out", queries, spec.hidden_size)

    def _heads(self, x: Any, norm: str, heads: int, turns: tuple[Any, Any] | None) -> Any:
        """Queries or keys [T, 1, heads * size], normalised and turned -> [T, heads * size]."""
        op, size, turning = self._op, self._spec.head_size, self._layout.rotary_size
        if self._layout.head_norms == "all":
            x = self._norm(x, norm, heads * size)
        x = op.reshape(x, integers(0, 0, heads, size), True)
        if self._layout.head_norms == "head":
            x = self._norm(x, norm, size, 4)
        x = op.transpose(x, integers(0, 2, 1, 3))
        if turns is not None:
            still = self._columns(x, turning, 2**63 - 1) if turning < size else None
            x = x if still is None else self._columns(x, 0, turning)
            first, second = self._columns(x, 0, turning // 2), self._columns(x, turning // 2, 2**63 - 1)
            less = op.multiply(second, constant(np.full((1, 1, 1, 1), -1, np.float32)))
            x = op.add(op.multiply(x, turns[0]), op.multiply(op.concat([less, first], -1), turns[1]))
            x = x if still is None else op.concat([x, still], -1)
        return op.reshape(op.transpose(x, integers(0, 2, 1, 3)), integers(0, -1), True)

    def _columns(self, x: Any, start: int, stop: int) -> Any:
        return self._op.slice(x, integers(start), integers(stop), integers(1), integers(3))

    def _mlp(self, x: Any, stem: str, inner: int) -> Any:
        hidden = self._spec.hidden_size
        up = self._linear(x, f"{stem}.up", hidden, inner)
        gate = None if self._layout.gate == "none" else self._linear(x, f"{stem}.gate", hidden, inner)
        return self._linear(self._activated(gate, up), f"{stem}.mlp_out", inner, hidden)

    def _activated(self, gate: Any, up: Any) -> Any:
        op, kind = self._op, self._layout.gate
        if kind == "none":
            return op.gelu(up, "tanh")
        if kind == "gelu":
            return op.multiply(op.gelu(gate, "tanh"), up)
        if kind == "silu":
            return op.multiply(op.swish(gate), up)
        gate = op.minimum(gate, constant(np.float32(_CLAMP)))
        up = op.add(op.clamp(up, -_CLAMP, _CLAMP), constant(np.float32(1)))
        return op.multiply(up, op.swish(gate, constant(np.float32(_STEEPNESS))))

    def _experts(self, x: Any, stem: str) -> Any:
        """Each token's rows go through the experts that its router chose: one product per expert over sorted rows."""
        layout, hidden, first = self._layout.experts, self._spec.hidden_size, constant(np.int64(0))
        if layout is None:
            raise DecoderError(f"{stem} are not described", source=self._spec.place)
        op, flat = self._op, self._op.reshape(x, integers(-1, hidden), False)
        shares, chosen = self._route(flat, stem, layout)
        numbers = op.reshape(chosen, integers(-1), False)
        order = self._sorted(numbers)
        # Row r of the sorted ones belongs to token order[r] / used.
        rows = op.gather(flat, op.divide(order, integers(layout.used)), first)
        once = op.one_hot(numbers, constant(np.int64(layout.count)), constant(np.int32(1)), constant(np.int32(0)), -1)
        ends = op.convert(op.cumsum(op.reduce_sum(once, integers(0), False), first), "i32")
        whose = op.gather(numbers, order, first)

        def product(rows: Any, name: str, inputs: int, outputs: int) -> Any:
            matrices = self._matrix(f"{stem}.{name}", outputs, inputs, count=layout.count)
            y = openvino().grouped(rows, matrices, ends)
            if f"{stem}.{name}.bias" not in self._weights:
                return y
            biases = self._weights.array(f"{stem}.{name}.bias", "F32", layout.count * outputs)
            return op.add(y, op.gather(constant(biases.reshape(layout.count, outputs)), whose, first))

        wide = [product(rows, name, hidden, layout.inner_size) for name in ("gate", "up")]
        y = op.gather(product(self._activated(*wide), "out", layout.inner_size, hidden), self._sorted(order), first)
        y = op.reshape(y, integers(-1, layout.used, hidden), False)
        mixed = op.reduce_sum(op.multiply(y, op.unsqueeze(shares, integers(-1))), integers(1), True)
        if not layout.shared_size:
            return mixed
        wanted = op.sigmoid(op.matmul(x, self._matrix(f"{stem}.shared.wanted", 1, hidden, "fp32"), False, True))
        return op.add(mixed, op.multiply(wanted, self._mlp(x, f"{stem}.shared", layout.shared_size)))

    def _route(self, flat: Any, stem: str, layout: ExpertLayout) -> tuple[Any, Any]:
        """Which experts each token uses, and what each of them counts [T, used]."""
        op, name = self._op, f"{stem}.router"
        scores = op.matmul(flat, self._matrix(name, layout.count, self._spec.hidden_size, "fp32"), False, True)
        if f"{name}.bias" in self._weights:
            scores = op.add(scores, self._vector(f"{name}.bias", layout.count, 2))
        scores = scores if layout.router == "chosen" else op.softmax(scores, -1)
        best = op.topk(scores, constant(np.int64(layout.used)), -1, "max", "value", index_element_type="i64")
        shares = best.output(0)
        if layout.router == "chosen":
            shares = op.softmax(shares, -1)
        elif layout.router == "shares":
            shares = op.divide(shares, op.reduce_sum(shares, integers(-1), True))
        return shares, best.output(1)

    def _sorted(self, numbers: Any) -> Any:
        """The places of ``numbers`` [n] in ascending order of these."""
        op = self._op
        count = op.squeeze(op.shape_of(numbers), integers(0))
        return op.topk(numbers, count, 0, "min", "value", index_element_type="i64").output(1)

    def _head(self) -> Any:
        spec = self._spec
        kept = "int8" if self._layout.matrices == "int4" else self._layout.matrices
        tied = "head" not in self._weights
        return self._matrix("embedding" if tied else "head", spec.vocab_size, spec.hidden_size, kept)
