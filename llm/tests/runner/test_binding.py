"""The arrays that logits are written to grow with what is asked for, and shrink again when that was a lot."""

import pytest
from repoagent_llm.runner import binding
from repoagent_llm.runner.binding import LogitRows


def test_many_rows_are_given_back_when_few_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "_KEPT_BYTES", 4 * 10 * 20)
    rows = LogitRows(4, 10)
    assert not rows.ensure(3)
    assert rows.ensure(18)
    assert not rows.ensure(1)  # not worth the trouble
    assert rows.ensure(100)
    assert not rows.ensure(30)
    assert rows.ensure(2)
    assert (rows.logits.shape, rows.argmax.shape) == ((4, 10), (4,))
