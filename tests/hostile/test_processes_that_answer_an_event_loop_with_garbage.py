"""A model's process writes garbage to the socket whose answers an event loop takes, which serves everybody.

Its own request may fail. The loop goes on, the request is answered once, and the next one is executed.
"""

from pathlib import Path

import pytest

from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import Answers, answering_loop, request, write_echo

PRELUDE = """NUMBER = newest()
            def answer(body, opened=(), fds=(), place=None):
                packet(WORK, 5, body, opened, fds, place=place)
            def outputs(*entries):
                answer([0, [[NUMBER, True, [None, "m", "1", {}, entries]]], [[NUMBER, 1, 2]], True])
            def raw(data):
                socket.socket(fileno=os.dup(WORK)).send(data)
            """
GARBAGE = {
    "a part of a head": 'raw(b"\\x05")',
    "a head without a body": 'raw(struct.pack("<BBI", 5, 0, 100))',
    "a count that is too large and not whole": "answer([1e9, [], [[NUMBER, 1, 2]], True])",
    "a count that is not a number": 'answer("[NaN,[],[],true]")',
    "a count that is true": "answer([True, [], [], True])",
    "a count without end": 'answer("[" + "9" * 5000 + ",[],[],true]")',
    "a segment of a negative size": "answer([0, [], [], True], [[1, -5]], [sealed_file(4096)])",
    "a segment of a size without end": "answer([0, [], [], True], [[1, 10**30]], [sealed_file(4096)])",
    "a segment without a descriptor": "answer([0, [], [], True], [[1, 4096]])",
    "descriptors without a segment": "answer([0, [], [], True], [], [sealed_file(4096) for _ in range(8)])",
    "an offset without end": "answer([0, [], [], True], [[1, 4096]], [sealed_file(4096)], [1, 10**30, 5])",
    "a shape without end": 'outputs(["y", "FP32", [10**30], 0, 4])',
    "a shape without end and without elements": 'outputs(["y", "FP32", [0, 10**30], 0, 0])',
    "strings of a shape without end": 'outputs(["y", "BYTES", [10**30], 0, 0])',
    "an offset that is not a number": 'outputs(["y", "FP32", [1], float("nan"), 4])',
    "a name that is a number": 'outputs([5, "FP32", [0], 0, 0])',
    "a name that is nothing": 'outputs([None, "FP32", [0], 0, 0])',
    "a type that is a list": 'outputs(["y", [], [0], 0, 0])',
    "lists in lists": 'answer("[" * 20000 + "]" * 20000)',
    "a text in lists in lists": 'answer([0, [[NUMBER, True, [[13, eval("[" * 99 + "]" * 99)], 0, 0, {}, []]]], [], 1])',
    "a number that is a list": "answer([0, [[[], True, None]], [[NUMBER, 1, 2]], True])",
    "the end of it": "socket.socket(fileno=os.dup(WORK)).shutdown(socket.SHUT_RDWR)",
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_the_loop_goes_on_the_request_is_answered_once_and_the_next_one_is_executed(
    new_core: NewCore, repository: Path, garbage: str
) -> None:
    write_echo(repository, PRELUDE + GARBAGE[garbage] + "\n            threading.Event().wait()")
    core = new_core()
    core.load("m")
    with answering_loop() as loop:
        for value in (0.0, 1.0, 2.0):
            last = Answers()
            loop.submit(core, request(value, sender=last))
            assert last.complete.wait(60), f"{value} is not answered"
            assert last.finals == 1
        (response,) = last.responses
        assert response.error is None
        assert response.outputs["y"].array.tolist() == [2.0]
        loop.assert_goes_on()
