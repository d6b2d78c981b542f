"""What the converters of networks share: tensors of known names and shapes, and a comparison with the framework."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Final

from repoagent.api import ConversionJob, InternalError, Product, UnsupportedError
from repoagent.converters.onnx.source import public_error
from repoagent_convert.model_file import LARGEST_BATCH, FileConverter, answered, produced, session
from repoagent_convert.tables.foreign_graph import between
from repoagent_convert.tables.tabular import ROWS, closeness

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

Asking = Callable[["Sequence[Array]"], "Sequence[Array]"]
"""What a framework answers: an array for each output, to one for each input."""

_SIZES: Final = ((16, 19), (64,), (16,))
"""Sizes of dimensions that are free; those of one entry take turns, as a graph may have kept the first."""
MOST_NUMBERS: Final = 1 << 21
"""The most numbers of a request, unless one row has more."""
_SECONDS: Final = 60
_UNEQUAL: Final = 1e-3
"""Of whole numbers, such as the best of some classes, so many may differ: the two best may be as good."""
_TEXTS: Final = ("good", "it's", "", "x", "an unknown text", "42")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or an output."""

    name: str
    shape: "tuple[int | None, ...] | None"
    """None stands for a free dimension, as the first is where there are batches; or for a shape that is not known."""
    kind: str = "float32"
    """The type of NumPy; ``object`` for texts."""
    most: int = 0
    """Whole numbers below this one are what it takes; 0 where that is not known."""
    inner: str = ""
    """What the graph that was made calls an input, where that is not ``input_0`` and so on."""


class NetworkConverter(FileConverter):
    """A converter of a network. Opening one runs code."""

    runs_code = True
    yields = True
    largest = 2 << 30
    instead: ClassVar[str]
    """What a refusal adds: how to write the model as ONNX where it is trained."""


def written(
    job: ConversionJob,
    graph: Any,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    ask: Asking,
    title: str,
    requests: "Sequence[Sequence[Array]] | None" = None,
    most_rows: int = LARGEST_BATCH,
) -> Product:
    """Write the model that a framework made, with tensors of these names and shapes, once it answers as ``ask`` does.

    Args:
        job: What is built.
        graph: The model; its outputs are in the order of ``outputs``.
        inputs: The inputs; ``graph`` calls them ``input_0`` and so on, or lacks some that have no use.
        outputs: The outputs.
        ask: Its framework.
        title: What the report calls that.
        requests: What both are asked; random ones without it.
        most_rows: How many rows a request may have, where they are a batch.

    Raises:
        InternalError: they answer differently.
        UnsupportedError: it has operations that are not ONNX, or ONNX Runtime does not take it.
    """
    refuse_unknown(graph)
    model = renamed(graph, inputs, outputs)
    job.progress(0, None, "comparing")
    note, ranks, has_batches = compared(model.SerializeToString(), inputs, outputs, ask, title, requests)
    if any(one.shape is None for one in outputs):
        found = [
            one if one.shape is not None else replace(one, shape=(None,) * ranks.get(number, 1))
            for number, one in enumerate(outputs)
        ]
        model = renamed(graph, inputs, found)
    return produced(job, model, (note,), most_rows if has_batches else 0)


def refuse_unknown(model: Any) -> None:
    """Refuse operations of a framework that its exporter left as they are.

    Raises:
        UnsupportedError: there are some; by name.
    """
    from onnx import defs

    if unknown := sorted({node.op_type for node in _nodes(model.graph) if not defs.has(node.op_type, node.domain)}):
        raise UnsupportedError(f"cannot be converted to ONNX: the operations {', '.join(unknown)[:300]}")


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def renamed(graph: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Any:
    """``graph`` between tensors of these names and shapes. See :func:`written`."""
    from onnx import TensorProto, helper

    found = len(graph.graph.output)
    if found != len(outputs):
        raise UnsupportedError(f"cannot be converted to ONNX: the graph has {found} outputs instead of {len(outputs)}")
    types = {one.name: one.type.tensor_type.elem_type for one in (*graph.graph.input, *graph.graph.output)}
    given, answers = [], []
    for number, one in enumerate(inputs):
        old = one.inner or f"input_{number}"
        kind = types.get(old) or helper.np_dtype_to_tensor_dtype(_dtype(one.kind))
        given.append((helper.make_tensor_value_info(one.name, kind, _dims(one)), old))
    for old, one in zip([one.name for one in graph.graph.output], outputs, strict=True):
        info = helper.make_tensor_value_info(one.name, types[old] or TensorProto.FLOAT, _dims(one))
        answers.append((old, info))
    return between(graph, given, answers)


def _dims(tensor: Tensor) -> list[int | str | None] | None:
    if tensor.shape is None:
        return None
    return ["batch" if size is None and not axis else size for axis, size in enumerate(tensor.shape)]


def _dtype(kind: str) -> Any:
    import numpy as np

    return np.dtype(kind)


def compared(
    content: bytes,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    ask: Asking,
    title: str,
    requests: "Sequence[Sequence[Array]] | None" = None,
) -> tuple[str, dict[int, int], bool]:
    """What the report states, the ranks of the answers, and whether the first dimension of all tensors is of rows.

    Raises:
        InternalError: they answer differently.
        UnsupportedError: ONNX Runtime does not take the model.
    """
    import numpy as np

    has_batches = all(one.shape is None or one.shape[:1] == (None,) for one in (*inputs, *outputs))
    opened, reason = session(content), ""
    names = [one.name for one in opened.get_inputs()]

    def run(rows: "Sequence[Array]") -> "Sequence[Array]":
        return answered(opened, dict(zip(names, rows, strict=True)))

    drawn = (_requests(inputs, *how) for how in product(_SIZES, (False, True), (100, 2)))
    for tried in drawn if requests is None else (requests,):
        comparison, reason = _Comparison([], has_batches), ""
        first: tuple[Sequence[Array], Sequence[Array]] | None = None
        end = time.monotonic() + _SECONDS
        for rows in tried:
            try:
                wanted = ask(rows)
            except Exception as error:  # whatever a framework of others raises of rows that it does not take
                reason = public_error(error)[:200]
                break
            if any(_is_empty(np.asarray(one)) for one in wanted):
                reason = "it answers no numbers"
                break
            comparison.take(run(rows), wanted, len(rows[0]) if rows and rows[0].ndim else 1)
            first = first or (rows, wanted)
            if time.monotonic() > end:
                break
        if first is not None and (comparison.wrong or not reason):
            note = comparison.result(outputs, title)
            return note, comparison.ranks, comparison.has_batches and _rows_stand_alone(run, *first)
    return f"not compared: {title} does not take the rows: {reason}", {}, has_batches


def _rows_stand_alone(run: Asking, rows: "Sequence[Array]", wanted: "Sequence[Array]") -> bool:
    """Whether the first and the last row have the answers that they have among others: else they are not a batch."""
    import numpy as np

    if len({len(one) for one in rows}) > 1:
        return False
    answers = [np.asarray(one) for one in wanted]
    numbers = [np.where(one != one, 0, one).ravel() for one in answers]
    scale = {number: (one, one) for number, one in enumerate(numbers)}
    for place in (slice(0, 1), slice(-1, None)):
        alone = _Comparison([], True, dict(scale))
        try:
            alone.take(run([one[place] for one in rows]), [one[place] for one in answers], 1)
        except UnsupportedError:
            return False
        if alone.wrong:
            return False
    return True


def _is_empty(answer: "Array") -> bool:
    """Whether all of it is NaN, which any graph could answer."""
    import numpy as np

    return bool(answer.size and answer.dtype.kind == "f" and np.isnan(answer).all())


@dataclass
class _Comparison:
    """The answers to some requests."""

    wrong: list[tuple[int, str]]
    """Positions of outputs, and how they differ."""
    has_batches: bool
    before: "dict[int, tuple[Array, Array]]" = field(default_factory=dict)
    """The request before: the numbers of one row do not show how large the numbers of an output are."""
    ranks: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    largest: float = 0.0

    def take(self, found: "Sequence[Array]", wanted: "Sequence[Array]", rows: int) -> None:
        """Look at one request."""
        import numpy as np

        self.rows += rows
        for number, (one, other) in enumerate(zip(found, (np.asarray(one) for one in wanted), strict=True)):
            self.has_batches &= bool(one.ndim) and len(one) == rows
            self.ranks[number] = one.ndim
            if one.shape != other.shape:
                self.wrong.append((number, f"of the shape {one.shape} instead of {other.shape}"))
            elif one.size and one.dtype.kind == "f":
                both = np.isnan(one) & np.isnan(other)
                pair = np.where(both, 0, one).ravel(), np.where(both, 0, other).ravel()
                former = self.before.get(number, pair)
                self.before[number] = pair
                difference, is_close = closeness(np.append(pair[0], former[0]), np.append(pair[1], former[1]))
                self.largest = max(self.largest, difference)
                if not is_close.all():
                    self.wrong.append((number, ""))
            elif one.size and (unequal := float(np.mean(one != other))) > _UNEQUAL:
                self.wrong.append((number, f"in {unequal:.1%} of its values"))

    def result(self, outputs: Sequence[Tensor], title: str) -> str:
        """What the report states.

        Raises:
            InternalError: an answer differs.
        """
        if self.wrong:
            number, how = self.wrong[0]
            raise InternalError(
                f"the converted model answers differently from {title}: '{outputs[number].name}' "
                f"{how or f'by up to {self.largest:.3g}'} in {self.rows} rows"
            )
        return f"compared with {title}: {self.rows} rows, largest difference {self.largest:.1e}"


def _requests(inputs: Sequence[Tensor], sizes: Sequence[int], whole: bool, most: int) -> "Iterator[list[Array]]":
    """Random requests, the same each time: 256 rows where the batch is free; the last is alone."""
    import numpy as np

    random = np.random.default_rng(0)
    shapes = [one.shape or () for one in inputs]
    width = sum(int(np.prod([size or max(sizes) for size in shape[1:]])) for shape in shapes)
    done, turn = 0, 0
    while done < ROWS:
        count = max(1, min(ROWS - done - 1, 64, MOST_NUMBERS // max(1, width)))
        size = sizes[turn % len(sizes)]
        filled = [
            [count if free is None and not axis else free or size for axis, free in enumerate(shape)]
            for shape in shapes
        ]
        yield [
            drawn(_dtype(one.kind), shape, random, one.most or most, whole or one.most)
            for one, shape in zip(inputs, filled, strict=True)
        ]
        done, turn = done + count, turn + 1


def drawn(kind: Any, shape: Sequence[int], random: Any, most: int, whole: object = False) -> "Array":
    """A tensor of the NumPy type ``kind``: texts, or whole numbers below ``most``, or others around 0."""
    import numpy as np

    if kind.kind == "O":
        return np.asarray(random.choice(np.array(_TEXTS, object), shape))
    if kind.kind == "b":
        return np.asarray(random.random(shape) < 0.5)
    if kind.kind in "iu":
        return np.asarray(random.integers(0, min(most, np.iinfo(kind).max), shape)).astype(kind)
    return np.asarray(random.integers(0, most, shape) if whole else random.normal(size=shape)).astype(kind)
