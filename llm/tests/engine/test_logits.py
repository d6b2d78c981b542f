"""Rules on logits, words and n-grams."""

import random
from typing import Any

import numpy as np
import pytest
from repoagent_llm.engine.logits import LogitsRules, SeenTokens
from repoagent_llm.engine.word_lists import banned_by_ngrams, banned_by_words, ends_with_any
from repoagent_llm.types.request import Request, SamplingConfig


def _apply(rules: LogitsRules, tokens: list[int], generated: int) -> list[float]:
    row = np.array([1.0, -1.0, 2.0, 0.5], np.float32)
    rules.apply(row, tokens, generated)
    return [float(value) for value in row]


def test_a_request_without_rules_is_left_alone() -> None:
    assert not LogitsRules.of(Request([1], 1)).active
    assert not LogitsRules.of(Request([1], 1, sampling_config=SamplingConfig(temperature=0.0))).active
    assert LogitsRules.of(Request([1], 1, bad_words=[[1]])).active


def test_bias_is_added_and_temperature_divides() -> None:
    bias = np.array([0, 10, 0, 0], np.float32)
    assert _apply(LogitsRules(-1, bias=bias, temperature=0.5), [0], 0) == [2.0, 18.0, 4.0, 1.0]


def test_a_bias_without_end_does_not_bring_back_what_may_not_come() -> None:
    rules = LogitsRules.of(Request([1], 1, embedding_bias=np.array([np.inf, np.inf, 0, -np.inf])))
    row = np.array([-np.inf, 1.0, 2.0, 3.0], np.float32)  # as a grammar leaves it
    rules.apply(row, [1], 0)
    assert row.tolist() == [-np.inf, np.finfo(np.float32).max, 2.0, -np.inf]


def test_repetition_counts_the_prompt_and_treats_signs_apart() -> None:
    assert _apply(LogitsRules(-1, repetition=2.0), [0, 1], 0) == [0.5, -2.0, 2.0, 0.5]


def test_presence_and_frequency_count_the_prompt_too() -> None:
    rules = LogitsRules(-1, presence=0.5, frequency=1.0)
    assert _apply(rules, [0, 2, 2, 3], 3) == [-0.5, -1.0, -0.5, -1.0]
    assert _apply(rules, [0, 2], 0) == [-0.5, -1.0, 0.5, 0.5]
    assert _apply(rules, [4, 9], 0) == [1.0, -1.0, 2.0, 0.5]  # a prompt table's tokens


@pytest.mark.parametrize("ngram_size", [0, 1, 2, 5, 1 << 64])
def test_each_token_of_a_long_history_is_read_once_for_each_rule(ngram_size: int) -> None:
    """All of it were, at every step: the square of a text's length, on the thread of all requests."""

    class History(list[int]):
        read = 0

        def __iter__(self) -> Any:
            History.read += len(self)
            return super().__iter__()

        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            History.read += len(found) if isinstance(found, list) else 1
            return found

    rules = LogitsRules(-1, repetition=2.0, presence=0.5, frequency=1.0, ngram_size=ngram_size)
    seen, tokens = SeenTokens(), History([0, 3])
    source = random.Random(5)
    for _ in range(200):
        rows = np.array([[1.0, -1.0, 2.0, 0.5]] * 2, np.float32)
        rules.apply(rows[0], tokens, 0, seen)
        before = History.read
        rules.apply(rows[1], tokens, 0)
        History.read = before  # without what the other way reads
        assert (rows[0] == rows[1]).all()
        tokens.append(source.randrange(6))  # 4 and 5: of a prompt table
    assert History.read <= 3 * len(tokens)


def test_penalties_come_after_the_temperature() -> None:
    rules = LogitsRules(-1, repetition=2.0, presence=0.25, frequency=0.5, temperature=0.5)
    assert _apply(rules, [0, 1, 1], 0) == [0.25, -5.25, 4.0, 1.0]


def test_the_end_token_is_banned_until_enough_was_generated() -> None:
    rules = LogitsRules(2, min_tokens=2)
    assert _apply(rules, [0, 1], 1)[2] == -np.inf
    assert _apply(rules, [0, 1, 1], 2)[2] == 2.0


def test_bad_words_ban_their_last_token_when_the_rest_stands_there() -> None:
    words = [[3], [5, 6], [6, 6, 7]]
    assert banned_by_words([1, 5], words) == [3, 6]
    assert banned_by_words([6, 6], words) == [3, 7]
    assert banned_by_words([], words) == [3]


def test_ngrams_do_not_come_twice() -> None:
    assert banned_by_ngrams([1, 2, 3, 1, 2], 3) == [3]
    assert banned_by_ngrams([4, 4], 1) == [4, 4]
    assert banned_by_ngrams([1], 2) == []
    assert banned_by_ngrams([1, 2, 1], 0) == []


def test_stop_words_must_lie_in_what_was_generated() -> None:
    assert ends_with_any([1, 2, 3], 2, [[2, 3]])
    assert not ends_with_any([1, 2, 3], 1, [[2, 3]])
    assert not ends_with_any([1, 2, 3], 3, [[], [2]])


def test_ngrams_are_found_as_by_looking_at_each_place() -> None:
    source = random.Random(7)
    for _ in range(3000):
        tokens = [source.randrange(source.choice([1, 2, 3])) for _ in range(source.randrange(30))]
        size = source.randrange(1, 12)
        head = tokens[len(tokens) - size + 1 :]
        places = range(len(tokens) - size + 1) if len(tokens) >= size else ()
        wanted = [tokens[i + size - 1] for i in places if tokens[i : i + size - 1] == head]
        assert sorted(banned_by_ngrams(tokens, size)) == sorted(wanted), (tokens, size)
        seen = SeenTokens()
        seen.banned_by_ngrams(tokens[: source.randrange(30)], size)
        assert set(seen.banned_by_ngrams(tokens, size)) == set(wanted), (tokens, size)


def test_long_ngrams_of_a_text_that_repeats_itself_take_time_for_each_token_once() -> None:
    """They are looked for by the engine's thread, before each token: every request would wait."""
    looked = 0

    class Counted(list[int]):
        def __getitem__(self, key: Any) -> Any:
            nonlocal looked
            looked += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
            return super().__getitem__(key)

    assert set(banned_by_ngrams(Counted([5] * 8000), 4000)) == {5}
    assert looked < 30_000
    looked = 0
    assert SeenTokens().banned_by_ngrams(Counted([5] * 8000), 4000) == {5}
    assert looked < 30_000
