"""Kinds of programs of PyTorch: each answers as torch does on rows of its own, or is refused by name.

They need torch and onnxscript: ``make models`` installs these and runs this.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from repoagent_convert.networks.pt2 import Pt2Converter

from repoagent.api import ConversionJob, ConversionSource
from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnsupportedError

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn  # noqa: E402
from torch.export import Dim  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
AUTO = Dim.AUTO
BATCH = {0: AUTO}


class Call(nn.Module):  # type: ignore[misc]
    """Layers, and what is made of them."""

    def __init__(self, call: Callable[..., Any], **layers: Any) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Any) -> Any:
        return self.call(self, x)


class TwoInputs(Call):
    def forward(self, ids: Any, mask: Any) -> Any:  # type: ignore[override]
        return self.call(self, ids, mask)


class Named(Call):
    def forward(self, x: Any, scale: Any = None, *, shift: Any, power: int = 2) -> Any:  # type: ignore[override]
        return self.call(self, x, scale, shift) ** power


@dataclass(frozen=True)
class Kind:
    """A model, its example, which dimensions are free, what is expected of the configuration."""

    make: Callable[[], Any]
    example: Callable[[], tuple[Any, ...]]
    free: Any = None
    inputs: Mapping[str, list[int]] = field(default_factory=lambda: {"x": [6]})
    outputs: Mapping[str, list[int]] = field(default_factory=lambda: {"output_0": [3]})
    batch: int = 1024
    named: Callable[[], dict[str, Any]] = dict


def rows(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(*shape),)


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(-1))


def convolution() -> Any:
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    return nn.Sequential(*layers)


def recurrent(**more: Any) -> Any:
    return Call(lambda self, x: self.lstm(x)[0], lstm=nn.LSTM(6, 3, **more))


def transformer() -> Any:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    layers = {"words": nn.Embedding(50, 16), "encoder": nn.TransformerEncoder(layer, 1), "head": nn.Linear(16, 3)}

    def call(self: Any, ids: Any, mask: Any) -> Any:
        hidden = self.encoder(self.words(ids), src_key_padding_mask=mask == 0)
        return self.head((hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))

    return TwoInputs(call, **layers)


def outputs() -> Any:
    def call(self: Any, x: Any) -> Any:
        hidden = self.layer(x)
        return {"logits": hidden, "best": hidden.argmax(-1), "more": (hidden.exp(), hidden > 0)}

    return Call(call, layer=nn.Linear(6, 3))


KINDS: dict[str, Kind] = {
    "MLP": Kind(perceptron, rows(2, 6), (BATCH,), {"input": [6]}),
    "CNN": Kind(convolution, rows(2, 1, 8, 8), (BATCH,), {"input": [1, 8, 8]}),
    "LSTM": Kind(lambda: recurrent(batch_first=True), rows(2, 7, 6), (BATCH,), {"x": [7, 6]}, {"output_0": [7, 3]}),
    "transformer": Kind(
        transformer,
        lambda: (torch.randint(0, 50, (2, 9)), torch.ones(2, 9, dtype=torch.int64)),
        ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}),
        {"ids": [-1], "mask": [-1]},
    ),
    "dictionary and tuple": Kind(
        outputs,
        rows(2, 6),
        (BATCH,),
        outputs={"logits": [3], "best": [], "more_0": [3], "more_1": [3]},
    ),
    "static": Kind(perceptron, rows(2, 6), None, {"input": [2, 6]}, {"output_0": [2, 3]}, 0),
    "bounded batch": Kind(perceptron, rows(2, 6), ({0: Dim("rows", min=1, max=16)},), {"input": [6]}, batch=16),
    "numbers of rows": Kind(
        lambda: TwoInputs(lambda self, ids, mask: ids.sum(1) * mask),
        lambda: (torch.randn(2, 6, dtype=torch.float64), torch.randn(2, dtype=torch.float64)),
        (BATCH, BATCH),
        {"ids": [6], "mask": []},
        {"output_0": []},
    ),
    "a number": Kind(
        lambda: Call(lambda self, x: (x.sum(), x)),
        rows(2, 6),
        None,
        {"x": [2, 6]},
        {"output_0": [], "output_1": [2, 6]},
        0,
    ),
    "time first": Kind(
        lambda: Call(lambda self, x: x.cumsum(0)),
        rows(5, 2, 6),
        ({0: AUTO, 1: AUTO},),
        {"x": [-1, -1, 6]},
        {"output_0": [-1, -1, 6]},
        0,
    ),
    "rows that know each other": Kind(
        lambda: Call(lambda self, x: x.softmax(0)), rows(4, 3), (BATCH,), {"x": [-1, 3]}, {"output_0": [-1, 3]}, 0
    ),
    "halves": Kind(
        lambda: Call(lambda self, x: x * 2), lambda: (torch.randn(2, 6).half(),), (BATCH,), outputs={"output_0": [6]}
    ),
    "not a number": Kind(lambda: Call(lambda self, x: x.log()), rows(2, 6), (BATCH,), outputs={"output_0": [6]}),
    "minus infinity": Kind(
        lambda: Call(lambda self, x: x.masked_fill(x < 0, float("-inf"))),
        rows(2, 6),
        (BATCH,),
        outputs={"output_0": [6]},
    ),
    "the same twice": Kind(
        lambda: Call(lambda self, x: (x, x, x + 1)),
        rows(2, 6),
        (BATCH,),
        outputs={"output_0": [6], "output_1": [6], "output_2": [6]},
    ),
    "a key with the name of the input": Kind(
        lambda: Call(lambda self, x: {"x": x + 1, "\n": x}),
        rows(2, 6),
        (BATCH,),
        outputs={"output_0": [6], "output_1": [6]},
    ),
    "a branch": Kind(
        lambda: Call(lambda self, x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))),
        rows(2, 6),
        None,
        {"x": [2, 6]},
        {"output_0": [2, 6]},
        0,
    ),
    "named arguments": Kind(
        lambda: Named(lambda self, x, scale, shift: x + shift),
        rows(2, 6),
        {"x": BATCH, "shift": BATCH, "power": None},
        {"x": [6], "shift": [6]},
        {"output_0": [6]},
        named=lambda: {"shift": torch.randn(2, 6), "power": 3},
    ),
    "changes its input": Kind(lambda: Call(lambda self, x: x.add_(1)), rows(2, 6), (BATCH,), outputs={"output_0": [6]}),
    "a mask of bits": Kind(
        lambda: TwoInputs(lambda self, ids, mask: ids.masked_fill(mask, 0)),
        lambda: (torch.randint(0, 9, (2, 6), dtype=torch.int32), torch.ones(2, 6, dtype=torch.bool)),
        (BATCH, BATCH),
        {"ids": [6], "mask": [6]},
        {"output_0": [6]},
    ),
}
REFUSED: dict[str, tuple[Kind, str]] = {
    "has learned with the batch": (
        Kind(lambda: nn.BatchNorm1d(6).train(), rows(2, 6), (BATCH,)),
        r"answers differently from torch .*: 'output_0' by up to",
    ),
    "counts its requests": (
        Kind(lambda: Call(lambda self, x: x + self.layer.running_mean.add_(1)[0], layer=nn.BatchNorm1d(6)), rows(2, 6)),
        r"answers differently from torch .*: 'output_0' by up to",
    ),
    "draws numbers": (
        Kind(lambda: Call(lambda self, x: x + torch.randn(2, 6)), rows(2, 6)),
        r"answers differently from torch .*: 'output_0' by up to",
    ),
    "bfloat16": (
        Kind(lambda: Call(lambda self, x: x + 1), lambda: (torch.randn(2, 6).bfloat16(),)),
        "the type of the tensor 'x'; use float32 there",
    ),
    "complex": (Kind(lambda: Call(lambda self, x: torch.fft.fft(x)), rows(2, 6)), "."),
}


def save(kind: Kind, path: Path, **more: Any) -> Any:
    torch.manual_seed(28)
    model = kind.make()
    if not isinstance(model, nn.BatchNorm1d):
        model.eval()
    program = torch.export.export(model, kind.example(), kind.named(), dynamic_shapes=kind.free)
    torch.export.save(program, path)
    return program


def build(directory: Path, **options: str) -> tuple[Any, ort.InferenceSession]:
    converter, target = Pt2Converter(), directory / "target"
    target.mkdir(exist_ok=True)
    given = {name: one.default for name, one in converter.options.items() if one.default is not None} | options
    plan = converter.plan(ConversionSource(directory, "model", "1/model"), given)
    product = converter.build(ConversionJob(directory, target, plan.settings))
    return product, ort.InferenceSession((target / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"])


def held_out(kind: Kind, count: int) -> dict[str, Any]:
    """Rows that no comparison has seen, as a request has them."""
    torch.manual_seed(7)
    parts: list[tuple[Any, ...]] = []
    while sum(len(one[0]) for one in parts) < count:
        parts.append((*kind.example(), *(value for value in kind.named().values() if isinstance(value, torch.Tensor))))
    return dict(zip(kind.inputs, (torch.cat(one).numpy() for one in zip(*parts, strict=True)), strict=True))


def answers(program: Any, kind: Kind, given: dict[str, Any]) -> list[Any]:
    tensors = [torch.tensor(one) for one in given.values()]
    count = len(kind.example())
    named = kind.named() | dict(
        zip([n for n, v in kind.named().items() if isinstance(v, torch.Tensor)], tensors[count:], strict=True)
    )
    with torch.no_grad():
        found = program.module()(*tensors[:count], **named)
    return [one.numpy() for one in torch.utils._pytree.tree_leaves(found)]


@pytest.mark.kinds("accepted", "PyTorch")
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_answers_as_torch_does(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    program = save(kind, tmp_path / "model")
    product, session = build(tmp_path)
    (compared,) = product.notes
    count = int(re.fullmatch(r"compared with torch 2\..*: (\d+) rows, largest difference .*", compared)[1])  # type: ignore[index]
    assert count >= (16 if name == "bounded batch" else 256)
    for tensors, place, wanted in (
        (session.get_inputs(), "inputs", kind.inputs),
        (session.get_outputs(), "outputs", kind.outputs),
    ):
        assert {one["name"]: one["dims"] for one in product.annotations[place]} == wanted
        assert [one.name for one in tensors] == list(wanted)
    assert product.annotations["batch"] == kind.batch
    given = held_out(kind, 16 if kind.batch else 1)
    for found, right in zip(session.run(None, given), answers(program, kind, given), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


@pytest.mark.kinds("refused by name", "PyTorch")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(name: str, tmp_path: Path) -> None:
    kind, text = REFUSED[name]
    save(kind, tmp_path / "model")
    with pytest.raises(RepoAgentError, match=text):
        build(tmp_path)


def test_names_are_those_asked_for(tmp_path: Path) -> None:
    save(KINDS["dictionary and tuple"], tmp_path / "model")
    _, session = build(tmp_path, names="triton-pytorch")
    assert [one.name for one in session.get_inputs()] == ["INPUT__0"]
    assert [one.name for one in session.get_outputs()] == [f"OUTPUT__{place}" for place in range(4)]


def test_a_wrong_conversion_is_refused_with_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from repoagent_convert.networks import pt2 as module

    converted = module._converted

    def wrong(program: Any) -> Any:
        graph = converted(program)
        with torch.no_grad():
            program.state_dict["2.weight"] *= 1.01
        return graph

    monkeypatch.setattr(module, "_converted", wrong)
    save(KINDS["MLP"], tmp_path / "model")
    with pytest.raises(
        InternalError, match=r"answers differently from torch .*: 'output_0' by up to 0\.\d+ in \d+ rows"
    ):
        build(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    save(KINDS["MLP"], tmp_path / "model")
    content = (tmp_path / "model").read_bytes()
    (tmp_path / "model").write_bytes(content[:2000] + bytes(3000) + content[5000:])
    with pytest.raises(InvalidArgumentError, match=r"the member '.*' is damaged"):
        build(tmp_path)


def test_a_program_that_takes_no_random_request_is_refused(tmp_path: Path) -> None:
    def call(self: Any, x: Any) -> Any:
        torch._assert_async((x == 7).all(), "not seven")
        return x + 1

    kind = Kind(lambda: Call(call), lambda: (torch.full((2, 3), 7.0),))
    program = torch.export.export(kind.make(), kind.example())
    program._example_inputs = None
    torch.export.save(program, tmp_path / "model")
    with pytest.raises(UnsupportedError, match=r"cannot be compared with torch: no answer to random requests: "):
        build(tmp_path)


def test_the_same_file_makes_the_same_bytes(tmp_path: Path) -> None:
    save(KINDS["transformer"], tmp_path / "model")
    build(tmp_path)
    first = (tmp_path / "target/model.onnx").read_bytes()
    build(tmp_path)
    assert (tmp_path / "target/model.onnx").read_bytes() == first
    assert str(Path(__file__).parent).encode() not in first
