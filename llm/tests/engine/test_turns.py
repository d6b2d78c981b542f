"""Executors that share the cores: one computes at a time, and each for as long as the others."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm import Executor, ExecutorConfig, Request, Turns
from repoagent_llm.runner.protocol import Segment

from llm.tests.fake_runner import FakeRunner, hashed_logits
from repoagent.turns import Seat

Logits = npt.NDArray[np.float32]
PATIENCE = 120


class Watch:
    """Notes whether two runners ever step at once."""

    def __init__(self) -> None:
        self.inside = threading.Lock()
        self.together = 0

    def runner(self) -> FakeRunner:
        """One of them."""
        return FakeRunner(logits=self._logits, before_step=self._note)

    def _note(self, _: Sequence[Segment]) -> None:
        self.together += self.inside.locked()

    def _logits(self, history: list[int]) -> Logits:
        with self.inside:
            return hashed_logits(32)(history)


def config_with(turns: Turns) -> ExecutorConfig:
    config = ExecutorConfig()
    vars(config)["turns"] = turns
    return config


def ask(executor: Executor, tokens: int, prompt: Sequence[int] = (3, 4, 5)) -> list[int]:
    """The tokens of an answer, the prompt among them."""
    request_id = executor.enqueue_request(Request(list(prompt), tokens))
    (response,) = executor.await_responses(request_id)
    found: list[int] = response.result.output_token_ids[0]
    return found


def test_two_executors_never_step_at_once_and_answer_as_they_do_alone() -> None:
    watch, turns = Watch(), Turns()
    with Executor.from_runner(watch.runner(), config_with(turns)) as alone:
        wanted = ask(alone, 200)
    answers: dict[str, list[int]] = {}
    with (
        Executor.from_runner(watch.runner(), config_with(turns)) as first,
        Executor.from_runner(watch.runner(), config_with(turns)) as second,
    ):
        threads = [
            threading.Thread(target=lambda name=name, one=one: answers.__setitem__(name, ask(one, 200)))
            for name, one in (("a", first), ("b", second))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert answers == {"a": wanted, "b": wanted}
    assert not watch.together


def test_a_step_that_fails_ends_its_turn() -> None:
    def fail(_: Sequence[Segment]) -> None:
        raise RuntimeError("no")

    turns = Turns()
    broken = FakeRunner(logits=hashed_logits(32), before_step=fail)
    with (
        Executor.from_runner(broken, config_with(turns)) as first,
        Executor.from_runner(FakeRunner(logits=hashed_logits(32)), config_with(turns)) as second,
    ):
        (response,) = first.await_responses(first.enqueue_request(Request([3], 5)))
        assert response.has_error()
        assert len(ask(second, 5)) == 8


def test_an_executor_that_ends_in_its_turn_lets_others_go_on() -> None:
    turns, begun, over = Turns(), threading.Event(), threading.Event()

    def linger(_: Sequence[Segment]) -> None:
        begun.set()
        assert over.wait(PATIENCE)

    slow = FakeRunner(logits=hashed_logits(32), before_step=linger)
    with Executor.from_runner(FakeRunner(logits=hashed_logits(32)), config_with(turns)) as second:
        first = Executor.from_runner(slow, config_with(turns))
        first.enqueue_request(Request([3], 50))
        assert begun.wait(PATIENCE)
        waiting = second.enqueue_request(Request([3], 5))
        ending = threading.Thread(target=first.shutdown)
        ending.start()
        over.set()
        ending.join(PATIENCE)
        (response,) = second.await_responses(waiting)
        assert not response.has_error()


def test_a_step_that_never_ends_holds_nobody_up() -> None:
    """As of a graph whose owner lets it loop: it loses its turn, and others go on among themselves."""
    turns, begun, over = Turns(patience=0.02), threading.Event(), threading.Event()

    def hang(_: Sequence[Segment]) -> None:
        begun.set()
        assert over.wait(PATIENCE)

    with (
        Executor.from_runner(FakeRunner(logits=hashed_logits(32), before_step=hang), config_with(turns)) as stuck,
        Executor.from_runner(FakeRunner(logits=hashed_logits(32)), config_with(turns)) as second,
        Executor.from_runner(FakeRunner(logits=hashed_logits(32)), config_with(turns)) as third,
    ):
        held = stuck.enqueue_request(Request([3], 5))
        assert begun.wait(PATIENCE)
        ids = [(one, one.enqueue_request(Request([3], 100))) for one in (second, third)]
        assert not [one for one, request_id in ids if one.await_responses(request_id)[0].has_error()]
        over.set()
        assert not stuck.await_responses(held)[0].has_error()


@pytest.mark.parametrize(("generates", "widest"), [(True, 64), (False, 256)])
def test_a_long_prompt_is_read_in_pieces_while_another_executor_computes(generates: bool, widest: int) -> None:
    turns = Turns()
    held = turns.seat()
    widths: list[int] = []
    runner = FakeRunner(
        logits=hashed_logits(1000),
        vocab_size=1000,
        max_seq_len=4096,
        before_step=lambda segments: widths.extend(len(segment.tokens) for segment in segments),
    )
    config = config_with(turns)
    config.enable_chunked_context = True
    with Executor.from_runner(runner, config) as executor:
        ask(executor, 1, range(900))
        held.take(generates=generates)
        held.rest()
        ask(executor, 1, range(900, 0, -1))
        held.leave()
    assert widths[0] == 900
    assert (max(widths[1:]), sum(widths[1:])) == (widest, 900)


class Announced(Turns):
    """Releases ``entered`` for each seat that has taken its turn or waits for it."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)  # no time passes: whoever has the turn first keeps it to its end
        self.entered = threading.Semaphore(0)

    def enter(self, seat: Seat) -> bool:
        waits = super().enter(seat)
        self.entered.release()
        return waits


def test_prompts_that_two_executors_get_together_are_read_as_if_each_were_alone() -> None:
    """Nothing waits for a next token yet: pieces would only make both prompts take longer."""
    turns = Announced()
    steps: list[list[list[int]]] = [[], []]

    def runner(widths: list[list[int]]) -> FakeRunner:
        def note(segments: Sequence[Segment]) -> None:
            widths.append([len(segment.tokens) for segment in segments])

        return FakeRunner(logits=hashed_logits(1000), vocab_size=1000, before_step=note)

    held = turns.seat()
    with (
        Executor.from_runner(runner(steps[0]), config_with(turns)) as first,
        Executor.from_runner(runner(steps[1]), config_with(turns)) as second,
    ):
        held.take()  # until both wait with all of their requests
        asked = [(one, one.enqueue_requests([Request(list(range(35)), 8)] * 4)) for one in (first, second)]
        for _ in range(3):
            assert turns.entered.acquire(timeout=PATIENCE)
        held.leave()
        assert not [one for one, ids in asked for each in ids if one.await_responses(each)[0].has_error()]
    assert steps == [[[35] * 4, *[[1] * 4] * 7]] * 2


@pytest.mark.parametrize("turns", [object(), True])
def test_turns_are_of_their_class(turns: object) -> None:
    config = ExecutorConfig()
    vars(config)["turns"] = turns
    with pytest.raises(TypeError, match=r"ExecutorConfig\.turns must be a Turns"):
        Executor.from_runner(FakeRunner(logits=lambda _: np.zeros(32, np.float32)), config)


def test_seats_that_fail_and_leave_at_any_time_compute_one_at_a_time() -> None:
    """No seat is forgotten, however the steps of others end."""
    turns, together, lock = Turns(patience=PATIENCE), [0, 0], threading.Lock()
    seats, ends = [turns.seat() for _ in range(6)], time.monotonic() + 1

    def sit(seat: Seat, chance: random.Random) -> None:
        while time.monotonic() < ends:
            with contextlib.suppress(ZeroDivisionError), seat if chance.random() < 0.3 else _step(seat):
                with lock:
                    together[0] += 1
                    together[1] = max(together)
                time.sleep(chance.choice([0, 0.0005, 0.003]))
                with lock:
                    together[0] -= 1
                _ = 1 / chance.randrange(9)
        seat.leave()

    threads = [
        threading.Thread(target=sit, args=(seat, random.Random(number)), daemon=True)
        for number, seat in enumerate(seats)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert together == [0, 1]
    assert not turns.contended
    assert all(seat.used for seat in seats)


@contextlib.contextmanager
def _step(seat: Seat) -> Iterator[None]:
    """As the engine does it: the seat stays present between its steps."""
    seat.take()
    try:
        yield
    finally:
        seat.rest()


def test_a_seat_that_leaves_while_it_waits_holds_nobody_up() -> None:
    turns = Turns(patience=PATIENCE)
    first, second, third = turns.seat(), turns.seat(), turns.seat()
    first.take()
    waiting = threading.Thread(target=second.take, daemon=True)
    waiting.start()
    while not turns.contended:
        time.sleep(0.001)
    second.leave()
    first.rest()
    first.leave()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    second.leave()
    with third:
        assert not turns.contended
