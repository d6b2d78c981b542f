"""Memory that two processes share; here both ends are in one."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from repoagent.serving.backends.python.process.memory import Arena, ClosedError, Mapping, ProtocolError

NothingLeft = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def mapping() -> Mapping:
    return Mapping()


@pytest.fixture
def arena(mapping: Mapping, nothing_left: NothingLeft) -> Iterator[Arena]:
    with nothing_left():
        made = Arena(idle_bytes=4 << 20)
        yield made
        made.close()
        mapping.close()
        del made


def hand_over(arena: Arena, mapping: Mapping, number: int) -> None:
    fd, size = arena.file(number)
    mapping.open(number, fd, size)


def test_what_one_side_writes_the_other_reads_without_a_copy(arena: Arena, mapping: Mapping) -> None:
    place, memory = arena.allocate(40_000)
    hand_over(arena, mapping, place[0])
    view = mapping.view(place)
    memory[place[1] : place[1] + 3] = b"abc"
    assert view[:3].tobytes() == b"abc"
    view[0] = ord("x")
    assert memory[place[1] : place[1] + 3] == b"xbc"


def test_a_block_is_used_again_only_when_the_last_array_over_it_has_gone(arena: Arena, mapping: Mapping) -> None:
    first = arena.allocate(5000)
    hand_over(arena, mapping, first.place[0])
    array = np.ndarray((1000,), np.float32, mapping.view(first.place))
    part = array[10:20].reshape(2, 5)[1:]
    del array
    assert mapping.released() == []
    assert arena.allocate(5000).place != first.place
    del part
    ((number, offset, _),) = mapping.released()
    arena.release(number, offset)
    assert arena.allocate(5000).place == first.place
    assert mapping.released() == []


def test_memory_that_is_used_again_does_not_grow(arena: Arena) -> None:
    for size in [100, 5000, 70_000, 1 << 20] * 50:
        (number, offset, _), _ = arena.allocate(size)
        arena.release(number, offset)
    assert arena.total_bytes <= 5 << 20
    assert arena.used_blocks == 0


def test_much_more_memory_than_needed_is_given_back(arena: Arena, mapping: Mapping) -> None:
    place, _ = arena.allocate(30 << 20)
    hand_over(arena, mapping, place[0])
    view = mapping.view(place)
    assert arena.total_bytes >= 30 << 20
    arena.release(place[0], place[1])
    assert arena.dropped() == [place[0]]
    assert arena.total_bytes == 0
    mapping.forget(place[0])
    assert view.sum() == 0  # Who still looks at it can do so.


def test_little_of_a_block_is_waste(arena: Arena) -> None:
    for size in (5000, 100_000, 1_500_000, 9_999_999):
        arena.allocate(size)
        segment = max(arena._segments.values(), key=lambda entry: entry.number)
        assert size <= segment.block_bytes <= max(size * 1.13, size + 4096)


def test_arrays_outlive_both_ends(mapping: Mapping) -> None:
    arena = Arena()
    place, memory = arena.allocate(5000)
    memory[place[1]] = 7
    hand_over(arena, mapping, place[0])
    view = mapping.view(place)
    del memory
    arena.close()
    mapping.close()
    assert view[0] == 7
    with pytest.raises(ClosedError):
        arena.allocate(1)


def test_releasing_what_is_not_in_use_is_refused(arena: Arena) -> None:
    (number, offset, _), _ = arena.allocate(10)
    arena.release(number, offset)
    for wrong in ((number, offset), (number, 1), (99, 0)):
        with pytest.raises(ProtocolError, match="not in use"):
            arena.release(*wrong)


def test_a_file_that_could_shrink_or_is_too_small_is_refused(
    arena: Arena, mapping: Mapping, nothing_left: NothingLeft
) -> None:
    with nothing_left():
        loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
        os.ftruncate(loose, 4096)
        with pytest.raises(ProtocolError, match="not a sealed file"):
            mapping.open(1, loose, 4096)
        place = arena.allocate(10).place
        fd, size = arena.file(place[0])
        with pytest.raises(ProtocolError, match="not a sealed file"):
            mapping.open(2, os.dup(fd), size + 1)
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(fd, 1)
        os.close(fd)
        arena.close()


@pytest.mark.parametrize("size", [0, -1, True, 16.0, "16", None])
def test_a_segment_whose_size_is_no_size_is_refused(
    arena: Arena, mapping: Mapping, nothing_left: NothingLeft, size: Any
) -> None:
    """The map of 0 bytes would be one of the whole file, however large that is."""
    with nothing_left():
        fd, _ = arena.file(arena.allocate(10).place[0])
        with pytest.raises(ProtocolError, match="cannot be mapped"):
            mapping.open(2, os.dup(fd), size)
        os.close(fd)
        arena.close()


@pytest.mark.parametrize("place", [(9, 0, 1), (1, 0, 1 << 30), (1, -1, 10), (1, 0, -1), (1, 1 << 20, 1)])
def test_a_block_outside_the_segment_is_refused(arena: Arena, mapping: Mapping, place: tuple[int, int, int]) -> None:
    real, _ = arena.allocate(10)
    hand_over(arena, mapping, real[0])
    with pytest.raises(ProtocolError, match="no block"):
        mapping.view(place)


def test_many_blocks_or_much_memory_that_nobody_reads_is_pressing(arena: Arena, mapping: Mapping) -> None:
    places = [arena.allocate(10).place for _ in range(40)]
    hand_over(arena, mapping, places[0][0])
    for place in places[:3]:
        mapping.view(place)
    assert not mapping.should_send_releases()
    for place in places[3:]:
        mapping.view(place)
    assert mapping.should_send_releases()
    mapping.released()
    large, _ = arena.allocate(20 << 20)
    hand_over(arena, mapping, large[0])
    mapping.view(large)
    assert mapping.should_send_releases()
