"""Plans of real models by the real builder: what goes in, what comes out, and what is refused."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from repoagent.engines.flavours import installed_version
from repoagent.engines.plan_header import PlanHeader
from repoagent.errors import CancelledError, InvalidArgumentError, UnsupportedError
from tests.engines import models
from tests.engines.builder.conftest import CAPACITY
from tests.engines.builder.plans import BuildPlan
from tests.extent import in_full

pytestmark = pytest.mark.slow

DECODERS = ["llama", "mistral", "qwen2", "qwen3", "gpt2"]
DECODER_SHAPES = {"min": (1, 1, 1), "opt": (4, 16, 4), "max": (4, 16, 64)}

Save = Callable[[bytes], Path]


def decoder_shapes(model: Path) -> dict[str, str]:
    """The options of one profile: up to 4 rows of 16 tokens."""
    graph = onnx.load(str(model), load_external_data=False).graph
    found = {}
    for end, (batch, tokens, rows) in DECODER_SHAPES.items():
        sizes = {"batch": batch, "tokens": tokens, "rows": rows}
        found[f"{end}_shapes"] = ",".join(f"{one.name}:{_shape(one, sizes)}" for one in graph.input)
    return found


def _shape(one: Any, sizes: dict[str, int]) -> str:
    return "x".join(str(sizes.get(dim.dim_param, dim.dim_value)) for dim in one.type.tensor_type.shape.dim)


def test_the_digit_model_becomes_a_plan(build_plan: BuildPlan, digits: Path) -> None:
    built = build_plan(digits, "max_batch_size: 32")
    header = PlanHeader.of(built.content)
    assert built.product.annotations["flavour"] == header.flavour.value
    assert built.product.annotations["version"] == installed_version(header.flavour)
    assert built.product.annotations["compute_capabilities"] == ["8.0", "8.6", "8.9", "12.0", "12.1"]
    (profile,) = built.product.annotations["profiles"]
    assert [one[0][0] for one in profile["shapes"].values()] == [1]
    assert [one[2][0] for one in profile["shapes"].values()] == [32]


def test_a_batching_model_has_its_preferred_batch_as_the_best(build_plan: BuildPlan, perceptron: Path) -> None:
    built = build_plan(perceptron, "max_batch_size: 8 dynamic_batching { preferred_batch_size: [2, 4] }")
    assert built.product.annotations["profiles"] == [{"shapes": {"x": [[1, 4], [4, 4], [8, 4]]}, "values": {}}]
    assert built.tensors == {
        "x": {"name": "x", "is_input": True, "element": "FLOAT", "shape": [-1, 4], "on_host": False},
        "y": {"name": "y", "is_input": False, "element": "FLOAT", "shape": [-1, 3], "on_host": False},
    }


def test_a_model_of_two_profiles(build_plan: BuildPlan, perceptron: Path) -> None:
    built = build_plan(perceptron, min_shapes="x:1x4;x:8x4", opt_shapes="x:1x4;x:32x4", max_shapes="x:7x4;x:64x4")
    assert built.product.notes == ("profile 0: x [1, 4] to [7, 4]", "profile 1: x [8, 4] to [64, 4]")
    shapes = [profile["shapes"]["x"] for profile in built.product.annotations["profiles"]]
    assert shapes == [[[1, 4], [1, 4], [7, 4]], [[8, 4], [32, 4], [64, 4]]]


def test_an_input_whose_values_are_a_shape(build_plan: BuildPlan, save: Save) -> None:
    shapes = {"min_shapes": "x:4,shape:1x1", "opt_shapes": "x:12,shape:3x4", "max_shapes": "x:64,shape:8x8"}
    built = build_plan(save(models.reshape()), **shapes)
    (profile,) = built.product.annotations["profiles"]
    assert profile == {"shapes": {"x": [[4], [12], [64]]}, "values": {"shape": [[1, 1], [3, 4], [8, 8]]}}
    assert built.tensors["shape"]["on_host"]


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        *((kind, "fp32") for kind in DECODERS),
        *((kind, "fp16") for kind in in_full(DECODERS, otherwise=["llama", "gpt2"])),
    ],
)
def test_a_decoder_becomes_a_plan_whose_caches_are_updated_in_place(
    kind: str, precision: str, build_plan: BuildPlan, decoder: Callable[..., Path]
) -> None:
    model = decoder(kind, precision)
    built = build_plan(model, **decoder_shapes(model))
    caches = {name: one for name, one in built.tensors.items() if name.startswith("present.")}
    assert len(caches) == 4
    for name, one in caches.items():
        assert one["alias_of"] == name.replace("present.", "past_key_values.")
        assert one["shape"][2] == CAPACITY
        assert one["element"] == {"fp32": "FLOAT", "fp16": "HALF"}[precision]
    # There are fused kernels of 16 bits; only where there are none may attention be taken apart.
    apart = [note for note in built.product.notes if "no fused kernel for 2 attention layers in FLOAT" in note]
    assert len(apart) == (precision == "fp32")


def test_a_plan_can_be_built_for_chosen_gpus(build_plan: BuildPlan, perceptron: Path) -> None:
    built = build_plan(perceptron, "max_batch_size: 2", compute_capabilities="8.9,8.6")
    assert built.product.annotations["compute_capabilities"] == ["8.6", "8.9"]
    with pytest.raises(InvalidArgumentError, match=r"does not build for compute capability 9\.0; it knows 7\.5, 8\.0"):
        build_plan(perceptron, "max_batch_size: 2", compute_capabilities="9.0")


def test_a_plan_for_this_machines_gpu_needs_one(build_plan: BuildPlan, perceptron: Path) -> None:
    from repoagent.engines.probe import probe

    if probe().gpus:
        pytest.skip("there is a GPU")
    with pytest.raises(UnsupportedError, match="'current' needs a GPU to build for, and this machine has none: "):
        build_plan(perceptron, "max_batch_size: 2", compute_capabilities="current")


def test_settings_of_the_builder_are_taken(build_plan: BuildPlan, perceptron: Path) -> None:
    options = {"workspace": str(1 << 26), "optimization_level": "0", "tf32": "false"}
    assert build_plan(perceptron, "max_batch_size: 2", **options).content.startswith(b"vtrt")


def graph(operator: str, domain: str = "", *, kind: int = TensorProto.FLOAT, **attributes: Any) -> bytes:
    """y = operator(x), between additions, which any number has."""
    names = [("x", "a"), ("b", "y")]
    adds = [helper.make_node("Add", [name, name], [other], name=f"add {other}") for name, other in names]
    node = helper.make_node(operator, ["a"], ["b"], name="the one", domain=domain, **attributes)
    opsets = [helper.make_opsetid("", 24), *([helper.make_opsetid(domain, 1)] if domain else [])]
    tensors = [helper.make_tensor_value_info(name, kind, [4]) for name in ("x", "y")]
    made = helper.make_graph([adds[0], node, adds[1]], "g", tensors[:1], tensors[1:])
    return bytes(helper.make_model(made, opset_imports=opsets, ir_version=11).SerializeToString())


def in_bytes() -> bytes:
    """Numbers of a type that TensorRT has at the edges only."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], name="sum to bytes", to=TensorProto.UINT8),
        helper.make_node("Add", ["a", "a"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    return models.make(nodes, [("x", TensorProto.FLOAT, [4])], [("y", TensorProto.FLOAT, [4])])


def rounded() -> bytes:
    """What ONNX Runtime's dynamic quantisation makes."""
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])]
    return models.make(nodes, [("x", TensorProto.FLOAT, [4])], [("y", TensorProto.UINT8, [4])])


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (graph("NoSuchOperator"), ["node 'the one' (NoSuchOperator): the operator NoSuchOperator is not supported"]),
        (graph("QuickGelu", "com.microsoft"), ["(QuickGelu)", "convert from the original model"]),
        (
            graph("Identity", kind=TensorProto.STRING),
            ["cannot take the model: Failed to convert ONNX"],
        ),
        (models.nonzero(), ["node 0 (NonZero): the operator NonZero is not supported"]),
        (in_bytes(), ["node 'sum to bytes' (Cast): legalUINT8: TensorRT does not support UINT8 types"]),
        (rounded(), ["(DynamicQuantizeLinear)", "convert from the original model"]),
        (b"\x08\x0b\x3a\x00", ["TensorRT cannot take the model: it has no output"]),
    ],
)
def test_what_the_parser_refuses_is_named(content: bytes, texts: list[str], build_plan: BuildPlan, save: Save) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        build_plan(save(content))
    for text in texts:
        assert text in str(caught.value)


def test_a_graph_that_onnx_runtime_optimised_gets_the_hint(build_plan: BuildPlan, tmp_path: Path) -> None:
    import onnxruntime as ort

    with pytest.raises(InvalidArgumentError, match="convert from the original model, or optimise with level 'basic'"):
        build_plan(_optimised(tmp_path, ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED), "max_batch_size: 2")
    basic = _optimised(tmp_path, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    assert build_plan(basic, "max_batch_size: 2").content


def _optimised(directory: Path, level: Any) -> Path:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.graph_optimization_level = level
    settings.optimized_model_filepath = str(directory / f"{level.name}.onnx")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [1.0] * 12)
    bias = helper.make_tensor("b", TensorProto.FLOAT, [3], [1.0] * 3)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    tensors: Any = [("x", TensorProto.FLOAT, ["n", 4])]
    content = models.make(nodes, tensors, [("y", TensorProto.FLOAT, ["n", 3])], [weight, bias])
    ort.InferenceSession(content, settings, ["CPUExecutionProvider"])
    return Path(settings.optimized_model_filepath)


def test_a_decoder_whose_cache_length_varies_gets_the_hint(build_plan: BuildPlan, decoder: Callable[..., Path]) -> None:
    model = decoder("llama", "fp32", None)
    with pytest.raises(InvalidArgumentError, match=r"TensorScatter.*static sequence length.*build\(capacity=N\)"):
        build_plan(model, min_shapes="x:1", opt_shapes="x:1", max_shapes="x:1")


def test_an_input_that_varies_without_a_range_is_refused_before_the_library_does(
    build_plan: BuildPlan, save: Save
) -> None:
    with pytest.raises(InvalidArgumentError, match="dimension 1 of input 'x' varies, and nothing states how far"):
        build_plan(save(models.twice(shape=("n", "m"))), "max_batch_size: 2")


def test_a_build_in_this_process_is_cancelled_half_way(build_plan: BuildPlan, decoder: Callable[..., Path]) -> None:
    from repoagent.converters.onnx.plan_settings import plan_settings
    from repoagent.converters.onnx.tensorrt import TensorRtConverter
    from repoagent.engines.builder.build import build_plan as build_here
    from repoagent.loader.converting.registry import option_values

    model = decoder("llama", "fp16")
    settings = plan_settings(None, option_values(TensorRtConverter(), decoder_shapes(model)))
    cancelled, seen = threading.Event(), []

    def progress(done: int, total: int | None, what: str) -> None:
        seen.append(done)
        if done == 100:
            cancelled.set()

    with pytest.raises(CancelledError):
        build_here(model, model.parent / "x.plan", settings, progress=progress, cancelled=cancelled.is_set)
    assert 100 <= max(seen) < 150
    assert not (model.parent / "x.plan").exists()


def test_the_error_that_is_shown_is_the_first_and_not_about_the_missing_driver(build_plan: BuildPlan) -> None:
    from repoagent.engines.builder.network import first_error

    noise = "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (no driver (cudaError 35: old))"
    assert first_error([noise, "[a.cpp::b::1] the cause", "a consequence"]) == "the cause"
    assert first_error([noise]).startswith("Error Code 1: Cuda Runtime")
    assert first_error([]) == "the library gives no reason"


def test_errors_of_two_builds_in_one_process_are_both_collected(build_plan: BuildPlan, save: Save) -> None:
    """The library keeps the first logger that it is given, and ignores every other one."""
    from repoagent.engines.builder.build import build_plan as build_here
    from repoagent.engines.builder.profiles import PlanSettings

    for name in ("FirstOperator", "SecondOperator"):
        model = save(graph(name))
        with pytest.raises(InvalidArgumentError, match=name):
            build_here(model, model, PlanSettings(), progress=lambda *_: None, cancelled=lambda: False)
