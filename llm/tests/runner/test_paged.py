"""Sequences of blocks over a packed model that is a function of the tokens that it reads out of the blocks."""

import random

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm.runner.paged import HeldBlocks, PackedStep, PagedRunner
from repoagent_llm.runner.protocol import Logits, Segment, Seq
from repoagent_llm.types.executor_errors import EngineError

from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import hashed_logits

LOGITS = hashed_logits(96)


def _open(runner: PagedRunner) -> Seq:
    seq = runner.open()
    assert seq is not None
    return seq


def _read(runner: PagedRunner, seq: Seq, tokens: list[int]) -> npt.NDArray[np.float32]:
    return np.array(runner.step([Segment(seq, np.array(tokens, np.int32))]).logits[0])


def test_forks_hold_the_blocks_of_their_prompt_once_and_copy_the_last() -> None:
    runner = PagedRunner(FakePacked(20, max_seq_len=256, max_sequences=20))
    prompt = list(range(80))
    seq = _open(runner)
    _read(runner, seq, prompt)
    forks = [seq, *(runner.fork(seq) for _ in range(9))]
    seqs = [fork for fork in forks if fork is not None]
    assert runner.held(seqs) == runner.pool.busy == 3
    result = runner.step([Segment(one, np.array([number], np.int32)) for number, one in enumerate(seqs)])
    assert runner.held(seqs) == runner.pool.busy == 12  # two whole ones, and ten of which each has its own
    for number, row in enumerate(result.logits):
        np.testing.assert_array_equal(row, LOGITS([*prompt, number]))
    for one in seqs:
        runner.free(one)
    assert runner.pool.free == 20


def test_an_empty_pool_refuses_a_step_and_nothing_is_lost() -> None:
    runner = PagedRunner(FakePacked(3, max_seq_len=256))
    one, two = _open(runner), _open(runner)
    _read(runner, one, list(range(64)))
    with pytest.raises(EngineError, match="blocks left"):
        runner.step([Segment(seq, np.array(range(40), np.int32)) for seq in (two, one)])
    assert (runner.length(one), runner.length(two)) == (64, 0)
    runner.free(two)
    np.testing.assert_array_equal(_read(runner, one, [5]), LOGITS([*range(64), 5]))


@pytest.mark.parametrize("breaks", ["copy_block", "clear_block"])
def test_a_block_that_cannot_be_prepared_is_given_back(breaks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a copy of what is written by several, and at the clearing of what another has left."""
    model = FakePacked(3)
    runner = PagedRunner(model)
    others = [_open(runner), _open(runner)]
    for other, tokens in zip(others, (60, 20), strict=True):  # every block has been written
        _read(runner, other, list(range(tokens)))
    for other in others:
        runner.free(other)
    seq = _open(runner)
    _read(runner, seq, [1] * 40)
    fork = runner.fork(seq)
    assert fork is not None

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(model, breaks, fail)
        before = runner.pool.free
        with pytest.raises(MemoryError):
            _read(runner, fork, [2])
        assert runner.pool.free == before
    np.testing.assert_array_equal(_read(runner, fork, [2]), LOGITS([1] * 40 + [2]))
    for one in (seq, fork):
        runner.free(one)
    assert runner.pool.free == 3


def test_a_fork_goes_on_when_its_parent_is_freed_at_the_last_block() -> None:
    runner = PagedRunner(FakePacked(2))
    seq = _open(runner)
    _read(runner, seq, [1] * 40)
    fork = runner.fork(seq)
    assert fork is not None
    with pytest.raises(EngineError, match="0 of 2 blocks left, and 1 are needed"):
        _read(runner, fork, [2])
    runner.free(seq)
    np.testing.assert_array_equal(_read(runner, fork, [2]), LOGITS([1] * 40 + [2]))


def test_what_a_failed_step_wrote_is_cleared_before_another_has_the_block() -> None:
    def fail(step: PackedStep) -> None:
        if 66 in step.tokens:
            raise RuntimeError("the model fails")

    model = FakePacked(1, before_run=fail)
    runner = PagedRunner(model)
    seq = _open(runner)
    with pytest.raises(RuntimeError, match="the model fails"):
        _read(runner, seq, [66] * 30)
    assert runner.length(seq) == 0
    runner.free(seq)
    _read(runner, _open(runner), [1])
    assert set(model._pool[0, 1:]) == {-7}


def test_a_piece_that_begins_within_a_block_is_copied_only_to_the_same_place() -> None:
    runner = PagedRunner(FakePacked())
    source, target = _open(runner), _open(runner)
    _read(runner, source, list(range(20)))
    piece = runner.export_kv(source, 8, 16)
    with pytest.raises(EngineError, match="same place"):
        runner.import_kv(target, piece, 8)
    runner.drop_kv(piece)


class Walk:
    """Calls in any order beside lists of tokens, with a pool that is often empty."""

    def __init__(self, seed: int, window: int) -> None:
        self.chance = random.Random(seed)
        self.window = window
        self.runner = PagedRunner(FakePacked(12, max_seq_len=128, max_sequences=5, window=window))
        self.texts: dict[Seq, list[int]] = {}
        self.pieces: list[tuple[HeldBlocks, list[int]]] = []
        self.refused = 0

    def go(self) -> None:
        """One call."""
        names = ["open", "step", "step", "step", "fork", "reorder", "truncate", "free", "export", "use_piece"]
        name = "open" if not self.texts else self.chance.choice(names)
        if name in ("open", "step", "reorder", "use_piece"):
            getattr(self, name)()
        else:
            seq = self.chance.choice(list(self.texts))
            getattr(self, name)(seq, self.texts[seq])
        for seq, text in self.texts.items():
            assert self.runner.length(seq) == len(text)
        if self.texts:
            assert self.runner.held(list(self.texts)) == self.runner.pool.busy

    def open(self) -> None:
        seq = self.runner.open()
        assert (seq is None) == (len(self.texts) == 5)
        if seq is not None:
            self.texts[seq] = []

    def step(self) -> None:
        seqs = self.chance.sample(list(self.texts), self.chance.randint(1, len(self.texts)))
        more = {}
        for seq in seqs:
            count = min(self.chance.choice([1, 1, 3, 31, 40]), 128 - len(self.texts[seq]))
            if count:
                more[seq] = [self.chance.randrange(90) for _ in range(count)]
        wants = self.chance.choice(list(Logits))
        if not more:
            return
        try:
            result = self.runner.step([Segment(seq, np.array(new, np.int32), wants) for seq, new in more.items()])
        except EngineError:
            self.refused += 1
            return
        for (seq, new), rows in zip(more.items(), result.rows, strict=True):
            before, found = self.texts[seq], result.logits[rows]
            self.texts[seq] = [*before, *new]
            for place, row in enumerate(found, len(new) - len(found) + 1):
                np.testing.assert_array_equal(row, LOGITS([*before, *new[:place]][-self.window :]))

    def fork(self, seq: Seq, text: list[int]) -> None:
        copy = self.runner.fork(seq)
        assert (copy is None) == (len(self.texts) == 5)
        if copy is not None:
            self.texts[copy] = list(text)

    def reorder(self) -> None:
        seqs = list(self.texts)
        parents = [self.chance.randrange(len(seqs)) for _ in seqs]
        self.runner.reorder(seqs, parents, 0)
        self.texts = {seq: list(self.texts[seqs[parent]]) for seq, parent in zip(seqs, parents, strict=True)}

    def truncate(self, seq: Seq, text: list[int]) -> None:
        length = self.chance.randint(0, len(text))
        if 0 < length < self.runner.start(seq):
            with pytest.raises(EngineError, match="were given back"):
                self.runner.truncate(seq, length)
        elif length == 0 or length >= self.runner.start(seq) + self.window:
            self.runner.truncate(seq, length)
            self.texts[seq] = text[:length]

    def free(self, seq: Seq, text: list[int]) -> None:
        assert self.texts.pop(seq) == text
        self.runner.free(seq)

    def export(self, seq: Seq, text: list[int]) -> None:
        if text and self.runner.start(seq) == 0:
            start = 32 * self.chance.randint(0, (len(text) - 1) // 32)
            stop = self.chance.randint(start + 1, len(text))
            self.pieces.append((self.runner.export_kv(seq, start, stop), text[start:stop]))

    def use_piece(self) -> None:
        if not self.pieces:
            return
        piece, tokens = self.pieces.pop(self.chance.randrange(len(self.pieces)))
        for seq, text in self.texts.items():
            if len(text) % 32 == 0 and len(text) + len(tokens) <= 128:
                count = self.chance.randint(1, len(tokens))
                self.runner.import_kv(seq, piece, count)
                text += tokens[:count]
                break
        self.runner.drop_kv(piece)

    def end(self) -> None:
        """Everything comes back."""
        for seq in self.texts:
            self.runner.free(seq)
        for piece, _ in self.pieces:
            self.runner.drop_kv(piece)
        assert self.runner.pool.free == 12


@pytest.mark.parametrize("window", [0, 40])
def test_any_order_of_calls_gives_what_lists_of_tokens_give(window: int) -> None:
    refused = 0
    for seed in range(12):
        walk = Walk(seed, window)
        for _ in range(150):
            walk.go()
        walk.end()
        refused += walk.refused
    assert refused > (0 if window else 20)


def test_blocks_behind_the_window_are_given_back() -> None:
    runner = PagedRunner(FakePacked(6, max_seq_len=4000, max_sequences=9, window=40))
    seq = _open(runner)
    text = [token % 90 for token in range(3000)]
    _read(runner, seq, text[:50])
    for start in range(50, 2500, 70):
        _read(runner, seq, text[start : start + 70])
        assert runner.pool.busy <= 5
    length = runner.length(seq)
    runner.truncate(seq, length - 3)  # guesses that were wrong
    copy = runner.fork(seq)
    assert copy is not None
    forks = [_open(runner), copy]
    piece = runner.export_kv(seq, 0, length - 3)
    runner.import_kv(forks[0], piece, length - 3)
    with pytest.raises(EngineError, match="belongs at the start of a sequence, whole"):
        runner.import_kv(seq, piece, length - 3)
    runner.drop_kv(piece)
    with pytest.raises(EngineError, match="behind the window"):
        runner.export_kv(seq, 32, 100)
    for one in (seq, *forks):
        np.testing.assert_array_equal(_read(runner, one, [7]), LOGITS([*text[: length - 3], 7][-40:]))
        runner.free(one)
    assert runner.pool.free == 6
