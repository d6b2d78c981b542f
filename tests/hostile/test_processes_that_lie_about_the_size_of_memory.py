"""A model's process names the memory that an event loop is to map: its sizes decide who maps it."""

import pytest

from repoagent.serving.backends.python.process.channel import _is_brief

HUGE = 1 << 40


@pytest.mark.parametrize("sizes", [[0], [-1], [HUGE, -HUGE], [4096, 0], [HUGE]])
def test_a_loop_maps_nothing_whose_size_is_large_or_no_size(sizes: list[int]) -> None:
    assert not _is_brief(None, [[number, size] for number, size in enumerate(sizes)])


@pytest.mark.parametrize("sizes", [[], [4096], [4096, 4096]])
def test_a_loop_maps_what_is_small(sizes: list[int]) -> None:
    assert _is_brief(None, [[number, size] for number, size in enumerate(sizes)])
