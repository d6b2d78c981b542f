"""The reserve by itself: what is counted, for how long, and when there is no room."""

import gc
import threading
import zlib

import numpy as np
import pytest
from repoagent_server.shared.reserve import GrowingBody, Memory, Reserve, inflate

from repoagent.errors import UnavailableError


def test_one_message_may_be_larger_than_the_reserve_as_long_as_others_hold_little() -> None:
    reserve = Reserve(1000)
    assert reserve.take(0, 200)
    assert reserve.take(0, 5000)
    assert reserve.take(5000, 5000)
    assert not reserve.take(0, 1)
    assert not reserve.take(200, 1)
    reserve.give(10_000)
    assert reserve.held == 200
    assert reserve.take(0, 800)
    assert not reserve.take(0, 1)


def test_small_messages_have_room_while_large_ones_fill_the_reserve_and_not_without_end() -> None:
    limit = 1 << 28
    reserve = Reserve(limit)
    assert reserve.take(0, limit // 2)
    assert reserve.take(0, limit // 2)
    assert not reserve.take(0, 1 << 16), "a large one has none"
    assert reserve.take(0, 5), "a probe has"
    while reserve.take(0, 4096):
        assert reserve.held <= limit + limit // 16
    assert reserve.held > limit + limit // 16 - 4096


def test_memory_is_counted_until_its_last_view_is_gone() -> None:
    reserve, memory = Reserve(1000), Memory(b"12345678")
    hold = reserve.hold()
    assert hold.resize(100)
    hold.hand_over(60, memory)
    hold.release()
    assert reserve.held == 60
    tensor = np.frombuffer(memory, np.float32)
    del memory
    assert reserve.held == 60
    del tensor
    assert reserve.held == 0


def test_what_does_not_fit_leaves_a_hold_as_it_was() -> None:
    reserve = Reserve(1000)
    first, second = reserve.hold(), reserve.hold()
    assert first.resize(900)
    assert not second.resize(101)
    assert second.resize(100)
    assert second.resize(10)
    assert first.resize(990)
    first.release()
    first.release()
    second.release()
    assert reserve.held == 0


def test_memory_may_end_on_any_thread() -> None:
    reserve = Reserve(1 << 40)

    def work() -> None:
        for size in range(1, 2000):
            memory = Memory()
            cycle = [memory]
            cycle.append(cycle)  # type: ignore[arg-type]  # so that the garbage collector finds it, wherever it runs
            reserve.hold(memory).resize(size)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert reserve.held == 0


def test_what_is_decompressed_is_counted_before_there_is_more_of_it() -> None:
    reserve, into = Reserve(3 << 20), Memory()
    bomb = memoryview(zlib.compress(bytes(64 << 20)))
    other = reserve.hold()
    assert other.resize(1 << 20)
    with pytest.raises(UnavailableError, match="--limit-held-bytes"):
        inflate(zlib.decompressobj(), bomb, into, reserve.hold(into), -1, ValueError)
    assert 1 << 20 <= len(into) <= 2 << 20
    del into
    assert reserve.held == 1 << 20


def test_answers_that_are_not_taken_have_a_part_of_the_reserve() -> None:
    reserve = Reserve(64 << 20)
    lagging = [reserve.hold_unread() for _ in range(6)]
    kept = [hold.keeps_up(3 << 20) for hold in lagging]
    assert kept == [True, True, False, False, False, False]
    requests, answer = reserve.hold(), reserve.hold_unread()
    assert requests.resize(45 << 20), "requests have the rest"
    assert not lagging[0].keeps_up(33 << 20)
    assert all(hold.keeps_up(1 << 10) for hold in lagging)
    assert reserve.unread.held == 0
    assert answer.resize(12 << 20), "a whole answer is no stream"
    assert lagging[5].keeps_up(3 << 20)


@pytest.mark.parametrize("ahead", [0, 5, 64])
@pytest.mark.parametrize("size", [0, 1000, (1 << 19) - 100, 1 << 19, 5 << 20])
def test_a_growing_body_is_what_came_of_it_and_is_counted_by_its_memory(size: int, ahead: int) -> None:
    reserve, body = Reserve(1 << 30), GrowingBody(ahead)
    hold = reserve.hold(body)
    noise = np.random.default_rng(size).bytes(size)
    for start in range(0, size, 70_001):
        piece = noise[start : start + 70_001]
        assert hold.resize(body.takes(len(piece)))
        body.extend(piece)
        assert len(body) == start + len(piece)
    whole = body.whole(hold)
    del body
    assert whole == noise
    assert size <= reserve.held <= size + (2 << 20)
    assert size <= ahead or np.frombuffer(whole[ahead:], np.uint8).ctypes.data % 8 == 0
    part = whole[: size // 2]
    del whole
    assert reserve.held >= size
    del part
    assert reserve.held == 0
