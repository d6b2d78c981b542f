"""What converters do with a graph of another library: tensors of our names, and a comparison with that library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repoagent.api import InternalError, UnsupportedError
from repoagent.converters.onnx.source import public_error
from repoagent_convert.model_file import session
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
        roles: Role (a name of :data:`NAMES`) -> output of ``graph``; a sequence is left out.
        rows: What both answer to.
        expected: What the library ``title`` answers, by role; or why it does not.
        settings: ``names`` and ``double`` of the plan.

    Raises:
        InternalError: they answer differently.
        UnsupportedError: ONNX Runtime does not take it.
    """
    answers = dict(zip([one.name for one in graph.graph.output], run(graph, rows), strict=True))
    kept = {role: name for role, name in roles.items() if not isinstance(answers[name], list)}
    names = NAMES[settings["names"]]
    result = _renamed(
        graph, inputs, {role: (kept[role], answers[kept[role]]) for role in kept}, names, settings["double"]
    )
    if isinstance(expected, str):
        return result, f"not compared: {expected}"
    largest = _compared({role: answers[name] for role, name in kept.items()}, expected, title)
    count = len(next(iter(rows.values())))
    return result, f"compared with {title}: {count} rows, largest difference {largest:.1e}"


def run(graph: Any, rows: "Mapping[str, Array]") -> list[Any]:
    """What ONNX Runtime answers to ``rows``.

    Raises:
        UnsupportedError: it does not take the graph.
    """
    opened = session(graph.SerializeToString())
    wanted = {one.name for one in opened.get_inputs()}
    try:
        return list(opened.run(None, {name: values for name, values in rows.items() if name in wanted}))
    except Exception as error:
        raise UnsupportedError(f"ONNX Runtime does not run the graph: {public_error(error)}") from error


def _renamed(
    graph: Any,
    inputs: Sequence[Input],
    kept: Mapping[str, tuple[str, "Array"]],
    names: Mapping[str, str],
    double: bool,
) -> Any:
    """``graph`` between inputs and outputs of the names asked for, each with a row for each request."""
    import numpy as np
    from onnx import TensorProto, compose, helper, numpy_helper

    inner = compose.add_prefix(graph, "model/")
    body = inner.graph
    used = {name for node in body.node for name in node.input}
    before, after, outputs, given = [], [], [], []
    for one in inputs:
        if f"model/{one.name}" not in used:
            continue
        name, is_double = names.get(one.name, one.name), double and one.kind == "fp32"
        kind = TensorProto.DOUBLE if is_double else TensorProto.FLOAT if one.kind == "fp32" else TensorProto.STRING
        given.append(helper.make_tensor_value_info(name, kind, ["batch", one.width]))
        if is_double:
            before.append(helper.make_node("Cast", [name], [f"model/{one.name}"], to=TensorProto.FLOAT))
        else:
            before.append(helper.make_node("Identity", [name], [f"model/{one.name}"]))
    for role, (old, answer) in kept.items():
        if role not in names:
            continue
        width = answer.size // len(answer)
        body.initializer.append(numpy_helper.from_array(np.array([-1, width]), f"shape/{role}"))
        after.append(helper.make_node("Reshape", [f"model/{old}", f"shape/{role}"], [names[role]]))
        kind = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}.get(answer.dtype.kind, TensorProto.STRING)
        outputs.append(helper.make_tensor_value_info(names[role], kind, ["batch", width]))
    nodes = [*before, *body.node, *after]
    places: Any = ((body.node, nodes), (body.input, given), (body.output, outputs))
    for place, content in places:
        del place[:]
        place.extend(content)
    inner.producer_name = "repoagent"
    return inner


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
            found = found.reshape(len(wanted), -1)[:, 0]  # of two classes, the other has the same with another sign
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
