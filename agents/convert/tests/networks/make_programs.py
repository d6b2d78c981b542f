"""Exports programs of PyTorch, and records what torch makes of them: ``make models``.

``data/programs.npz`` has for each the graph that torch wrote, the requests of the converter's own comparison and rows
that it has not seen, with the answers of torch. The tests read that, and need no torch.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[4]))

from repoagent_convert.networks import network, pt2

from agents.convert.tests.networks import test_pt2

STORE = Path(__file__).with_name("data") / "programs.npz"
NAMES = ("MLP", "CNN", "LSTM", "transformer", "dictionary and tuple", "static", "rows that know each other", "a branch")


def main() -> None:
    recorded: dict[str, Any] = {}
    for name in NAMES:
        kind, written = test_pt2.KINDS[name], network.written
        seen: list[Any] = []

        def note(*given: Any, seen: list[Any] = seen, written: Any = written) -> Any:
            seen.extend(given)
            return written(*given)

        with tempfile.TemporaryDirectory() as scratch, patch.object(pt2, "written", note):
            program = test_pt2.save(kind, Path(scratch) / "model")
            test_pt2.build(Path(scratch))
        _, graph, inputs, outputs, _, title, requests, most = seen
        kept = test_pt2.held_out(kind, 16 if kind.batch else 1)
        answers = test_pt2.answers(program, kind, kept)
        asked = [ask_again(program, rows) for rows in requests]
        head = {
            "inputs": [[one.name, one.shape, one.inner] for one in inputs],
            "outputs": [[one.name, one.shape] for one in outputs],
            "title": title,
            "most": most,
            "batch": kind.batch,
            "requests": len(requests),
        }
        recorded[f"{name}/head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        recorded[f"{name}/graph"] = np.frombuffer(bare(graph).SerializeToString(), np.uint8)
        for number, (rows, found) in enumerate([*zip(requests, asked, strict=True), ([*kept.values()], answers)]):
            recorded.update({f"{name}/rows/{number}/{place}": one for place, one in enumerate(rows)})
            recorded.update({f"{name}/answers/{number}/{place}": one for place, one in enumerate(found)})
    STORE.parent.mkdir(exist_ok=True)
    np.savez_compressed(STORE, **recorded)


def ask_again(program: Any, rows: Any) -> list[Any]:
    torch = test_pt2.torch
    with torch.no_grad():
        found = program.module()(*(torch.tensor(one) for one in rows))
    return [one.numpy() for one in torch.utils._pytree.tree_leaves(found)]


def bare(model: Any) -> Any:
    """``model`` without the places of its program on the machine that records."""
    graphs = [model.graph]
    for graph in graphs:
        del graph.value_info[:]
        for node in graph.node:
            del node.metadata_props[:]
            graphs += [one.g for one in node.attribute if one.HasField("g")]
    return model


if __name__ == "__main__":
    main()
