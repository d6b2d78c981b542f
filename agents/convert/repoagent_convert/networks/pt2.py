"""PyTorch to ONNX, from files of ``torch.export.save``; torch itself converts."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import Archive, ConversionJob, ConverterOption, InvalidArgumentError, Product, UnsupportedError
from repoagent.converters.option_values import choice
from repoagent_convert.frameworks import is_pt2
from repoagent_convert.model_file import LARGEST_BATCH, TYPES, FileConverter
from repoagent_convert.networks.network import MOST_NUMBERS, NetworkConverter, Tensor, drawn, written
from repoagent_convert.tables.foreign_graph import short
from repoagent_convert.tables.tabular import ROWS

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "arguments": ("", ""),
    "numbered": ("input_{}", "output_{}"),
    "triton-pytorch": ("INPUT__{}", "OUTPUT__{}"),
}
"""Value of the option -> the names of inputs and outputs; empty for those that the program has."""
_SIZES: Final = (5, 12)
"""What other dimensions than the first are tried with, where they are free."""
_HIGHEST: Final = (32768, 8192, 2048, 512, 128, 32, 8, 2)


class Pt2Converter(NetworkConverter):
    """A program that was exported. Opening it runs what is in its pickles."""

    version = "1"
    title = "PyTorch (.pt2)"
    packages = ("torch", "onnxscript", "onnx", "onnxruntime")
    instead = (
        "or convert it where it comes from: python -c \"import torch; torch.onnx.export(torch.export.load('FILE'), (), "
        "dynamo=True).save('model.onnx', external_data=False)\""
    )
    options: Mapping[str, ConverterOption] = {
        "names": ConverterOption("arguments", f"what the tensors are called: {', '.join(_NAMES)}"),
        **FileConverter.options,
    }

    def settings(self, options: Mapping[str, str]) -> dict[str, Any]:
        """See :class:`FileConverter`."""
        return {"names": choice(options, "names", _NAMES)}

    def recognizes_ends(self, head: bytes, tail: bytes) -> bool:
        """Whether an archive states that it is one."""
        return is_pt2(head, tail)

    def prepare(self) -> None:
        """Import what looks at the machine, before the jail; not ONNX Runtime, which starts a thread."""
        import onnxscript  # noqa: F401
        import torch.onnx  # noqa: F401

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`."""
        job.progress(0, None, f"opening {job.settings['input']}")
        path = job.source / job.settings["input"]
        with path.open("rb") as file:
            Archive(file, self.largest).check()
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                opened = torch.export.load(path)
            except Exception as error:  # whatever a library of others raises
                raise InvalidArgumentError(f"cannot be opened: {short(error)}") from error
            job.progress(0, None, "converting")
            try:
                graph, program = _converted(opened), _Program(opened)
            except Exception as error:
                raise UnsupportedError(f"cannot be converted to ONNX: {short(error)}") from error
            inputs, outputs = _tensors(graph, program, job.settings["names"])
            requests, answers = program.asked()
        turn, title = iter(answers), f"torch {torch.__version__}"
        return written(job, graph, inputs, outputs, lambda _: next(turn), title, requests, program.most_rows)


def _converted(opened: Any) -> Any:
    import torch

    return torch.onnx.export(opened, (), dynamo=True, verbose=False).model_proto


def _tensors(graph: Any, program: "_Program", scheme: str) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs and outputs with their names; outputs are numbered where not all of these are different ones."""
    given, made = graph.graph.input, graph.graph.output
    if (len(given), len(made)) != (len(program.dims), len(program.outputs)):
        raise UnsupportedError("cannot be converted to ONNX: some of the inputs or outputs are not tensors")
    for one in (*given, *made):
        if TYPES.get(one.type.tensor_type.elem_type, "BF16") == "BF16":
            raise UnsupportedError(f"cannot be served: the type of the tensor '{one.name}'; use float32 there")
    before, after = _NAMES[scheme]
    inputs = [before.format(place) or name for place, name in enumerate(program.dims)]
    outputs = [after.format(place) or name for place, name in enumerate(program.outputs)]
    if len({*inputs, *outputs}) < len(inputs) + len(outputs) or not all(name.isidentifier() for name in outputs):
        outputs = [f"output_{place}" for place in range(len(outputs))]
    shapes = [tuple(dim.dim_value or None for dim in one.type.tensor_type.shape.dim) for one in (*given, *made)]
    return (
        [Tensor(name, shape, inner=one.name) for name, shape, one in zip(inputs, shapes, given, strict=False)],
        [Tensor(name, shape) for name, shape in zip(outputs, shapes[len(inputs) :], strict=True)],
    )


class _Program:
    """What was exported: ``dims`` of its tensors by argument, names of ``outputs``, and what it answers."""

    def __init__(self, opened: Any) -> None:
        import torch.utils._pytree as trees

        self._tree, self._module, self._bounds = opened.call_spec.in_spec, opened.module(), opened.range_constraints
        specs = [one.arg for one in opened.graph_signature.input_specs if one.kind.name == "USER_INPUT"]
        values = {one.name: one.meta.get("val") for one in opened.graph.nodes if one.op == "placeholder"}
        self._leaves = {one.name: values[one.name] if _is_tensor(values[one.name]) else one.value for one in specs}
        examples = trees.tree_leaves(opened.example_inputs, is_leaf=lambda one: one is None)
        known = dict(zip(self._leaves, examples, strict=True)) if len(self._leaves) == len(examples) else {}
        self._examples = {name: one.detach().numpy() for name, one in known.items() if _has_array(one)}
        self.dims = {name: tuple(one.shape) for name, one in self._leaves.items() if _is_tensor(one)}
        self.outputs = _outputs(opened)
        firsts = [one[0] for one in self.dims.values() if one and not isinstance(one[0], int)]
        self._rows = next((symbol for one in firsts for symbol in one.node.expr.free_symbols), None)
        self.most_rows = self._clipped(self._rows, LARGEST_BATCH)

    def asked(self) -> "tuple[list[list[Array]], list[list[Array]]]":
        """Random requests, and the example, with their answers: those that the program takes.

        Raises:
            UnsupportedError: none has an answer of numbers.
        """
        import numpy as np

        random, shapes = np.random.default_rng(0), self._shapes()
        highest = dict.fromkeys(self.dims, 2)
        for name in self.dims:
            if str(self._leaves[name].dtype).startswith(("torch.int", "torch.uint")) and not self._is_mask(name):
                for highest[name] in _HIGHEST:  # words are taken up to the size of the vocabulary
                    if self._answer(self._drawn(random, shapes[-1], highest)):
                        break
        requests = [self._drawn(random, one, highest) for one in shapes]
        requests += [list(self._examples.values())] if len(self._examples) == len(self.dims) else []
        reasons: list[str] = []
        found = [(rows, answers) for rows in requests if (answers := self._answer(rows, reasons))]
        if not any(np.isfinite(one).any() for _, answers in found for one in answers):
            reason = f": {reasons[-1]}" if reasons else ""
            raise UnsupportedError(f"cannot be compared with torch: no answer to random requests{reason}")
        return [rows for rows, _ in found], [answers for _, answers in found]

    def _answer(self, rows: "Sequence[Array]", reasons: list[str] | None = None) -> "list[Array]":
        """Nothing where it takes no such request. ``rows`` stay as they are, also if it changes its input."""
        import torch
        import torch.utils._pytree as trees

        given = {name: torch.tensor(one) for name, one in zip(self.dims, rows, strict=True)}
        arguments, named = trees.tree_unflatten([given.get(*one) for one in self._leaves.items()], self._tree)
        try:
            with torch.no_grad():
                return [one.numpy() for one in trees.tree_leaves(self._module(*arguments, **named)) if _is_tensor(one)]
        except Exception as error:  # whatever a library of others raises
            (reasons if reasons is not None else []).append(short(error))
            return []

    def _is_mask(self, name: str) -> bool:
        """Whether it has 0 and 1: there any number is taken, and what is made of it means nothing."""
        example = self._examples.get(name)
        return example is not None and example.size > 0 and example.dtype.kind in "biu" and bool(example.max() <= 1)

    def _drawn(self, random: Any, shapes: Sequence[tuple[int, ...]], highest: Mapping[str, int]) -> "list[Array]":
        import numpy as np

        found = []
        for name, shape in zip(self.dims, shapes, strict=True):
            kind = np.dtype(str(self._leaves[name].dtype).removeprefix("torch."))
            example, values = self._examples.get(name), drawn(kind, shape, random, highest[name])
            if kind.kind == "f":
                if example is not None and example.size and shape and np.isfinite(example).all():
                    near = example.mean() + values[::2] * max(example.std(), 1e-3)
                    values[::2] = np.clip(near, example.min(), example.max())  # half of the rows are like it
            else:
                values.reshape(-1)[:1] = True if kind.kind == "b" else min(highest[name], np.iinfo(kind).max) - 1
                if example is not None and shape and self._is_mask(name):
                    values[..., 0] = example.reshape(-1)[0]  # of a row of padding alone, frameworks make anything
            found.append(values)
        return found

    def _shapes(self) -> list[list[tuple[int, ...]]]:
        """Many rows; then a few, with other sizes of what is free besides."""
        one = self._sized(1, _SIZES[0])
        rows = max(1, min(ROWS, MOST_NUMBERS // max(1, sum(math.prod(shape[1:]) for shape in one))))
        if self._rows is not None:
            return [self._sized(rows, _SIZES[0]), self._sized(3, _SIZES[1])]
        return [one] * math.ceil(rows / max([1, *(shape[0] for shape in one if shape)]))

    def _sized(self, rows: int, other: int) -> list[tuple[int, ...]]:
        def size(dim: Any) -> int:
            if isinstance(dim, int):
                return dim
            symbols = dim.node.expr.free_symbols
            given = {one: self._clipped(one, rows if one == self._rows else other) for one in symbols}
            return int(dim.node.expr.subs(given))

        return [tuple(map(size, dims)) for dims in self.dims.values()]

    def _clipped(self, symbol: Any, size: int) -> int:
        bounds = self._bounds.get(symbol)
        return size if bounds is None else int(min(max(size, bounds.lower), bounds.upper))


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _has_array(value: Any) -> bool:
    return _is_tensor(value) and str(value.dtype) != "torch.bfloat16"


def _outputs(opened: Any) -> list[str]:
    """The keys of a dictionary, or output_0 and so on; nested ones behind each other."""
    import torch.utils._pytree as trees

    specs = [one.arg for one in opened.graph_signature.output_specs if one.kind.name == "USER_OUTPUT"]
    tree = trees.tree_unflatten(range(len(specs)), opened.call_spec.out_spec)
    found = []
    for path, place in trees.tree_flatten_with_path(tree)[0]:
        steps = [str(getattr(one, "key", getattr(one, "idx", getattr(one, "name", "")))) for one in path] or ["0"]
        if type(specs[place]).__name__ == "TensorArgument":
            found.append("_".join(["output", *steps] if steps[0].isdecimal() else steps))
    return found
