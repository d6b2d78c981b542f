"""The files beside a graph that hold tensors of it, wherever in the graph these are."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from onnx import TensorProto

from repoagent.beneath.opening import open_beneath, read_up_to
from repoagent_llm.runner.decoder_spec import DecoderSpec
from repoagent_llm.types.executor_errors import DecoderError


def outside_files(graph: Any) -> frozenset[str]:
    """The files of a graph's own weights, and of the values of its constants."""
    tensors = [*graph.initializer, *(item.t for node in graph.node for item in node.attribute)]
    return frozenset(_entries(tensor)["location"] for tensor in tensors if _is_outside(tensor))


def hold_inner_tensors(model: Any, spec: DecoderSpec, most_bytes: int) -> None:
    """Put all other tensors that lie in files of the folder into the model itself: those of branches and functions.

    A session looks for these nowhere but in a folder. Raises ``DecoderError`` for a part of a file that is not there,
    and for more than ``most_bytes``.
    """
    graph, left = model.graph, most_bytes
    inner = chain(_of_sparse(graph.sparse_initializer), _of_nodes(graph.node, values=False))
    functions = (_of_nodes(function.node, values=True) for function in model.functions)
    for tensor in filter(_is_outside, chain(inner, *functions)):
        tensor.raw_data = _part(spec, _entries(tensor), left)
        left -= len(tensor.raw_data)
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT


def _of_nodes(nodes: Iterable[Any], *, values: bool) -> Iterator[Any]:
    """The tensors in attributes of nodes; ``values``: also those that are the whole value of one."""
    for node in nodes:
        for item in node.attribute:
            if values:
                yield item.t
            yield from item.tensors
            yield from _of_sparse([item.sparse_tensor, *item.sparse_tensors])
            for graph in (item.g, *item.graphs):
                yield from graph.initializer
                yield from _of_sparse(graph.sparse_initializer)
                yield from _of_nodes(graph.node, values=True)


def _of_sparse(tensors: Iterable[Any]) -> Iterator[Any]:
    for tensor in tensors:
        yield tensor.values
        yield tensor.indices


def _is_outside(tensor: Any) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL and "location" in _entries(tensor)


def _entries(tensor: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _part(spec: DecoderSpec, entries: dict[str, str], most_bytes: int) -> bytes:
    """The bytes that the ``external_data`` of a tensor names."""
    name = entries["location"]
    try:
        start, wanted = int(entries.get("offset", "0")), int(entries.get("length", "-1"))
        with open_beneath(spec.folder, name) as file:
            file.seek(start)
            content = read_up_to(file, most_bytes + 1 if wanted < 0 else min(wanted, most_bytes + 1))
    except (OSError, OverflowError, ValueError) as error:
        raise DecoderError(f"{spec.place}: the file of weights {name!r} cannot be read: {error}") from error
    if len(content) > most_bytes:
        raise DecoderError(f"{spec.place}: branches of the graph keep more than {most_bytes} bytes in {name!r}")
    return content
