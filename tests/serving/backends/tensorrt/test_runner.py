"""Runs over the stand-in: the numbers of ONNX Runtime, and what a runner promises.

``tests/engines/interfaces`` runs these over the module that calls CUDA and TensorRT as well.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from repoagent.engines.protocol import ElementType, Profile, Profiles, ShapeRange, TensorSpec
from repoagent.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent.serving.backends.tensorrt.runner import TensorRtRunner
from repoagent.serving.backends.tensorrt.signature import signature_of
from repoagent.serving.instances.backend import Capability, InstanceSpec
from repoagent.serving.requests.tensor import DataType, Tensor
from tests.engines.models import add_sub, make, matmul, nonzero, reshape, twice
from tests.engines.platforms import allocations, new_platform, over_interfaces
from tests.serving.backends.tensorrt.kit import GPU, load, plan, rows, runner, through_onnxruntime

NO_RANGES = pytest.mark.skipif(
    over_interfaces(), reason="TensorRT has a range for every dimension that varies, and memory for it is reserved"
)
DIGITS = Path(__file__).parents[4] / "examples/digits"
BATCHING = "max_batch_size: 8 dynamic_batching { }"

rng = np.random.default_rng(7)


def _floats(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def _same(ours: Any, theirs: Any) -> None:
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert ours[name].data_type is tensor.data_type
        np.testing.assert_array_equal(ours[name].array, tensor.array)


KINDS: dict[int, Any] = {
    TensorProto.FLOAT: np.array([[1.5, -2, np.inf, 0]], np.float32),
    TensorProto.FLOAT16: np.array([[1.5, -2, 0, 65504]], np.float16),
    TensorProto.INT8: np.array([[1, -2, 127, 0]], np.int8),
    TensorProto.UINT8: np.array([[1, 2, 255, 0]], np.uint8),
    TensorProto.INT32: np.array([[1, -2, 2**31 - 1, 0]], np.int32),
    TensorProto.INT64: np.array([[1, -2, 2**62, 0]], np.int64),
    TensorProto.BOOL: np.array([[True, False, True, True]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_gives_the_numbers_of_onnxruntime(kind: int) -> None:
    model = make([helper.make_node("Identity", ["x"], ["y"])], [("x", kind, ("n", 4))], [("y", kind, ("n", 4))])
    inputs = {"x": Tensor.of(np.concatenate([KINDS[kind]] * 3))}
    ours = runner(plan(model, rows(1, 8, x=(4,)))).run(inputs, ())
    _same(ours, through_onnxruntime(model).run(inputs, ()))


def test_bfloat16_travels_as_its_bits() -> None:
    model = twice(TensorProto.BFLOAT16)
    bits = np.array([[0x3F80, 0x4000, 0xC000, 0]], np.uint16)
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    kind = TensorProto.BFLOAT16
    model = make(nodes, [("x", kind, ("n", 4))], [("y", kind, ("n", 4))])
    inputs = {"x": Tensor(DataType.BF16, bits)}
    ours = runner(plan(model, rows(1, 8, x=(4,)))).run(inputs, ())
    _same(ours, through_onnxruntime(model).run(inputs, ()))


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_the_digit_model_gives_the_numbers_of_onnxruntime(size: int) -> None:
    model = (DIGITS / "model.onnx").read_bytes()
    session = through_onnxruntime(model)
    (info,) = session._session.get_inputs()
    width = info.shape[1:]
    inputs = {info.name: Tensor.of(_floats(size, *width))}
    content = plan(model, rows(1, 8, **{info.name: tuple(width)}))
    _same(runner(content).run(inputs, ()), session.run(inputs, ()))


@pytest.mark.parametrize("model", [matmul(), add_sub()])
def test_models_that_batch(model: bytes) -> None:
    names = {"x": (4,)} if b"sum" not in model else {"a": (3,), "b": (3,)}
    ours, theirs = runner(plan(model, rows(1, 8, **names)), BATCHING), through_onnxruntime(model)
    for size in (1, 8, 3, 3, 1):
        inputs = {name: Tensor.of(_floats(size, *rest)) for name, rest in names.items()}
        _same(ours.run(inputs, ()), theirs.run(inputs, ()))


def test_only_the_outputs_asked_for_are_returned() -> None:
    one = runner(plan(add_sub(), rows(1, 8, a=(3,), b=(3,))))
    inputs = {name: Tensor.of(_floats(2, 3)) for name in "ab"}
    assert set(one.run(inputs, ("difference",))) == {"difference"}
    assert set(one.run(inputs, ())) == {"sum", "difference"}


def test_inputs_need_not_lie_in_one_piece() -> None:
    inputs = {"x": Tensor.of(_floats(4, 4).T)}
    model = matmul()
    _same(runner(plan(model, rows(1, 8, x=(4,)))).run(inputs, ()), through_onnxruntime(model).run(inputs, ()))


def test_what_was_returned_stays_when_the_next_run_goes_on() -> None:
    one = runner(plan(matmul(), rows(1, 8, x=(4,))), BATCHING)
    first = one.run({"x": Tensor.of(np.ones((2, 4), np.float32))}, ())["y"].array
    before = first.copy()
    for _ in range(3):
        one.run({"x": Tensor.of(_floats(2, 4))}, ())
    np.testing.assert_array_equal(first, before)


# -- the two halves -----------------------------------------------------------------------------------------------


def test_the_halves_give_what_the_plain_form_gives() -> None:
    one = runner(plan(matmul(), rows(1, 8, x=(4,))), BATCHING)
    assert Capability.OVERLAPS in one.capabilities
    parts = [_floats(1, 4), _floats(3, 4), _floats(2, 4)]
    joined = one.run({"x": Tensor.of(np.concatenate(parts))}, ())
    _same(one.finish(one.begin({"x": parts}, ())), joined)


def test_two_runs_are_on_their_way_and_do_not_disturb_each_other() -> None:
    one = runner(plan(matmul(), rows(1, 8, x=(4,))), BATCHING)
    assert one.depth == 2
    batches = [[_floats(2, 4)], [_floats(3, 4), _floats(1, 4)], [_floats(2, 4)], [_floats(8, 4)]]
    wanted = [one.run({"x": Tensor.of(np.concatenate(parts))}, ()) for parts in batches]
    begun = one.begin({"x": batches[0]}, ())
    for place, parts in enumerate(batches[1:]):
        following = one.begin({"x": parts}, ())
        _same(one.finish(begun), wanted[place])
        begun = following
    _same(one.finish(begun), wanted[-1])


def test_inputs_may_be_overwritten_when_a_run_has_begun() -> None:
    one = runner(plan(matmul(), rows(1, 8, x=(4,))), BATCHING)
    mine = _floats(2, 4)
    wanted = one.run({"x": Tensor.of(mine)}, ())
    begun = one.begin({"x": [mine]}, ())
    mine[:] = 0
    _same(one.finish(begun), wanted)


def test_more_runs_than_there_is_memory_for_are_refused() -> None:
    one = runner(plan(matmul(), rows(1, 8, x=(4,))), "max_batch_size: 1")
    assert one.depth == 1
    begun = one.begin({"x": [_floats(1, 4)]}, ())
    with pytest.raises(InternalError, match="1 runs are on their way"):
        one.begin({"x": [_floats(1, 4)]}, ())
    one.finish(begun)
    one.run({"x": Tensor.of(_floats(1, 4))}, ())


# -- profiles -----------------------------------------------------------------------------------------------------

TWO = (rows(1, 2, x=(4,)), rows(3, 16, x=(4,)))


def test_each_batch_runs_with_the_tightest_profile_that_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = matmul()
    one, theirs = runner(plan(model, *reversed(TWO)), BATCHING), through_onnxruntime(model)
    chosen = []
    use = one._context.use_profile

    def note(index: int, stream: Any) -> None:
        chosen.append(index)
        use(index, stream)

    monkeypatch.setattr(one._context, "use_profile", note)
    for size in (1, 5, 2, 16, 16):
        inputs = {"x": Tensor.of(_floats(size, 4))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))
    assert chosen == [0, 1, 0]


def test_a_group_uses_the_profiles_that_it_names() -> None:
    config, model = load(plan(matmul(), *TWO), "max_batch_size: 16 instance_group { profile: '1' kind: KIND_GPU }")
    one = model.create_instance(InstanceSpec("m_0", "GPU", profiles=("1",)))
    one.run({"x": Tensor.of(_floats(3, 4))}, ())
    with pytest.raises(InvalidArgumentError, match=r"no profile of the plan allows the inputs 'x' \[1, 4\]; profile 1"):
        one.run({"x": Tensor.of(_floats(1, 4))}, ())
    assert config.instance_group[0].profile == ["1"]


def test_a_profile_that_the_plan_does_not_have_is_refused_at_load() -> None:
    _, model = load(plan(matmul(), *TWO))
    with pytest.raises(InvalidArgumentError, match="instance_group names profile 2, and the plan has 2: 0 to 1"):
        model.create_instance(InstanceSpec("m_0", "GPU", profiles=("2",)))


def test_a_batch_beyond_every_profile_is_refused_and_the_next_one_runs() -> None:
    one = runner(plan(matmul(), *TWO), BATCHING)
    with pytest.raises(InvalidArgumentError, match=r"'x' \[17, 4\]; profile 0 allows 'x' \[1, 4\] to \[2, 4\]"):
        one.run({"x": Tensor.of(_floats(17, 4))}, ())
    assert one.run({"x": Tensor.of(_floats(2, 4))}, ())["y"].array.shape == (2, 3)


def test_a_batch_size_that_no_profile_allows_is_refused_at_load() -> None:
    with pytest.raises(InvalidArgumentError, match=r"max_batch_size is 32, and the largest batch .* allow is 16"):
        load(plan(matmul(), *TWO), "max_batch_size: 32")


# -- tensors that are not as others -------------------------------------------------------------------------------


def test_an_output_whose_shape_only_the_run_tells() -> None:
    model = nonzero()
    one, theirs = runner(plan(model, rows(1, 64, x=(4,)))), through_onnxruntime(model)
    for values in ([[0, 1, 0, 2]], [[0, 0, 0, 0]], [[1, 1, 1, 1]] * 64, [[3, 0, 0, 0]]):
        inputs = {"x": Tensor.of(np.array(values, np.float32))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))


def test_a_shape_tensor_is_read_on_the_host() -> None:
    model = reshape()
    profile = Profile({"x": ShapeRange((1,), (6,), (64,))}, {"shape": ShapeRange((1, 1), (2, 3), (64, 64))})
    config, loaded = load(plan(model, profile, on_host=("shape",)))
    assert [(item.name, item.is_shape_tensor) for item in config.input] == [("x", False), ("shape", True)]
    one, theirs = loaded.create_instance(GPU), through_onnxruntime(model)
    for shape in ((2, 3), (3, 2), (6, 1), (2, 3)):
        inputs = {"x": Tensor.of(_floats(6)), "shape": Tensor.of(np.array(shape, np.int64))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))
    with pytest.raises(InvalidArgumentError, match=r"'shape' \[65, 1\]; profile 0 allows .*'shape' \[1, 1\] to"):
        one.run({"x": Tensor.of(_floats(65)), "shape": Tensor.of(np.array((65, 1), np.int64))}, ())


def test_a_configuration_that_disagrees_about_shape_tensors_is_refused() -> None:
    profile = Profile({"x": ShapeRange((1,), (6,), (64,))}, {"shape": ShapeRange((1, 1), (2, 3), (64, 64))})
    text = """
        input [{ name: "x" data_type: TYPE_FP32 dims: -1 }, { name: "shape" data_type: TYPE_INT64 dims: 2 }]
        output { name: "y" data_type: TYPE_FP32 dims: [-1, -1] }
    """
    with pytest.raises(InvalidArgumentError, match="'shape' is a shape tensor in the plan; set is_shape_tensor: true"):
        load(plan(reshape(), profile, on_host=("shape",)), text)


def test_an_output_in_the_memory_of_an_input() -> None:
    one, theirs = runner(plan(twice(), rows(1, 8, x=(4,)), aliases={"y": "x"}), BATCHING), through_onnxruntime(twice())
    inputs = {"x": Tensor.of(_floats(2, 4))}
    for _ in range(2):
        _same(one.run(inputs, ()), theirs.run(inputs, ()))


@pytest.mark.parametrize("element", [ElementType.FP8, ElementType.FP4, ElementType.INT4, ElementType.E8M0])
def test_elements_that_no_request_can_carry_are_refused_by_name(element: ElementType) -> None:
    engine: Any = SimpleNamespace(tensors=[TensorSpec("x", True, element, (2,))])
    with pytest.raises(
        UnsupportedError, match=f"'x' of the plan has elements of type {element.name}, which no request"
    ):
        signature_of(engine, batching=False)


# -- graphs -------------------------------------------------------------------------------------------------------

GRAPHS = BATCHING + " optimization { cuda { graphs: true } }"


def _count_captures(one: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    captured: list[int] = []
    begin = one._device.begin_capture

    def note(stream: Any) -> None:
        captured.append(1)
        begin(stream)

    monkeypatch.setattr(one._device, "begin_capture", note)
    return captured


def test_runs_of_known_shapes_become_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: which kernels they hold, only a GPU can show: row 16 of docs/gpu.md."""
    model = matmul()
    one, theirs = runner(plan(model, rows(1, 8, x=(4,))), GRAPHS), through_onnxruntime(model)
    captured = _count_captures(one, monkeypatch)
    for size in (2, 2, 2, 3, 3, 3, 2, 3, 2):
        inputs = {"x": Tensor.of(_floats(size, 4))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))
    assert len(captured) == 2


@NO_RANGES
def test_graphs_are_made_again_when_the_memory_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    model = matmul(300)
    one, theirs = runner(plan(model), GRAPHS.replace("8", "0")), through_onnxruntime(model)
    captured = _count_captures(one, monkeypatch)
    for size in (1, 1, 1, 64, 64, 64, 1, 1, 1):
        inputs = {"x": Tensor.of(_floats(size, 300))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))
    assert len(captured) == 3


def test_graphs_are_made_again_when_the_profile_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = matmul()
    one, theirs = runner(plan(model, *TWO), GRAPHS.replace("8", "16")), through_onnxruntime(model)
    captured = _count_captures(one, monkeypatch)
    for size in (1, 1, 1, 5, 5, 5, 1, 1, 1):
        inputs = {"x": Tensor.of(_floats(size, 4))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))
    assert len(captured) == 3


def test_only_the_shapes_of_graph_spec_become_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = BATCHING + " optimization { cuda { graphs: true graph_spec { batch_size: 4 } } }"
    one = runner(plan(matmul(), rows(1, 8, x=(4,))), text)
    captured = _count_captures(one, monkeypatch)
    for size in (2, 2, 2, 4, 4, 4):
        one.run({"x": Tensor.of(_floats(size, 4))}, ())
    assert len(captured) == 1


def test_a_run_that_cannot_be_captured_runs_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = matmul()
    one, theirs = runner(plan(model, rows(1, 8, x=(4,))), GRAPHS), through_onnxruntime(model)
    end = one._device.end_capture

    def refuse(stream: Any) -> Any:
        end(stream).close()
        raise UnsupportedError("the run cannot be captured as a CUDA graph: cudaErrorStreamCaptureInvalidated")

    monkeypatch.setattr(one._device, "end_capture", refuse)
    for _ in range(4):
        inputs = {"x": Tensor.of(_floats(2, 4))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))
    reason = "the run cannot be captured as a CUDA graph: cudaErrorStreamCaptureInvalidated"
    assert [record.message for record in caplog.records] == [f"model 'm' runs without CUDA graphs: {reason}"]


def test_a_lower_bound_of_a_graph_is_refused_by_name() -> None:
    text = "optimization { cuda { graphs: true graph_spec { batch_size: 4 graph_lower_bound { batch_size: 2 } } } }"
    with pytest.raises(UnsupportedError, match="model 'm' asks for graph_lower_bound, which is not supported"):
        load(plan(matmul(), rows(1, 8, x=(4,))), text + " max_batch_size: 8")


# -- ends and failures --------------------------------------------------------------------------------------------


def test_closing_frees_all_memory() -> None:
    platform = new_platform()
    _, model = load(plan(matmul(), rows(1, 8, x=(4,))), GRAPHS, platform)
    instances = [model.create_instance(GPU) for _ in range(2)]
    for one in instances:
        for size in (1, 8, 8, 8):
            one.run({"x": Tensor.of(_floats(size, 4))}, ())
    assert allocations(platform)
    for one in instances:
        one.close()
        one.close()
    model.close()
    assert allocations(platform) == 0
    with pytest.raises(UnavailableError, match="has been unloaded"):
        instances[0].run({"x": Tensor.of(_floats(1, 4))}, ())


def test_a_device_without_memory_refuses_the_instance_and_loses_nothing() -> None:
    platform = new_platform(memory_bytes=40_000)
    _, model = load(plan(matmul(), rows(1, 1024, x=(4,))), "max_batch_size: 1024", platform)
    with pytest.raises(UnavailableError, match=r"bytes left, and|cudaErrorMemoryAllocation"):
        model.create_instance(GPU)
    assert allocations(platform) == 0


class _Scarce:
    """A device or an engine that fails to make its ``fails``-th thing; ``left`` are those that no one has closed."""

    def __init__(self, *inner: Any) -> None:
        self._inner, self.fails, self.made, self.left = inner, -1, 0, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        found = next(getattr(one, name) for one in self._inner if hasattr(one, name))
        return partial(self._make, found) if name.startswith(("new_", "allocate")) else found

    def _make(self, make: Callable[..., Any], *arguments: Any) -> Any:
        self.made += 1
        if self.made == self.fails:
            raise UnavailableError("there is no more")
        thing = make(*arguments)
        if hasattr(thing, "close"):  # The platform counts what has only an address.
            self.left.append(thing)
            thing.close = partial(self._close, thing, thing.close)
        return thing

    def _close(self, thing: Any, close: Callable[[], None]) -> None:
        self.left.remove(thing)
        close()


@pytest.mark.skipif(over_interfaces(), reason="the imitations count what is left themselves")
@pytest.mark.parametrize("on_host", [(), ("shape",)])
@pytest.mark.parametrize("depth", [1, 3])
def test_an_instance_for_which_there_is_not_enough_of_something_keeps_nothing(
    depth: int, on_host: tuple[str, ...]
) -> None:
    """C10: a GPU without room leaked streams and slots."""
    platform = new_platform()
    content = plan(reshape(), rows(1, 8, x=(4,)), on_host=on_host) if on_host else plan(matmul(), rows(1, 8, x=(4,)))
    _, model = load(content, "", platform)
    engine = model.engine(0)
    things: Any = _Scarce(platform.device(0), engine)
    make = partial(TensorRtRunner, things, things, Profiles(engine.profiles), ("y",), depth=depth)
    make().close()
    assert things.made > 3 * depth
    for number in range(1, things.made + 1):
        things.made, things.fails = 0, number
        with pytest.raises(UnavailableError, match="no more"):
            make()
        assert (things.made, things.left, allocations(platform)) == (number, [], 0)


@NO_RANGES
def test_a_run_for_which_there_is_no_memory_loses_nothing() -> None:
    one = runner(plan(matmul()), "", new_platform(memory_bytes=40_000))
    small = {"x": Tensor.of(_floats(2, 4))}
    wanted = one.run(small, ())
    with pytest.raises(UnavailableError, match=r"bytes left, and|cudaErrorMemoryAllocation"):
        one.run({"x": Tensor.of(_floats(4096, 4))}, ())
    _same(one.run(small, ()), wanted)


def test_a_run_that_fails_on_the_device_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    table = helper.make_tensor("table", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    model = make(nodes, [("x", TensorProto.INT64, ("n", 1))], [("y", TensorProto.FLOAT, ("n", 1))], [table])
    one = runner(plan(model, rows(1, 8, x=(1,))), BATCHING)

    def batch(*values: int) -> Any:
        return {"x": [np.array([[value] for value in values], np.int64)]}

    good, bad = one.begin(batch(0, 2), ()), one.begin(batch(9, 9), ())
    assert one.finish(good)["y"].array.tolist() == [[1], [3]]
    with pytest.raises(InternalError, match=r"the stand-in's run failed|cudaErrorLaunchFailure"):
        one.finish(bad)
    for _ in range(3):
        begun = one.begin(batch(1), ())
        assert one.finish(begun)["y"].array.tolist() == [[2]]


def test_a_missing_input_is_named() -> None:
    one = runner(plan(add_sub(), rows(1, 8, a=(3,), b=(3,))))
    with pytest.raises(InvalidArgumentError, match="input 'b' of the plan is missing"):
        one.run({"a": Tensor.of(_floats(1, 3))}, ())
