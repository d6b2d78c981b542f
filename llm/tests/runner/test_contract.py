"""What every runner must do: the fake ones, those on ONNX Runtime and OpenVINO, that of plans over the stand-in."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm.builder import Form, Precision
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import DecodeRound, EndableRunner, Logits, ModelRunner, Segment, Seq
from repoagent_llm.runner.tensorrt import TensorRtRunner
from repoagent_llm.types.executor_errors import EngineError

from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import FakeRunner
from llm.tests.plan_folders import prefill_and_decode

PROMPT = np.arange(3, 23, dtype=np.int32)
EXTRAS = ["fake", "gqa", "std", "fake-pages", "paged"]  # those that are opened with extra outputs
EXACT = 2e-5  # chunked and whole runs may differ in the last bits


@pytest.fixture(
    params=[
        *("fake", "gqa", "std", "gqa-gpt2", "gqa-int4", "gqa-int8", "gqa-fp16"),
        *("mixed", "mixed-qwen3", "mixed-gpt2"),
        *("plan", "plan-gpt2", "plan-fp16", "plan-qwen3-profiles"),
        *("fake-pages", "paged", "paged-mistral", "paged-gpt2", "paged-int8", "paged-int4", "paged-bf16"),
        *("paged-f16-cache", "paged-fast"),
    ]
)
def runner(
    request: pytest.FixtureRequest,
    open_runner: Callable[..., OrtRunner],
    open_plan: Callable[..., TensorRtRunner],
) -> ModelRunner:
    """A runner with four sequences of 64 tokens."""
    made: dict[str, Callable[[], ModelRunner]] = {
        "fake": lambda: FakeRunner(vocab_size=96, max_seq_len=64, max_sequences=4),
        "gqa": lambda: open_runner("llama", Form.GQA, extra_outputs=("last_hidden",)),
        "std": lambda: open_runner("qwen3", Form.STD, extra_outputs=("last_hidden",)),
        "gqa-gpt2": lambda: open_runner("gpt2"),
        "gqa-int4": lambda: open_runner("llama", Form.GQA, Precision.INT4),
        "gqa-int8": lambda: open_runner("qwen2", Form.GQA, Precision.INT8),
        "gqa-fp16": lambda: open_runner("llama", Form.GQA, Precision.FP16),
        "mixed": lambda: open_runner("llama", mixed=True),
        "mixed-qwen3": lambda: open_runner("qwen3", mixed=True),
        "mixed-gpt2": lambda: open_runner("gpt2", mixed=True),
        "plan": lambda: open_plan("llama"),
        "plan-gpt2": lambda: open_plan("gpt2"),
        "plan-fp16": lambda: open_plan("llama", Precision.FP16),
        "plan-qwen3-profiles": lambda: open_plan("qwen3", Precision.FP32, *prefill_and_decode(4, 7), name="two"),
    }
    made["fake-pages"] = lambda: PagedRunner(FakePacked())
    made["paged"] = lambda: open_runner("llama", Form.PAGED, extra_outputs=("last_hidden",))
    made["paged-mistral"] = lambda: open_runner("mistral", Form.PAGED)
    made["paged-gpt2"] = lambda: open_runner("gpt2", Form.PAGED)
    made["paged-int8"] = lambda: open_runner("qwen2", Form.PAGED, Precision.INT8)
    made["paged-int4"] = lambda: open_runner("qwen3", Form.PAGED, Precision.INT4)
    made["paged-bf16"] = lambda: open_runner("llama", Form.PAGED, Precision.BF16)
    made["paged-f16-cache"] = lambda: open_runner("llama", Form.PAGED, cache_type="f16")
    made["paged-fast"] = lambda: open_runner("llama", Form.PAGED, Precision.INT8, exact=False)
    return made[request.param]()


def _open(runner: ModelRunner) -> Seq:
    seq = runner.open()
    assert seq is not None
    return seq


def _feed(runner: ModelRunner, seq: Seq, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """The logits of every token."""
    return runner.step([Segment(seq, tokens, Logits.ALL)]).logits.copy()


@pytest.fixture
def whole(runner: ModelRunner) -> npt.NDArray[np.float32]:
    """Logits of the prompt in one piece."""
    seq = _open(runner)
    logits = _feed(runner, seq, PROMPT)
    runner.free(seq)
    return logits


def _tolerance(runner: ModelRunner) -> float:
    return 0.05 if runner.info.dtype == "float16" else EXACT


def test_pieces_of_any_size_give_what_the_whole_gives(runner: ModelRunner, whole: npt.NDArray[np.float32]) -> None:
    for sizes in ((1,) * 20, (7, 13), (1, 18, 1), (16, 4)):
        seq, start, parts = _open(runner), 0, []
        for size in sizes:
            parts.append(_feed(runner, seq, PROMPT[start : start + size]))
            start += size
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=_tolerance(runner))
        assert runner.length(seq) == 20
        runner.free(seq)


def test_sequences_of_different_lengths_share_a_step(runner: ModelRunner, whole: npt.NDArray[np.float32]) -> None:
    seqs = [_open(runner) for _ in range(4)]
    for seq, length in zip(seqs, (3, 11, 7, 18), strict=True):
        runner.step([Segment(seq, PROMPT[:length], Logits.NONE)])
    # Two single tokens around a longer piece, one sequence sits out, the order is not the order of opening.
    segments = [
        Segment(seqs[3], PROMPT[18:19]),
        Segment(seqs[1], PROMPT[11:15], Logits.ALL),
        Segment(seqs[0], PROMPT[3:4], Logits.LAST),
    ]
    result = runner.step(segments)
    for rows, expected in zip(result.rows, (slice(18, 19), slice(11, 15), slice(3, 4)), strict=True):
        np.testing.assert_allclose(result.logits[rows], whole[expected], atol=_tolerance(runner))
    if result.argmax is not None:
        assert np.array_equal(result.argmax, result.logits.argmax(axis=1))
    # The one that sat out is unharmed.
    np.testing.assert_allclose(_feed(runner, seqs[2], PROMPT[7:9]), whole[7:9], atol=_tolerance(runner))


def test_none_wants_no_rows_and_last_wants_one(runner: ModelRunner, whole: npt.NDArray[np.float32]) -> None:
    first, second = _open(runner), _open(runner)
    result = runner.step([Segment(first, PROMPT, Logits.NONE), Segment(second, PROMPT[:9], Logits.LAST)])
    assert result.rows == [slice(0, 0), slice(0, 1)]
    np.testing.assert_allclose(result.logits, whole[8:9], atol=_tolerance(runner))
    silent = runner.step([Segment(second, PROMPT[9:10], Logits.NONE)])
    assert len(silent.logits) == 0
    np.testing.assert_allclose(_feed(runner, second, PROMPT[10:11]), whole[10:11], atol=_tolerance(runner))


def test_freeing_one_sequence_leaves_the_others_whole(runner: ModelRunner, whole: npt.NDArray[np.float32]) -> None:
    seqs = [_open(runner) for _ in range(4)]
    assert runner.open() is None
    for seq in seqs:
        runner.step([Segment(seq, PROMPT[:8], Logits.NONE)])
    runner.free(seqs[0])
    runner.free(seqs[2])
    late = _open(runner)
    result = runner.step([Segment(seqs[1], PROMPT[8:9]), Segment(late, PROMPT[:1]), Segment(seqs[3], PROMPT[8:9])])
    expected = whole[[8, 0, 8]]
    found = np.stack([result.logits[rows][0] for rows in result.rows])
    np.testing.assert_allclose(found, expected, atol=_tolerance(runner))


def test_a_round_gives_what_its_segments_give_step_after_step(
    runner: ModelRunner, whole: npt.NDArray[np.float32]
) -> None:
    first, *seqs = [_open(runner) for _ in range(4)]
    lengths = [3, 11, 7]
    for seq, length in zip(seqs, lengths, strict=True):
        runner.step([Segment(seq, PROMPT[:length], Logits.NONE)])
    runner.free(first)  # moves the last one
    for places in ([2, 0, 1], [0, 1], [2]):  # all, and rounds in which others sit out
        chosen = DecodeRound.of([seqs[place] for place in places])
        for _ in range(2):
            at = [lengths[place] for place in places]
            chosen.tokens[:] = PROMPT[at]
            result = runner.step(chosen)
            assert [rows.start for rows in result.rows] == list(range(len(places)))
            np.testing.assert_allclose(result.logits, whole[at], atol=_tolerance(runner))
            for place in places:
                lengths[place] += 1
    runner.truncate(seqs[2], 5)
    chosen.tokens[:] = PROMPT[5]
    np.testing.assert_allclose(runner.step(chosen).logits, whole[5:6], atol=_tolerance(runner))


def test_a_round_ends_where_a_sequence_is_full(runner: ModelRunner) -> None:
    full, other = _open(runner), _open(runner)
    runner.step([Segment(full, np.tile(PROMPT, 4)[:63], Logits.LAST), Segment(other, PROMPT)])
    both = DecodeRound.of([full, other])
    runner.step(both)
    with pytest.raises(EngineError, match="64"):
        runner.step(both)
    assert runner.length(other) == 21


def test_truncate_rewinds(runner: ModelRunner, whole: npt.NDArray[np.float32]) -> None:
    seq = _open(runner)
    _feed(runner, seq, np.concatenate([PROMPT[:6], PROMPT[::-1]]))
    runner.truncate(seq, 6)
    assert runner.length(seq) == 6
    np.testing.assert_allclose(_feed(runner, seq, PROMPT[6:]), whole[6:], atol=_tolerance(runner))


def test_a_fork_goes_its_own_way(runner: ModelRunner, whole: npt.NDArray[np.float32]) -> None:
    seq = _open(runner)
    _feed(runner, seq, PROMPT[:10])
    copy = runner.fork(seq)
    assert copy is not None
    _feed(runner, seq, PROMPT[:5])
    np.testing.assert_allclose(_feed(runner, copy, PROMPT[10:]), whole[10:], atol=_tolerance(runner))
    while runner.open() is not None:
        pass
    assert runner.fork(seq) is None


def test_reorder_gives_each_sequence_its_parents_content(runner: ModelRunner, whole: npt.NDArray[np.float32]) -> None:
    seqs = [_open(runner) for _ in range(3)]
    other = np.array([40, 41, 42], np.int32)
    for seq, tail in zip(seqs, (other, PROMPT[5:8], other[::-1]), strict=True):
        runner.step([Segment(seq, np.concatenate([PROMPT[:5], tail]), Logits.NONE)])
    runner.reorder(seqs, [1, 0, 1], 5)
    for seq in (seqs[0], seqs[2]):
        np.testing.assert_allclose(_feed(runner, seq, PROMPT[8:10]), whole[8:10], atol=_tolerance(runner))
    swapped = _feed(runner, seqs[1], PROMPT[8:9])
    fresh = _open(runner)
    expected = _feed(runner, fresh, np.concatenate([PROMPT[:5], other, PROMPT[8:9]]))[-1:]
    np.testing.assert_allclose(swapped, expected, atol=_tolerance(runner))


def test_exported_pieces_stand_in_for_computing(runner: ModelRunner, whole: npt.NDArray[np.float32]) -> None:
    seq = _open(runner)
    _feed(runner, seq, PROMPT)
    pieces = [runner.export_kv(seq, 0, 8), runner.export_kv(seq, 8, 16)]
    runner.free(seq)
    fresh = _open(runner)
    runner.import_kv(fresh, pieces[0], 8)
    runner.import_kv(fresh, pieces[1], 5)
    assert runner.length(fresh) == 13
    np.testing.assert_allclose(_feed(runner, fresh, PROMPT[13:]), whole[13:], atol=_tolerance(runner))
    if isinstance(runner, PagedRunner):
        runner.free(fresh)
        for piece in pieces:
            runner.drop_kv(piece)
        assert runner.pool.free == runner.pool.total


def test_a_sequence_can_be_filled_to_the_last_token_but_not_beyond(runner: ModelRunner) -> None:
    full, other = _open(runner), _open(runner)
    runner.step([Segment(full, np.tile(PROMPT, 4)[:64], Logits.LAST)])
    before = _feed(runner, other, PROMPT[:3])
    with pytest.raises(EngineError, match="64"):
        runner.step([Segment(full, PROMPT[:1])])
    # The full one sits out while its neighbour goes on.
    _feed(runner, other, PROMPT[3:4])
    runner.truncate(full, 63)
    last = _feed(runner, full, np.tile(PROMPT, 4)[63:64])
    assert np.isfinite(last).all()
    assert np.isfinite(before).all()


@pytest.mark.parametrize(
    "runner", ["fake", "gqa", "std", "fake-pages", "paged"], indirect=True
)  # those opened with extra outputs
def test_named_tensors_come_out_for_every_token(runner: ModelRunner) -> None:
    names = runner.info.extra_outputs
    one, two = _open(runner), _open(runner)
    result = runner.step([Segment(one, PROMPT, extras=names), Segment(two, PROMPT[:1], extras=names)])
    assert result.extras[0][names[0]].shape[0] == 20
    assert result.extras[1][names[0]].shape[0] == 1
    np.testing.assert_allclose(result.extras[0][names[0]][:1], result.extras[1][names[0]], atol=EXACT)
    kept: Any = result.extras[0][names[0]].copy()
    runner.step([Segment(two, PROMPT[1:3], extras=names), Segment(one, PROMPT[:1])])
    assert np.array_equal(kept, result.extras[0][names[0]])


def test_more_rows_of_logits_than_ever_before_are_no_trouble(
    runner: ModelRunner, whole: npt.NDArray[np.float32]
) -> None:
    first, second = _open(runner), _open(runner)
    runner.step([Segment(first, PROMPT[:1]), Segment(second, PROMPT[:1])])
    runner.step([Segment(first, PROMPT[1:2], Logits.ALL), Segment(second, PROMPT[1:], Logits.ALL)])
    result = runner.step([Segment(first, PROMPT[2:3])])
    np.testing.assert_allclose(result.logits, whole[2:3], atol=_tolerance(runner))


def test_a_step_that_was_ended_fails_and_the_next_one_is_right(runner: ModelRunner) -> None:
    if not isinstance(runner, EndableRunner):
        pytest.skip("its steps cannot be ended")
    expected = _feed(runner, _open(runner), PROMPT)
    seq = _open(runner)
    runner.end()
    with pytest.raises(Exception, match="terminate"):
        _feed(runner, seq, PROMPT)
    runner.free(seq)
    runner.renew()
    assert np.array_equal(_feed(runner, _open(runner), PROMPT), expected)
