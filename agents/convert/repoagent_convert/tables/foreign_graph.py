"""What converters do with a graph of another library: tensors of our names, and a comparison with that library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repoagent.api import InternalError, UnsupportedError
from repoagent_convert.model_file import answered, session
from repoagent_convert.tables.tabular import NAMES, closeness

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor of a request, with a row for each of its rows; ``kind`` is fp32 or string."""

    name: str
    kind: str
    width: int


def finished(
    graph: Any,
    inputs: Sequence[Input],
    roles: Mapping[str, str],
    rows: "Mapping[str, Array]",
    expected: "Mapping[str, Array] | str",
    settings: Mapping[str, Any],
    title: str,
) -> tuple[Any, str]:
    """The model with the tensors of a naming, and what the report states of the comparison.

    Args:
        graph: What a library made.
        inputs: Its inputs.
        roles: Role (a name of :data:`NAMES`) -> output of ``graph``; one that is no table is left out.
        rows: What both answer to.
        expected: What the library ``title`` answers, by role; or why it does not.
        settings: ``names`` and ``double`` of the plan.

    Raises:
        InternalError: they answer differently.
        UnsupportedError: ONNX Runtime does not take it, or no output has a row for each of a request.
    """
    names, count = NAMES[settings["names"]], len(next(iter(rows.values())))
    answers = run(graph, rows)
    kept = {role: (name, answers[name]) for role, name in roles.items() if _is_table(answers[name], count)}
    if not kept.keys() & names.keys():
        raise UnsupportedError("cannot be converted to ONNX: its answers have no row for each row of a request")
    result = _renamed(graph, inputs, kept, names, count, settings["double"])
    found = run(result, {names.get(name, name): values for name, values in rows.items()})
    if isinstance(expected, str):
        return result, f"not compared: {expected}"
    largest = _compared({role: found.get(names.get(role, ""), kept[role][1]) for role in kept}, expected, title)
    return result, f"compared with {title}: {count} rows, largest difference {largest:.1e}"


def _is_table(answer: Any, count: int) -> bool:
    """Whether it has a place for each of ``count`` rows: what several targets have in common is a list, or deeper."""
    return not isinstance(answer, list) and (answer.shape[:1] == (count,) or answer.size == count)


def run(graph: Any, rows: "Mapping[str, Array]") -> dict[str, Any]:
    """What ONNX Runtime answers to ``rows``, by output.

    Raises:
        UnsupportedError: it does not take the graph.
    """
    opened = session(graph.SerializeToString())
    kinds = {one.name: one.type for one in opened.get_inputs()}
    doubles = {name: rows[name].astype("float64") for name, kind in kinds.items() if kind == "tensor(double)"}
    answers = answered(opened, {name: doubles.get(name, rows[name]) for name in kinds})
    return dict(zip([one.name for one in opened.get_outputs()], answers, strict=True))


def _renamed(
    graph: Any,
    inputs: Sequence[Input],
    kept: Mapping[str, tuple[str, "Array"]],
    names: Mapping[str, str],
    count: int,
    double: bool,
) -> Any:
    """``graph`` between inputs and outputs of the names asked for, each with a row for each of a request."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    body = graph.graph
    used = {name for node in body.node for name in node.input}
    given, answers = [], []
    for one in inputs:
        if one.name in used:
            kind = TensorProto.STRING if one.kind == "string" else TensorProto.DOUBLE if double else TensorProto.FLOAT
            info = helper.make_tensor_value_info(names.get(one.name, one.name), kind, ["batch", one.width])
            given.append((info, one.name))
    for role, (old, answer) in kept.items():
        if role in names:
            width = answer.size // count
            body.initializer.append(numpy_helper.from_array(np.array([-1, width]), f"shape/{role}"))
            body.node.append(helper.make_node("Reshape", [old, f"shape/{role}"], [f"table/{role}"]))
            kind = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}.get(answer.dtype.kind, TensorProto.STRING)
            answers.append((f"table/{role}", helper.make_tensor_value_info(names[role], kind, ["batch", width])))
    return between(graph, given, answers)


def between(graph: Any, inputs: "Sequence[tuple[Any, str]]", outputs: "Sequence[tuple[str, Any]]") -> Any:
    """A copy of ``graph`` between other tensors, whose names are not in its way.

    Args:
        graph: What a library made.
        inputs: Each new input, and the one that it stands for; where ``graph`` lacks that, it has no use.
        outputs: Each output, or other value, of ``graph``, and what it becomes.
    """
    from onnx import helper

    inner = type(graph)()
    inner.CopyFrom(graph)
    del inner.metadata_props[:]
    body = inner.graph
    _prefix(body)
    former = {one.name: one.type.tensor_type.elem_type for one in body.input}
    before = []
    for info, name in inputs:
        kind = former.get(old := f"model/{name}")
        if kind is None:
            continue
        if kind == info.type.tensor_type.elem_type:
            before.append(helper.make_node("Identity", [info.name], [old]))
        else:
            before.append(helper.make_node("Cast", [info.name], [old], to=kind))
    after = [helper.make_node("Identity", [f"model/{name}"], [info.name]) for name, info in outputs]
    places: Any = (
        (body.node, [*before, *body.node, *after]),
        (body.input, [info for info, _ in inputs]),
        (body.output, [info for _, info in outputs]),
    )
    for place, content in places:
        del place[:]
        place.extend(content)
    inner.producer_name = "repoagent"
    return inner


def _prefix(body: Any) -> None:
    """Give the names in a graph a prefix; what a framework notes there of a program's source does not stay.

    That of the package onnx leaves out what the branches of an ``If`` take from outside, and renames functions by half.
    """
    del body.metadata_props[:], body.value_info[:]
    for part in (*body.node, *body.initializer, *body.input, *body.output):
        del part.metadata_props[:]
        part.doc_string = ""
    for part in (*body.initializer, *body.input, *body.output):
        part.name = f"model/{part.name}"
    for node in body.node:
        for names in (node.input, node.output):
            names[:] = [name and f"model/{name}" for name in names]
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _prefix(inner)


def _compared(answers: Mapping[str, "Array"], expected: Mapping[str, "Array"], title: str) -> float:
    """The largest difference of the numbers; labels may differ only where the two best are that close.

    Raises:
        InternalError: they differ more.
    """
    import numpy as np

    largest, unsure = 0.0, np.zeros(len(next(iter(expected.values()))), bool)
    for role in ("prediction", "probabilities", "scores"):
        if role not in answers or role not in expected:
            continue
        found, wanted = np.asarray(answers[role]), np.asarray(expected[role])
        if role == "scores" and wanted.size != found.size:
            # Of two classes, one has the score, and the other the same with another sign.
            found = min(found.reshape(len(wanted), -1).T, key=lambda one: np.abs(one - wanted.ravel()).max())
        difference, is_close = closeness(found.reshape(wanted.shape), wanted)
        if not is_close.all():
            raise InternalError(
                f"the converted model answers differently from {title}: '{role}' by up to {difference:.3g} in "
                f"{len(wanted)} rows"
            )
        best = np.sort(wanted.reshape(len(wanted), -1), axis=1)
        margin = np.abs(best[:, 0]) if best.shape[1] == 1 else best[:, -1] - best[:, -2]
        largest, unsure = max(largest, difference), margin < 1e-4
    if "label" in answers and "label" in expected:
        found, wanted = np.asarray(answers["label"]), np.asarray(expected["label"])
        wrong = (found.reshape(len(wanted), -1) != wanted.reshape(len(wanted), -1)).any(axis=1) & ~unsure
        if wrong.any():
            raise InternalError(
                f"the converted model answers differently from {title}: {wrong.sum()} of {len(wrong)} labels"
            )
    return largest


def short(error: BaseException) -> str:
    """The first line of an error of a library."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
