"""The converter to plans, as far as it goes without TensorRT; real plans are built in tests/engines/builder."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from repoagent.api import ConversionPlan, ConversionSource, Product
from repoagent.config import read_text
from repoagent.converters import plans
from repoagent.converters.onnx import tensorrt
from repoagent.converters.onnx.tensorrt import TensorRtConverter
from repoagent.engines.flavours import Flavour
from repoagent.engines.probe import Findings, Gpu
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.loader.conversion import cache_key
from repoagent.loader.converting.registry import option_values

Save = Callable[..., Path]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``here(*flavours, version, gpus)``: what is installed, and in the machine."""

    def here(*flavours: Flavour, version: str = "1.7.1.116", gpus: tuple[Gpu, ...] = ()) -> None:
        monkeypatch.setattr(plans, "installed", lambda: list(flavours))
        monkeypatch.setattr(tensorrt, "installed_version", lambda _: version)
        monkeypatch.setattr(plans, "probe", lambda: Findings("x", version, gpus, "" if gpus else "no driver"))

    here(Flavour.RTX)
    return here


@pytest.fixture
def plan(save: Save, perceptron: "onnx.ModelProto") -> Callable[..., ConversionPlan]:
    model = save(perceptron)

    def plan(config: str = "max_batch_size: 8", **options: str) -> ConversionPlan:
        source = ConversionSource(model.parent, model.name, "1/model.onnx", read_text(config))
        return TensorRtConverter().plan(source, option_values(TensorRtConverter(), options))

    return plan


def test_every_option_version_and_gpu_is_another_result(
    here: Callable[..., None], plan: Callable[..., ConversionPlan]
) -> None:
    def key(config: str = "max_batch_size: 8", **options: str) -> str:
        return cache_key(("onnx", "tensorrt"), "1", plan(config, **options), {"model.onnx": "00"})

    keys = [
        key(),
        key("max_batch_size: 4"),
        key('max_batch_size: 8 input { name: "x" dims: [8] }'),
        key(min_shapes="x:1x8", opt_shapes="x:1x8", max_shapes="x:1x8"),
        key(workspace="1000"),
        key(optimization_level="5"),
        key(tf32="false"),
        key(compute_capabilities="8.9"),
        key(output="other.plan"),
    ]
    here(Flavour.RTX, version="1.8.0.1")
    keys.append(key())
    for capability in ((8, 9), (9, 0)):
        here(Flavour.TENSORRT, gpus=(Gpu(0, "a GPU", capability, 1),))
        keys.append(key())
        here(Flavour.RTX, gpus=(Gpu(0, "a GPU", capability, 1),))
        keys.append(key(compute_capabilities="current"))
    assert len(set(keys)) == len(keys)


def test_planning_twice_gives_the_same_key(here: Callable[..., None], plan: Callable[..., ConversionPlan]) -> None:
    assert plan() == plan()


def test_without_tensorrt_the_refusal_names_what_to_install(
    here: Callable[..., None], plan: Callable[..., ConversionPlan]
) -> None:
    here()
    with pytest.raises(UnsupportedError, match=r"neither TensorRT nor TensorRT for RTX is installed; from a checkout"):
        plan()


def test_a_decoder_folder_gets_the_hint_how_it_becomes_a_plan(
    here: Callable[..., None], save: Save, perceptron: "onnx.ModelProto"
) -> None:
    model = save(perceptron)
    source = ConversionSource(model.parent, model.name, "1/model.onnx", read_text('backend: "llm"'))
    options = option_values(TensorRtConverter(), {})
    with pytest.raises(InvalidArgumentError, match=r"the configuration has 'llm'$"):
        TensorRtConverter().plan(source, options)
    (model.parent / "genai_config.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="the model is a decoder: convert it with the parameter 'from' = "):
        TensorRtConverter().plan(source, options)


def test_tensorrt_itself_builds_for_a_gpu_that_is_there(
    here: Callable[..., None], plan: Callable[..., ConversionPlan]
) -> None:
    here(Flavour.TENSORRT)
    with pytest.raises(UnsupportedError, match=r"a plan of TensorRT needs a GPU to build for.*: no driver"):
        plan()


def test_a_flavour_can_be_chosen(here: Callable[..., None], plan: Callable[..., ConversionPlan]) -> None:
    here(Flavour.TENSORRT, Flavour.RTX, gpus=(Gpu(0, "a GPU", (8, 9), 1),))
    assert plan().settings["flavour"] == "tensorrt"
    assert plan(flavour="tensorrt_rtx").settings["flavour"] == "tensorrt_rtx"
    with pytest.raises(InvalidArgumentError, match="'trt' is not one of tensorrt, tensorrt_rtx"):
        plan(flavour="trt")
    here(Flavour.RTX)
    with pytest.raises(UnsupportedError, match="TensorRT is not installed; there is tensorrt_rtx"):
        plan(flavour="tensorrt")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("precision", "plans are strongly typed"),
        ("refit", "not supported yet"),
        ("strip_plan", "not supported yet"),
        ("weight_streaming", "not supported yet"),
        ("version_compatible", "runs with the version that built it"),
        ("timing_cache", "the result itself is kept"),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(
    name: str, text: str, here: Callable[..., None], plan: Callable[..., ConversionPlan]
) -> None:
    with pytest.raises(UnsupportedError, match=f"parameter '{name}': .*{text}"):
        plan(**{name: "true"})


def test_the_configuration_names_the_plan_and_its_backend() -> None:
    config = read_text("""
platform: "onnxruntime_onnx" default_model_filename: "net.onnx"
optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }
instance_group { profile: ["1"] }
""")
    product = Product({"profiles": [{}, {}]})
    TensorRtConverter().configure(config, ConversionPlan(("net.onnx",), "model.plan"), product)
    assert (config.backend, config.platform, config.default_model_filename) == ("tensorrt", "", "model.plan")
    assert not config.optimization.HasField("execution_accelerators")
    assert list(config.instance_group[0].profile) == ["1"]


def test_other_accelerators_stay() -> None:
    config = read_text("""
optimization { execution_accelerators {
  gpu_execution_accelerator [ { name: "tensorrt" }, { name: "other" } ] cpu_execution_accelerator { name: "openvino" }
} }
""")
    TensorRtConverter().configure(config, ConversionPlan((), "model.plan"), Product({"profiles": []}))
    left = config.optimization.execution_accelerators
    assert [one.name for one in left.gpu_execution_accelerator] == ["other"]
    assert [one.name for one in left.cpu_execution_accelerator] == ["openvino"]


def test_a_profile_that_will_not_be_there_is_refused_before_the_build(
    here: Callable[..., None], plan: Callable[..., ConversionPlan]
) -> None:
    shapes = dict.fromkeys(("min_shapes", "opt_shapes", "max_shapes"), "x:1x8;x:2x8")
    plan('instance_group { profile: ["1"] }', **shapes)
    with pytest.raises(InvalidArgumentError, match="asks for profile 2, but 2 are given, counted from 0"):
        plan('instance_group { profile: ["2"] }', **shapes)
    config = read_text('instance_group { profile: ["1"] }')
    with pytest.raises(InvalidArgumentError, match="asks for profile 1, but the plan has 1, counted from 0"):
        TensorRtConverter().configure(config, plan(), Product({"profiles": [{}]}))


@pytest.mark.slow
def test_nothing_of_tensorrt_is_imported_before_a_build() -> None:
    program = """
import sys
from repoagent.converters import BUILT_IN_CONVERTERS
from repoagent.loader.converting.registry import Converters
converters = Converters(BUILT_IN_CONVERTERS)
for pair in converters.pairs:
    converters.get(pair)
found = [name for name in sys.modules if name.startswith(("tensorrt", "onnx", "cuda", "repoagent.engines.bindings"))]
print(found)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
