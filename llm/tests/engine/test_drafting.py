"""How many tokens are guessed next."""

from collections.abc import Callable

from repoagent_llm.engine.drafting import DraftLength


def test_what_is_right_is_followed_by_more() -> None:
    guess_count = DraftLength(5)
    found = []
    for right in (5, 2, 3, 5, 0, 1, 2, 4):
        found.append(guess_count.take())
        guess_count.note(found[-1], min(right, found[-1]))
    assert found == [5, 5, 3, 5, 5, 1, 2, 4]
    assert guess_count.take() == 5


def _tries(guess_count: DraftLength, right: Callable[[int], int], steps: int) -> list[int]:
    """How many tokens are guessed in each of ``steps``, of which ``right(number of the try)`` are right, if so many."""
    found, tries = [], 0
    for _ in range(steps):
        guessed = guess_count.take()
        found.append(guessed)
        if guessed:
            guess_count.note(guessed, min(guessed, right(tries)))
            tries += 1
    return found


def test_misses_are_followed_by_longer_and_longer_rests() -> None:
    found = "".join(map(str, _tries(DraftLength(3), lambda _: 0, 130)))
    rests = [0, 0, 0, 2, 4, 8, 16, 32, 32, 32]
    assert found == ("3" + "".join("0" * rest + "1" for rest in rests))[:130]


def test_a_guess_that_is_right_by_chance_does_not_end_the_rests() -> None:
    found = _tries(DraftLength(3), lambda tries: int(tries % 6 == 5), 400)
    assert sum(1 for guessed in found[100:] if guessed) < 40


def test_guesses_that_are_right_again_end_the_rests() -> None:
    guess_count = DraftLength(3)
    _tries(guess_count, lambda _: 0, 40)
    found = _tries(guess_count, lambda _: 3, 60)
    assert found[-20:] == [3] * 20
    assert all(_tries(guess_count, lambda _: 0, 6))  # and it takes some misses until the next one


def test_half_of_the_guesses_right_is_worth_guessing() -> None:
    found = _tries(DraftLength(3), lambda tries: (0, 1, 2, 3)[tries % 4], 200)
    assert all(found)


def test_guesses_that_are_not_likely_enough_are_tried_now_and_then() -> None:
    guess_count = DraftLength(8)
    for _ in range(40):
        guess_count.note(4, 3)  # three of four are right: 0.75, 0.56, 0.42, 0.32, ...
    guess_count._next = 8
    assert [guess_count.take(least) for least in (0.0, 0.7, 0.5, 0.3)] == [8, 1, 2, 4]
    found = [guess_count.take(0.8) for _ in range(100)]
    assert found == ([1] + [0] * 32) * 3 + [1]


def test_guesses_that_can_never_pay_are_tried_now_and_then() -> None:
    for right in (0.5, 1.0):
        guess_count = DraftLength(8)
        guess_count._share = right
        assert [guess_count.take(1.5) for _ in range(67)] == ([1] + [0] * 32) * 2 + [1]
