"""What only the module that calls CUDA and TensorRT has to get right."""

import logging
import threading
from typing import Any

import numpy as np
import pytest

from repoagent.engines.protocol import EngineOptions
from repoagent.errors import InternalError, UnavailableError, UnsupportedError
from repoagent.serving.backends.tensorrt.runner import TensorRtRunner
from repoagent.serving.instances.backend import InstanceSpec
from repoagent.serving.requests.tensor import Tensor
from tests.engines.models import matmul, nonzero, twice
from tests.serving.backends.tensorrt.kit import GPU, load, plan, rows, runner, through_onnxruntime

PLAN = plan(matmul(), rows(1, 8, x=(4,)))
X = {"x": Tensor.of(np.arange(8, dtype=np.float32).reshape(2, 4))}


def test_another_thread_may_run_what_one_thread_has_made(cuda: Any) -> None:
    """The current GPU belongs to a thread, and a new one begins with GPU 0."""
    _, model = load(PLAN, "instance_group { kind: KIND_GPU gpus: 1 }")
    one = model.create_instance(InstanceSpec("m_0", "GPU", 1))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(one.run(X, ())["y"].array)) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    wanted = through_onnxruntime(matmul()).run(X, ())["y"].array
    assert [array.tolist() for array in found] == [wanted.tolist()] * 2
    assert cuda.DEVICES[0].allocations == 0


def test_a_graph_runs_on_its_gpu_from_any_thread(cuda: Any) -> None:
    _, model = load(PLAN, "optimization { cuda { graphs: true } } instance_group { kind: KIND_GPU gpus: 1 }")
    one = model.create_instance(InstanceSpec("m_0", "GPU", 1))
    found: list[Any] = []
    for _ in range(4):
        thread = threading.Thread(target=lambda: found.append(one.run(X, ())["y"].array))
        thread.start()
        thread.join()
    assert cuda.calls.count("cudaGraphLaunch") == 2
    assert all(np.array_equal(one, found[0]) for one in found)


def test_an_output_of_unknown_shape_has_one_allocator_whatever_comes() -> None:
    """A context keeps every allocator that it was given."""
    one = runner(plan(nonzero(), rows(1, 64, x=(4,))), "max_batch_size: 0")
    for size in (1, 2, 3) * 20:
        one.run({"x": Tensor.of(np.ones((size, 4), np.float32))}, ())
    inner: Any = one._context
    assert len(inner._context.kept) == 1


def test_memory_that_is_missing_in_a_run_is_the_reason_and_the_next_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an allocator could not raise belongs to its own run."""
    one = runner(plan(nonzero(), rows(1, 64, x=(4,))))
    inputs = {"x": Tensor.of(np.ones((8, 4), np.float32))}
    wanted = one.run(inputs, ())["y"].array

    def refuse(size: int) -> int:
        raise UnavailableError(f"there are no {size} bytes")

    with monkeypatch.context() as patched:
        for slot in one._slots:
            patched.setattr(slot.grown["y"], "reallocate", refuse)
        with pytest.raises(UnavailableError, match="there are no"):
            one.run(inputs, ())
    np.testing.assert_array_equal(one.run(inputs, ())["y"].array, wanted)


def test_a_size_beyond_all_numbers_is_refused_as_memory_that_is_missing(platform: Any) -> None:
    for call in (platform.device(0).allocate, platform.device(0).allocate_host):
        with pytest.raises(UnavailableError, match="bytes are more than any GPU has"):
            call(1 << 70)


def test_after_an_error_that_lasts_the_message_names_the_remedy_and_everything_closes(
    cuda: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, model = load(PLAN)
    one: TensorRtRunner = model.create_instance(GPU)
    one.run(X, ())
    cuda.fail_for_good(cuda.cudaError_t.cudaErrorIllegalAddress)
    try:
        with pytest.raises(InternalError, match="cudaErrorIllegalAddress; no plan can run in this process any more"):
            one.run(X, ())
        with caplog.at_level(logging.WARNING):
            one.close()
            model.close()
        assert any("CUDA cannot free memory: cudaErrorIllegalAddress" in one.message for one in caplog.records)
    finally:
        cuda.fail_for_good(None)
        cuda.DEVICES[0]._blocks.clear()
        cuda.DEVICES[0]._starts.clear()
        for table in (cuda._streams, cuda._events, cuda._pinned):
            table.clear()


def test_a_closed_context_and_engine_hold_nothing(platform: Any) -> None:
    """Their memory goes with the last reference."""
    engine = platform.open(PLAN, EngineOptions())
    context = engine.new_context()
    context.close()
    engine.close()
    assert context._opened is None
    assert engine._engine is None
    with pytest.raises(InternalError, match="the execution context is closed"):
        context.bind("x", 0)
    with pytest.raises(InternalError, match="the engine is closed"):
        engine.new_context()


def test_what_the_library_logs_is_the_reason(platform: Any) -> None:
    with pytest.raises(InternalError, match="TensorRT cannot open the plan: deserializeCudaEngine: not a plan of"):
        platform.open(b"ftrt".ljust(100, b"\0"), EngineOptions())
    context = platform.open(PLAN, EngineOptions()).new_context()
    with pytest.raises(InternalError, match=r"TensorRT cannot find 'x' at 0x11: setTensorAddress: .* multiple of 256"):
        context.bind("x", 17)
    with pytest.raises(InternalError, match="TensorRT cannot use profile 3"):
        context.use_profile(3, platform.device(0).new_stream())
    context.close()


def test_an_error_of_the_librarys_own_thread_is_the_reason_too() -> None:
    from repoagent.engines.cuda.engine import TensorRtLog

    log = TensorRtLog()
    log.clear()
    thread = threading.Thread(target=log.log, args=(log.ERROR, "of a thread\nI1123 a line of its own"))
    thread.start()
    thread.join()
    assert log.reason() == "of a thread\\nI1123 a line of its own"
    log.clear()
    assert log.reason() == "TensorRT gave no reason"


def test_a_shape_that_the_library_cannot_infer_is_an_error_of_ours(platform: Any) -> None:
    engine = platform.open(PLAN, EngineOptions())
    context = engine.new_context()

    def fail(name: str) -> Any:
        import tensorrt

        return tensorrt.Dims((), -1)

    context._context.get_tensor_shape = fail
    with pytest.raises(InternalError, match="TensorRT cannot infer the shape of 'y'"):
        context.shape_of("y")


def test_weight_streaming_and_formats_and_types_that_are_not_known_are_refused_by_name(
    platform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorrt

    cases: dict[str, tuple[str, Any]] = {
        "the plan was built with weight streaming": ("streamable_weights_size", 5),
        r"tensor 'x' of the plan has the format .* in profile 0": ("get_tensor_format", lambda *_: "CHW32"),
        "tensor 'x' of the plan has elements of type FP2": (
            "get_tensor_dtype",
            lambda *_: type("Kind", (), {"name": "FP2"}),
        ),
    }
    for text, (name, value) in cases.items():
        with monkeypatch.context() as patched:
            patched.setattr(tensorrt.ICudaEngine, name, value)
            with pytest.raises(UnsupportedError, match=text):
                platform.open(PLAN, EngineOptions())


def test_host_code_is_allowed_where_the_operator_says_so_and_nowhere_else(platform: Any) -> None:
    for allowed in (True, False):
        engine = platform.open(PLAN, EngineOptions(host_code_allowed=allowed))
        assert engine._engine._runtime.engine_host_code_allowed is allowed
        engine.close()


def test_a_run_of_a_warm_shape_takes_few_calls(cuda: Any) -> None:
    """Each call lets other threads of Python go first, which under load takes longer than the call."""
    one = runner(plan(twice(), rows(1, 8, x=(4,))), "max_batch_size: 8 dynamic_batching { }")
    for _ in range(3):
        one.run(X, ())
    cuda.calls.clear()
    one.run(X, ())
    assert sorted(cuda.calls) == sorted(
        ["cudaMemcpyAsync"] * 2
        + ["cudaEventRecord"] * 3
        + ["cudaStreamWaitEvent"] * 2
        + ["cudaSetDevice", "cudaEventSynchronize"]
    )
