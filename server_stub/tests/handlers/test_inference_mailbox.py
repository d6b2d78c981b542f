"""Responses from other threads to an event loop."""

import asyncio
import threading
from typing import Any

from repoagent_server.handlers.inference import Answer, Mailbox

from repoagent.serving.requests.request import InferResponse


class _Receiver(Answer):
    def __init__(self, wanted: int) -> None:
        self.got: list[tuple[InferResponse | None, bool, int]] = []
        self.all = asyncio.Event()
        self._wanted = wanted

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        self.got.append((response, final, threading.get_ident()))
        if len(self.got) == self._wanted:
            self.all.set()


class _CountingLoop:
    """Counts how often a loop is woken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.wakes = 0

    def call_soon_threadsafe(self, *call: Any) -> Any:
        self.wakes += 1
        return self._loop.call_soon_threadsafe(*call)


async def test_a_batch_of_responses_wakes_the_loop_once_and_keeps_its_order() -> None:
    loop: Any = _CountingLoop(asyncio.get_running_loop())
    mailbox = Mailbox(loop)
    receiver = _Receiver(100)
    responses = [InferResponse("m", str(number)) for number in range(100)]

    def work() -> None:
        for response in responses:
            mailbox.post(receiver, response, response is responses[-1])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # the loop has no turn in between
    await asyncio.wait_for(receiver.all.wait(), 60)
    assert loop.wakes == 1
    assert [response for response, _, _ in receiver.got] == responses
    assert {ident for _, _, ident in receiver.got} == {threading.get_ident()}


async def test_a_response_of_the_loop_does_not_overtake_one_of_a_thread() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    receiver = _Receiver(2)
    responses = [InferResponse("m", str(number)) for number in range(3)]
    thread = threading.Thread(target=mailbox.post, args=(receiver, responses[0], True))
    thread.start()
    thread.join()  # the loop has no turn in between
    mailbox.post(receiver, responses[1], True)
    assert receiver.got == []
    await asyncio.wait_for(receiver.all.wait(), 60)
    mailbox.post(receiver, responses[2], True)  # Nothing waits any more: it is delivered at once.
    assert [response for response, _, _ in receiver.got] == responses


async def test_nothing_is_lost_when_many_threads_post_while_the_loop_drains() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    receiver = _Receiver(8 * 2000)

    def work() -> None:
        for _ in range(2000):
            mailbox.post(receiver, None, False)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(receiver.all.wait(), 60)
    for thread in threads:
        thread.join()


async def test_on_the_loops_own_thread_it_is_delivered_at_once() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    receiver = _Receiver(1)
    mailbox.post(receiver, None, True)
    assert len(receiver.got) == 1


async def test_one_that_cannot_be_delivered_does_not_hold_the_others_up() -> None:
    class Broken(Answer):
        def deliver(self, response: InferResponse | None, final: bool) -> None:
            raise ZeroDivisionError

    mailbox, receiver = Mailbox(asyncio.get_running_loop()), _Receiver(1)

    def post() -> None:
        mailbox.post(Broken(mailbox), None, True)
        mailbox.post(receiver, None, True)

    thread = threading.Thread(target=post)
    thread.start()
    thread.join()
    assert not receiver.got
    await asyncio.sleep(0)
    assert receiver.got == [(None, True, threading.get_ident())]


async def test_a_sender_that_is_faster_than_the_loop_is_held_up_and_the_loop_still_has_turns() -> None:
    loop = asyncio.get_running_loop()
    mailbox = Mailbox(loop)
    most = turns = 0
    receiver = _Receiver(20_000)

    def work() -> None:
        nonlocal most
        for _ in range(20_000):
            mailbox.post(receiver, None, False)
            most = max(most, len(mailbox._waiting))

    thread = threading.Thread(target=work)
    thread.start()
    while not receiver.all.is_set():
        await asyncio.sleep(0)
        turns += 1
    thread.join()
    assert len(receiver.got) == 20_000
    assert most <= 1024 + 1
    assert turns > 10
