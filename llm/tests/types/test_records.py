"""Every record class: defaults, read-only or settable, pickles, and refusal of unknown names and wrong kinds."""

import gc
import inspect
import pickle
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from repoagent_llm import to_framework
from repoagent_llm.types import (
    adapters,
    cache_config,
    decoding_config,
    executor_config,
    guidance,
    request,
    result,
    stats,
)
from repoagent_llm.types.cache_config import KvCacheRetentionConfig
from repoagent_llm.types.executor_config import ExecutorConfig
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.record import Record
from repoagent_llm.types.request import Request, SamplingConfig

Range = KvCacheRetentionConfig.TokenRangeRetentionConfig
ROWS = np.ones((2, 3), np.float32)
# class, the arguments that have no default, settable, length of the pickled state (None: no pickle)
CLASSES: list[tuple[type[Record], tuple[Any, ...], bool, int | None]] = [
    (SamplingConfig, (), True, 19),
    (request.AdditionalModelOutput, ("hidden",), True, 2),
    (request.OutputConfig, (), True, 7),
    (adapters.ExternalDraftTokensConfig, ([1, 2],), False, 3),
    (adapters.PromptTuningConfig, (ROWS,), False, 2),
    (adapters.LoraConfig, (7,), False, 3),
    (adapters.MultimodalInput, ([[1]], [0], [1]), False, 3),
    (adapters.MropeConfig, (ROWS, 2), False, 2),
    (decoding_config.LookaheadDecodingConfig, (4, 3, 4), False, 3),
    (Range, (0, None, 80), True, 4),
    (KvCacheRetentionConfig, ([Range(0, 4, 80)],), False, 5),
    (adapters.ContextPhaseParams, ([1], 2, None, None), False, 4),
    (adapters.EagleConfig, (), False, 5),
    (guidance.GuidedDecodingParams, (guidance.GuidedDecodingParams.GuideType.JSON,), False, 2),
    (guidance.GuidedDecodingConfig, (guidance.GuidedDecodingConfig.GuidedDecodingBackend.LLGUIDANCE,), True, 4),
    (executor_config.DynamicBatchConfig, (True, False, 8), False, 4),
    (executor_config.SchedulerConfig, (), False, 3),
    (cache_config.RuntimeDefaults, (), False, None),
    (cache_config.KvCacheConfig, (), True, 15),
    (executor_config.OrchestratorConfig, (False,), True, None),
    (executor_config.ParallelConfig, (), True, 6),
    (cache_config.PeftCacheConfig, (), False, 11),
    (decoding_config.DecodingConfig, (), True, 4),
    (decoding_config.DebugConfig, (), True, 4),
    (decoding_config.LogitsPostProcessorConfig, (), True, 3),
    (decoding_config.ExtendedRuntimePerfKnobConfig, (), True, 4),
    (decoding_config.SpeculativeDecodingConfig, (), True, 1),
    (cache_config.CacheTransceiverConfig, (), True, 3),
    (result.TimingMetrics, (), True, 7),
    (result.KvCacheMetrics, (), True, 5),
    (result.SpeculativeDecodingMetrics, (), True, 3),
    (result.RequestPerfMetrics, (), True, 6),
    (result.Result, (), True, 14),
    (result.SpeculativeDecodingFastLogitsInfo, (), True, None),
    (result.AdditionalOutput, ("hidden", ROWS), True, None),
    *[
        (cls, (), True, None)
        for cls in (
            stats.KvCacheStats,
            stats.StaticBatchingStats,
            stats.InflightBatchingStats,
            stats.SpecDecodingStats,
            stats.IterationStats,
            stats.RequestStats,
            stats.RequestStatsPerIteration,
            stats.DebugTensorsPerIteration,
            stats.DisServingRequestStats,
        )
    ],
]
EACH = pytest.mark.parametrize(
    ("cls", "args", "settable", "pickled"), CLASSES, ids=[row[0].__name__ for row in CLASSES]
)


def _same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right))  # type: ignore[arg-type]
    if isinstance(left, Record):
        return type(left) is type(right) and all(_same(v, right.__dict__[k]) for k, v in left.__dict__.items())
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(_same, left, right))
    return left == right


@EACH
def test_fields_are_settable_or_read_only(
    cls: type[Record], args: tuple[Any, ...], settable: bool, pickled: int | None
) -> None:
    record = cls(*args)
    for name in inspect.signature(cls).parameters:
        value = getattr(record, name)
        if settable and name != "runtime_defaults":
            setattr(record, name, value)
            assert _same(getattr(record, name), value)
        else:
            with pytest.raises(AttributeError, match="read-only"):
                setattr(record, name, value)


@EACH
def test_pickles_keep_every_field_in_a_tuple_of_fixed_length(
    cls: type[Record], args: tuple[Any, ...], settable: bool, pickled: int | None
) -> None:
    record = cls(*args)
    if pickled is None:
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(record)
        return
    assert len(record.__getstate__()) == pickled
    assert _same(pickle.loads(pickle.dumps(record)), record)
    for wrong in ((), (1,) * 50, None):
        with pytest.raises(RuntimeError, match=f"^Invalid {cls.__name__} state!$"):
            cls.__new__(cls).__setstate__(wrong)
    # Of the right length, but with nothing in it that belongs there.
    with pytest.raises(RuntimeError, match=rf"^Invalid {cls.__name__} state! {cls.__name__}\.\w+ must be "):
        cls.__new__(cls).__setstate__((object(),) * pickled)


@EACH
def test_unknown_names_are_refused(
    cls: type[Record], args: tuple[Any, ...], settable: bool, pickled: int | None
) -> None:
    with pytest.raises(AttributeError):
        cls(*args).no_such_field = 1


def test_only_the_retention_classes_compare_by_value() -> None:
    comparing = {cls for cls, args, _, _ in CLASSES if cls(*args) == cls(*args)}
    assert comparing == {KvCacheRetentionConfig, Range}


@pytest.mark.parametrize(
    ("cls", "field", "wrong"),
    [
        (SamplingConfig, "top_k", "4"),
        (SamplingConfig, "top_k", 2**31),
        (SamplingConfig, "seed", -1),
        (SamplingConfig, "temperature", "hot"),
        (request.OutputConfig, "return_log_probs", 1),
        (cache_config.KvCacheConfig, "max_attention_window", 4),
        (result.TimingMetrics, "arrival_time", 1.0),
        (decoding_config.LogitsPostProcessorConfig, "processor_batched", 3),
        (decoding_config.LogitsPostProcessorConfig, "processor_map", 3),
        (result.Result, "output_token_ids", [["a"]]),
        (result.Result, "context_logits", object()),
    ],
)
def test_wrong_kinds_raise_a_type_error_that_names_the_field(cls: type[Record], field: str, wrong: object) -> None:
    with pytest.raises(TypeError, match=f"{cls.__name__}.{field}"):
        setattr(cls(), field, wrong)


def test_a_dynamic_batch_config_carries_its_batch_sizes_in_the_pickle() -> None:
    state = executor_config.DynamicBatchConfig(True, True, 4).__getstate__()
    assert state[:3] == (True, True, 4)
    assert all(limit > size for limit, size in state[3])


def test_executor_config_takes_and_pickles_other_attributes() -> None:
    config = ExecutorConfig(max_beam_width=2)
    config.note = "mine"
    inner, extra = config.__getstate__()
    assert len(inner) == 29
    assert extra == {"note": "mine"}
    copy = pickle.loads(pickle.dumps(config))
    assert (copy.max_beam_width, copy.note) == (2, "mine")
    with pytest.raises(RuntimeError, match="Invalid ExecutorConfig state!"):
        config.__setstate__((inner,))


def test_tensors_come_from_dlpack_and_the_array_protocol_and_go_out_as_numpy() -> None:
    class OnlyDlpack:
        def __dlpack__(self, **options: Any) -> Any:
            return ROWS.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return ROWS.__dlpack_device__()

    class OnlyArray:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return ROWS

    for source in (ROWS, OnlyDlpack(), OnlyArray(), ROWS.tolist(), memoryview(ROWS.data)):
        table = adapters.PromptTuningConfig(source).embedding_table
        assert isinstance(table, np.ndarray)
        assert np.array_equal(table, ROWS)
    assert np.shares_memory(adapters.PromptTuningConfig(OnlyDlpack()).embedding_table, ROWS)


def test_tensors_go_back_into_the_framework_of_another_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = ModuleType("somebodys_framework")
    framework.from_dlpack = lambda array: ("theirs", array)  # type: ignore[attr-defined]
    theirs = type("Tensor", (), {"__module__": "somebodys_framework.parts"})()
    assert to_framework(ROWS, ROWS) is ROWS
    assert to_framework(ROWS, theirs) is ROWS, "a framework that is not loaded"
    monkeypatch.setitem(sys.modules, "somebodys_framework", framework)
    assert to_framework(ROWS, theirs) == ("theirs", ROWS)


def test_fast_logits_travel_as_a_row_that_a_draft_config_takes() -> None:
    row = result.SpeculativeDecodingFastLogitsInfo(7, 3).to_tensor()
    assert row.view(np.uint64)[0, 0] == 7
    assert adapters.ExternalDraftTokensConfig([1, 2], row, fast_logits=True).logits.shape == (1, 4)


def test_runtime_defaults_fill_in_the_constructor_or_when_asked_and_are_no_property() -> None:
    config = cache_config.KvCacheConfig()
    with pytest.raises(AttributeError, match="read-only"):
        config.runtime_defaults = cache_config.RuntimeDefaults([8])


def test_sub_objects_are_live_references() -> None:
    config = ExecutorConfig()
    config.kv_cache_config.max_tokens = 77
    assert config.kv_cache_config.max_tokens == 77
    measured = result.RequestPerfMetrics()
    measured.timing_metrics.arrival_time = timedelta(seconds=3)
    assert measured.timing_metrics.arrival_time == timedelta(seconds=3)
    assert result.RequestPerfMetrics().timing_metrics.arrival_time == timedelta()


def test_no_configuration_shows_how_it_is_made() -> None:
    """Callers look for fields among the members without underscores around, as TensorRT-LLM's own tests do."""
    for made in (cache_config.RuntimeDefaults(), SamplingConfig(), request.OutputConfig()):
        fields = [name for name, value in inspect.getmembers(made) if not name.startswith("__") and not callable(value)]
        assert fields == sorted(vars(made))


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (SamplingConfig, {}),
        (SamplingConfig, {"beam_width": 2, "top_p": 0.7, "seed": 3, "num_return_sequences": 2}),
        (request.OutputConfig, {"return_log_probs": True, "return_context_logits": None}),
    ],
)
def test_a_sparse_record_is_the_same_as_one_of_its_constructor(cls: type[Any], values: dict[str, Any]) -> None:
    assert vars(cls.sparse(**values)) == vars(cls(**values))


@pytest.mark.parametrize(
    "values",
    [{"top_p": 2}, {"top_p": "a"}, {"length_penalty": -1}, {"beam_width": 2, "num_return_sequences": 3}, {"no": 1}],
)
def test_a_sparse_record_is_checked_all_the_same(values: dict[str, Any]) -> None:
    with pytest.raises((CheckError, TypeError)):
        SamplingConfig.sparse(**values)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_floats_that_numpy_lacks_become_float32(name: str) -> None:
    """Weights of an adapter, a prompt table, a bias: as a framework or NumPy's extension has them."""
    narrow = np.array([[0.5, -2, 3], [1, 0.25, 16]], getattr(ml_dtypes, name))

    class FrameworkTensor:
        dtype = f"torch.{name}"

        def float(self) -> Any:
            return narrow.astype(np.float32)

        def __dlpack__(self, **_options: Any) -> Any:
            raise BufferError("NumPy has no such type")

    config = np.zeros((2, 3), np.int32)
    for value in (narrow, FrameworkTensor()):
        for found in (
            adapters.LoraConfig(1, value, config).weights,
            adapters.PromptTuningConfig(value).embedding_table,
        ):
            assert found.dtype == np.float32
            assert found.tolist() == [[0.5, -2, 3], [1, 0.25, 16]]
    assert Request([1], 1, embedding_bias=narrow[0]).embedding_bias.tolist() == [0.5, -2, 3]


def test_what_cannot_be_widened_is_refused_by_name() -> None:
    class FrameworkTensor:
        dtype = "torch.bfloat16"

    with pytest.raises(TypeError, match=r"LoraConfig\.weights: this FrameworkTensor of torch\.bfloat16 cannot be read"):
        adapters.LoraConfig(1, FrameworkTensor())


@pytest.fixture
def frozen() -> Iterator[None]:
    """What is there already is neither collected nor counted."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
def test_objects_that_are_gone_leave_nothing() -> None:
    """A server makes millions; the rule of a field of Response was once kept for each."""
    makers: list[partial[Any]] = [partial(cls, *arguments) for cls, arguments, _, _ in CLASSES]
    makers.append(partial(result.Response, 1, result.Result(), 7))
    for make in makers:
        make()
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(100):
            make()
        gc.collect()
        assert len(gc.get_objects()) < before + 50, make
