"""The pool of n-grams: what it proposes."""

from repoagent_llm.engine.task import Lookahead


def test_the_rest_of_the_latest_ngram_behind_the_same_token_is_proposed() -> None:
    drafter = Lookahead(3, 4)
    assert drafter.propose([0], 5) == []
    assert drafter.propose([0, 1, 2, 3, 4], 5) == []
    assert drafter.propose([0, 1, 2, 3, 4, 0, 1], 5) == [2, 3]
    longer = [0, 1, 2, 3, 4, 0, 1, 7, 8, 9, 0, 1]
    assert drafter.propose(longer, 5) == [7, 8]
    assert drafter.propose(longer, 1) == [7]
    assert drafter.propose(longer, 0) == []


def test_one_token_alone_leads_to_nothing() -> None:
    text = [5, 1, 2, 3, 6, 1, 8, 9, 5, 1]
    assert Lookahead(3, 4).propose(text, 2) == [2, 3]
    assert Lookahead(3, 4).propose([*text[:-2], 7, 1], 2) == []
    assert Lookahead(3, 1).propose(text, 2) == [], "one is kept: the latest"


def test_a_text_may_grow_by_any_number_of_tokens() -> None:
    drafter, text = Lookahead(2, 2), [0, 1]
    assert drafter.propose(text, 1) == []
    text += [2, 0, 1]
    assert drafter.propose(text, 1) == [2]
    text += [2, 3, 4, 1, 2]
    assert drafter.propose(text, 1) == [3]
