"""The platform over the real library and real plans, as far as it goes without a driver.

A GPU that is not there is claimed. What is asked of CUDA is refused by CUDA itself, and what is asked of the library
before it needs a GPU is answered by the library.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from repoagent.engines.flavours import Flavour, installed
from repoagent.engines.probe import Findings, Gpu
from repoagent.engines.protocol import EngineOptions
from repoagent.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from tests.engines import models
from tests.engines.builder.plans import BuildPlan, need_tensorrt


@pytest.fixture
def platform_of() -> Callable[..., Any]:
    """A platform that takes this machine for one with a GPU of such a compute capability."""
    need_tensorrt()
    if installed()[0] is not Flavour.RTX:
        pytest.skip("the library that is installed ends a process without a driver")
    pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    from repoagent.engines.bindings import FLAVOUR, trt
    from repoagent.engines.cuda.platform import CudaPlatform

    def make(*capability: int) -> Any:
        gpu = Gpu(0, "claimed", (capability[0], capability[1]), 1 << 34)
        return CudaPlatform(Findings(FLAVOUR.value, str(trt.__version__), (gpu,)))

    return make


@pytest.fixture
def plan(build_plan: BuildPlan, tmp_path: Path) -> bytes:
    """For GPUs of compute capability 8.9 only."""
    (tmp_path / "model.onnx").write_bytes(models.matmul())
    built = build_plan(tmp_path / "model.onnx", "max_batch_size: 8", compute_capabilities="8.9")
    return built.content


def test_a_real_plan_passes_on_the_gpu_that_it_was_built_for(platform_of: Any, plan: bytes) -> None:
    platform_of(8, 9).check_plan(plan, 0)


def test_every_fault_of_a_real_plan_has_its_own_message(platform_of: Any, plan: bytes) -> None:
    platform = platform_of(8, 9)
    version = plan[:24] + bytes((plan[24], plan[25] + 1)) + plan[26:]
    faults = {
        b"garbage" * 100: (InvalidArgumentError, "not a TensorRT plan: it begins with 67 61 72 62"),
        b"": (InvalidArgumentError, "not a TensorRT plan: it begins with nothing"),
        plan[:-1]: (InvalidArgumentError, "the plan is cut off"),
        plan + b"more": (InvalidArgumentError, "the plan is followed by something else"),
        version: (UnsupportedError, "a plan runs with the version that built it"),
    }
    for content, (kind, text) in faults.items():
        with pytest.raises(kind, match=text):
            platform.check_plan(content, 0)


@pytest.mark.parametrize("capability", [(7, 5), (9, 0), (12, 0)])
def test_a_real_plan_for_another_gpu_is_refused(platform_of: Any, plan: bytes, capability: tuple[int, int]) -> None:
    here = ".".join(map(str, capability))
    with pytest.raises(UnsupportedError, match=f"built for GPUs of compute capability 8.9, and here is one of {here}"):
        platform_of(*capability).check_plan(plan, 0)


def test_a_gpu_that_is_not_there_is_named(platform_of: Any, plan: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no GPU 3 here; there are 0"):
        platform_of(8, 9).check_plan(plan, 3)


# -- without a driver ---------------------------------------------------------------------------------------------


@pytest.fixture
def no_driver() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    if int(runtime.cudaGetDeviceCount()[0]) == 0:
        pytest.skip("this machine has a driver")


def test_cuda_refuses_with_its_own_word(platform_of: Any, plan: bytes, no_driver: None) -> None:
    platform = platform_of(8, 9)
    device = platform.device(0)
    calls: list[Callable[[], object]] = [
        lambda: platform.open(plan, EngineOptions()),
        lambda: device.allocate(10),
        lambda: device.allocate_host(10),
        device.new_stream,
        device.new_event,
    ]
    for call in calls:
        with pytest.raises(InternalError, match="CUDA cannot use GPU 0: cudaErrorInsufficientDriver"):
            call()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"garbage" * 100, "kEXPECTED_MAGIC_TAG"),
        (b"", "Cannot deserialize with an empty memory buffer"),
    ],
)
def test_what_the_library_refuses_has_its_first_reason(
    platform_of: Any, no_driver: None, monkeypatch: pytest.MonkeyPatch, content: bytes, reason: str
) -> None:
    platform = platform_of(8, 9)
    monkeypatch.setattr(platform.device(0), "use", lambda: None)
    with pytest.raises(InternalError, match=f"TensorRT cannot open the plan: .*{reason}") as caught:
        platform.open(content, EngineOptions())
    assert ("(MALFORMED_ENGINE)" in str(caught.value)) is (content != b"")
    # What one call has left is not the reason of the next one.
    with pytest.raises(InternalError, match=r"TensorRT cannot open the plan: .*kEXPECTED_MAGIC_TAG"):
        platform.open(b"other" * 100, EngineOptions())


def test_what_an_allocator_raises_is_kept_for_the_call_that_can_raise_it(platform_of: Any) -> None:
    platform_of(8, 9)
    from repoagent.engines.cuda.engine import _Allocator

    class Full:
        def reallocate(self, size: int) -> int:
            raise UnavailableError(f"there are no {size} bytes")

        def notify(self, shape: tuple[int, ...]) -> None:
            raise AssertionError

    allocator = _Allocator(cast(Any, Full()))
    assert allocator.take_failure() is None
    assert allocator.reallocate_output_async("y", 0, 10, 256, 0) == 0
    failure = allocator.take_failure()
    assert isinstance(failure, UnavailableError)
    assert "there are no 10 bytes" in str(failure)
    assert allocator.take_failure() is None


@pytest.mark.slow
def test_the_probe_finds_the_library_and_no_driver(platform_of: Any, no_driver: None) -> None:
    from repoagent.engines.probe import probe

    found = probe()
    assert found.flavour == "tensorrt_rtx"
    assert "CUDA finds no usable driver (cudaErrorInsufficientDriver)" in found.problem
