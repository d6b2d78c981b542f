"""What becomes of recorded graphs of PyTorch, beside what torch answered; no torch is needed."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from repoagent_convert.networks.network import Tensor, written

from repoagent.api import ConversionJob, Product
from repoagent.errors import InternalError

_STORE: Final = np.load(Path(__file__).with_name("data") / "programs.npz")
_NAMES: Final = sorted({name.split("/")[0] for name in _STORE.files})


def _head(name: str) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(_STORE[f"{name}/head"].tobytes())
    return head


def _arrays(name: str, part: str, number: int) -> list[Any]:
    places = sorted((one for one in _STORE.files if one.startswith(f"{name}/{part}/{number}/")), key=len)
    return [_STORE[one] for one in sorted(places, key=lambda one: int(one.rpartition("/")[2]))]


def _written(name: str, directory: Path, factor: float = 1.0) -> Product:
    head, graph = _head(name), onnx.load_from_string(_STORE[f"{name}/graph"].tobytes())
    inputs = [Tensor(called, tuple(shape), inner=inner) for called, shape, inner in head["inputs"]]
    outputs = [Tensor(called, tuple(shape)) for called, shape in head["outputs"]]
    requests = [_arrays(name, "rows", number) for number in range(head["requests"])]
    answers = iter(
        [one * np.float32(factor) if one.dtype.kind == "f" else one for one in _arrays(name, "answers", number)]
        for number in range(head["requests"])
    )
    job = ConversionJob(directory, directory, {"output": "model.onnx"})
    return written(job, graph, inputs, outputs, lambda _: next(answers), head["title"], requests, head["most"])


@pytest.mark.parametrize("name", _NAMES)
def test_a_program_answers_as_torch_did(name: str, tmp_path: Path) -> None:
    product, head = _written(name, tmp_path), _head(name)
    assert product.notes[0].startswith(f"compared with {head['title']}: ")
    assert product.annotations["batch"] == head["batch"]
    dims = [[-1 if size is None else size for size in shape][head["batch"] > 0 :] for _, shape, _ in head["inputs"]]
    assert [one["dims"] for one in product.annotations["inputs"]] == dims
    session = ort.InferenceSession((tmp_path / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    given = {
        one.name: rows for one, rows in zip(session.get_inputs(), _arrays(name, "rows", head["requests"]), strict=True)
    }
    for found, wanted in zip(session.run(None, given), _arrays(name, "answers", head["requests"]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", _NAMES)
def test_a_program_with_other_weights_is_refused_with_the_difference(name: str, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"answers differently from torch .*: '.*' by up to \d.* in \d+ rows"):
        _written(name, tmp_path, 1.01)
    assert not list(tmp_path.iterdir())
