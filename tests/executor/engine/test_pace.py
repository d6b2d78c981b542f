"""How many tokens are guessed next."""

from repoagent.executor.engine.pace import Pace


def test_what_is_right_is_followed_by_more() -> None:
    pace = Pace(5)
    found = []
    for right in (5, 2, 3, 5, 0, 1, 2, 4):
        found.append(pace.take())
        pace.note(found[-1], min(right, found[-1]))
    assert found == [5, 5, 3, 5, 5, 1, 2, 4]
    assert pace.take() == 5


def test_misses_in_a_row_are_followed_by_longer_and_longer_rests() -> None:
    pace, found = Pace(3), ""
    for _ in range(110):
        guessed = pace.take()
        found += str(guessed)
        if guessed:
            pace.note(guessed, 0)
    rests = [0, 1, 2, 4, 8, 16, 32, 32]
    assert found == ("3" + "".join("0" * rest + "1" for rest in rests) + "0" * 32)[:110]


def test_one_guess_that_is_right_ends_the_rests() -> None:
    pace = Pace(3)
    for _ in range(3):
        while not (guessed := pace.take()):
            pass
        pace.note(guessed, 0)
    assert [pace.take() for _ in range(3)] == [0, 0, 1]
    pace.note(1, 1)
    assert pace.take() == 2
    pace.note(2, 0)
    assert pace.take() == 1
