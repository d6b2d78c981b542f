"""What one sequence leaves in the cache does not reach another, not even when it is no number."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm.builder import Form
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.protocol import Embeddings, Segment, Seq
from repoagent_llm.runner.slab import Slab

PROMPT = np.arange(3, 23, dtype=np.int32)


def _opened(runner: OrtRunner) -> Seq:
    seq = runner.open()
    assert seq is not None
    return seq


def _spoil(runner: OrtRunner, seq: Seq, tokens: int) -> None:
    """Fill a sequence with NaN: by embeddings that are none, then by going on."""
    rows = np.full((tokens, 64), np.nan, np.float32)
    runner.step([Segment(seq, np.zeros(tokens, np.int32), embeddings=Embeddings(np.arange(tokens), rows))])
    result = runner.step([Segment(seq, PROMPT[:1])])
    assert np.isnan(result.logits).all()


def _say(runner: OrtRunner, seq: Seq, *pieces: npt.NDArray[np.int32]) -> list[npt.NDArray[np.float32]]:
    return [runner.step([Segment(seq, piece)]).logits.copy() for piece in pieces]


@pytest.mark.parametrize("form", [Form.GQA, Form.STD])
def test_not_a_number_stays_in_its_own_sequence(form: Form, open_runner: Callable[..., OrtRunner]) -> None:
    runner = open_runner("llama", form)
    pieces = PROMPT[:5], PROMPT[5:6], PROMPT[6:8]
    expected = _say(runner, clean := _opened(runner), *pieces)
    runner.free(clean)

    def check(found: list[Any], wanted: list[Any]) -> None:
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)

    # The next sequence in the row.
    bad = _opened(runner)
    _spoil(runner, bad, 17)
    runner.free(bad)
    following = _opened(runner)
    check(_say(runner, following, *pieces), expected)
    runner.free(following)
    # A neighbour that moves into the row, and the next one in the row that it leaves.
    bad, neighbour = _opened(runner), _opened(runner)
    _spoil(runner, bad, 17)
    check(_say(runner, neighbour, pieces[0]), expected[:1])
    runner.free(bad)
    check(_say(runner, neighbour, *pieces[1:]), expected[1:])
    last = _opened(runner)
    check(_say(runner, last, *pieces), expected)


def test_rows_are_wiped_as_far_as_they_were_written() -> None:
    slab = Slab(layers=1, rows=2, kv_heads=1, tokens=8, head_size=1, dtype=np.float32, wipe=True)
    first, second = slab.take(), slab.take()
    assert first is not None
    assert second is not None
    slab.note(0, 2, 5)
    slab.data[0, 0, :, 0, :5, 0] = [[1] * 5, [2] * 5]
    slab.lengths[:] = [5, 3]
    slab.free(first)
    assert slab.close_gaps() == [(1, 0)]
    assert slab.data[0, 0, 0, 0, :, 0].tolist() == [2, 2, 2, 0, 0, 0, 0, 0]
    assert slab.take() is not None
    assert not slab.data[:, :, 1].any()


def test_a_row_that_ends_moves_nothing_where_another_sequence_takes_it() -> None:
    slab = Slab(layers=1, rows=4, kv_heads=1, tokens=8, head_size=1, dtype=np.float32)
    moved: list[tuple[int, int]] = []
    copy = slab.copy

    def noting(source: int, target: int, start: int, stop: int) -> None:
        moved.append((source, target))
        copy(source, target, start, stop)

    slab.copy = noting  # type: ignore[method-assign]
    seqs = [seq for _ in range(4) if (seq := slab.take()) is not None]
    slab.lengths[:] = [1, 2, 3, 4]
    slab.free(seqs[1])
    assert (slab.used, slab.gaps) == (4, 1)
    taken = slab.take()
    assert taken is not None
    assert (slab.row(taken), slab.length(taken), slab.gaps, moved) == (1, 0, 0, [])
    assert slab.take() is None
    for seq in (seqs[0], seqs[2], taken):  # all but the last, which moves once
        slab.free(seq)
    assert slab.close_gaps() == moved == [(3, 0)]
    assert (slab.row(seqs[3]), slab.length(seqs[3]), slab.used) == (0, 4, 1)
    slab.free(seqs[3])
    assert (slab.used, slab.gaps, slab.close_gaps()) == (0, 0, [])
