"""The pool of n-grams: what it proposes."""

from repoagent_llm.engine.task import Lookahead


def test_the_rest_of_the_latest_ngram_is_proposed() -> None:
    drafter = Lookahead(3, 4)
    assert drafter.propose([1, 2, 3, 4], 5) == []
    assert drafter.propose([1, 2, 3, 4, 1], 5) == [2, 3]
    assert drafter.propose([1, 2, 3, 4, 1, 7, 8, 9, 1], 5) == [7, 8]
    assert drafter.propose([1, 2, 3, 4, 1, 7, 8, 9, 1], 1) == [7]
    assert drafter.propose([1, 2, 3, 4, 1, 7, 8, 9, 1], 0) == []


def test_an_ngram_behind_the_same_token_goes_first() -> None:
    text = [5, 1, 2, 3, 6, 1, 8, 9, 5, 1]
    assert Lookahead(3, 4).propose(text, 2) == [2, 3]
    assert Lookahead(3, 1).propose(text, 2) == [8, 9], "one is kept: the latest"


def test_a_text_may_grow_by_any_number_of_tokens() -> None:
    drafter, text = Lookahead(2, 2), [1]
    assert drafter.propose(text, 1) == []
    text += [2, 1]
    assert drafter.propose(text, 1) == [2]
    text += [2, 3, 4, 2]
    assert drafter.propose(text, 1) == [3]
