"""Messages between two processes; here both ends are in one."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InternalError, NotFoundError
from repoagent.serving.backends.python.process import channel
from repoagent.serving.backends.python.process.channel import Channel, Kind, PeerGoneError, UndeliveredError
from repoagent.serving.backends.python.process.codec import (
    Packer,
    request_body,
    request_of,
    response_body,
    response_of,
    tensors_of,
)
from repoagent.serving.backends.python.process.memory import Arena, Mapping, ProtocolError
from repoagent.serving.backends.python.process.server_channel import ServerChannel
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType, Tensor


class End:
    def __init__(self, sock: socket.socket, *, patient: bool = False) -> None:
        self.socket = sock
        self.arena = Arena()
        self.mapping = Mapping()
        self.backlogs = 0
        self.channel: Any = (
            ServerChannel(sock, self.arena, self.mapping, on_backlog=self._count)
            if patient
            else Channel(sock, self.arena, self.mapping)
        )

    def _count(self) -> None:
        self.backlogs += 1

    def close(self) -> None:
        self.channel.close()
        self.arena.close()
        self.mapping.close()


NothingLeft = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def ends(nothing_left: NothingLeft) -> Iterator[tuple[End, End]]:
    with nothing_left():
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pair = End(left, patient=True), End(right)
        yield pair
        for end in pair:
            end.close()
        del left, right, pair, end


def example(kind: DataType, count: int) -> Tensor:
    numbers = np.random.default_rng(int(kind)).integers(0, 100, (count, 3))
    if kind is DataType.BYTES:
        values = np.array([b"%d" % n for n in numbers.ravel()], object).reshape(numbers.shape)
        return Tensor(kind, values)
    return Tensor(kind, numbers.astype(NUMPY_TYPES[kind]))


@pytest.mark.parametrize("count", [0, 1, 50, 20_000])
def test_tensors_of_every_type_arrive_as_they_were(ends: tuple[End, End], count: int) -> None:
    here, there = ends
    given = {kind.name: example(kind, count) for kind in NUMPY_TYPES}
    packer = Packer()
    here.channel.send(Kind.CALL, [packer.add(*entry) for entry in given.items()], packer)
    message = there.channel.receive()
    assert message.kind == Kind.CALL
    found = tensors_of(message.body, message.payload)
    assert found.keys() == given.keys()
    for name, tensor in found.items():
        assert tensor.data_type is given[name].data_type
        assert tensor.array.dtype == given[name].array.dtype
        np.testing.assert_array_equal(tensor.array, given[name].array)
        assert tensor.array.ctypes.data % 16 == 0


def test_an_array_that_is_not_contiguous_or_has_no_dimension_arrives_as_well(ends: tuple[End, End]) -> None:
    here, there = ends
    given = {"t": Tensor.of(np.arange(60_000).reshape(200, 300).T[::2]), "s": Tensor.of(np.float64(3.5))}
    packer = Packer()
    here.channel.send(Kind.CALL, [packer.add(*entry) for entry in given.items()], packer)
    message = there.channel.receive()
    found = tensors_of(message.body, message.payload)
    np.testing.assert_array_equal(found["t"].array, given["t"].array)
    assert found["s"].array.shape == ()
    assert found["s"].array == 3.5


def test_a_request_arrives_with_everything_that_belongs_to_it(ends: tuple[End, End]) -> None:
    here, there = ends
    request = InferRequest(
        Asked(
            "m",
            {"x": Tensor.of(np.array([1, 2], np.float32))},
            "3",
            requested_outputs=("y", "z"),
            id="r\u00e9\ud800",
            parameters={"a": True, "b": 2**63, "c": 1.5, "d": "\u20ac"},
            correlation_id=2**64 - 1,
            sequence_start=True,
            priority=4,
            timeout_us=77,
        )
    )
    packer = Packer()
    here.channel.send(Kind.CALL, request_body(12, request, packer), packer)
    message = there.channel.receive()
    number, asked, placeholder = request_of(message.body, message.payload)
    assert number == 12
    assert asked.inputs["x"].array.tolist() == [1, 2]
    assert replace(asked, inputs={}, volatile=False) == replace(request.asked, inputs={})
    assert asked.volatile  # The other process can write into its inputs.
    assert not placeholder


def test_nothing_that_a_request_may_have_is_forgotten() -> None:
    """A field that is new in requests needs a decision: does a model in another process see it?"""
    carried = {
        *("model_name", "inputs", "model_version", "id", "requested_outputs", "parameters", "correlation_id"),
        *("sequence_start", "sequence_end", "priority", "timeout_us", "placeholder", "asked"),
    }
    asked_for = {"cancelled"}
    brought_back = {"rescheduled"}  # with the end of the answer; see tests/serving/backends/python/test_iterative.py
    of_the_server = {
        *("_sender", "arrival_ns", "trace", "trace_context", "times", "classes"),
        *("refuses_decoupled", "output_places", "volatile", "on_cancel", "call_id", "asker"),
        *("behind", "on_behind"),  # a process has its own bound: --limit-python-unread-bytes
    }
    assert {*InferRequest.__slots__, *Asked.__slots__} == carried | asked_for | brought_back | of_the_server


def test_responses_arrive_with_their_errors(ends: tuple[End, End]) -> None:
    here, there = ends
    for given in (
        None,
        InferResponse("m", "1", error=NotFoundError("gone")),
        InferResponse("m", "1", parameters={"p": 1}),
    ):
        packer = Packer()
        here.channel.send(Kind.RESPONSE, response_body(5, given, given is None, packer), packer)
        message = there.channel.receive()
        number, found, final = response_of(message.body, message.payload)
        assert (number, final) == (5, given is None)
        if given is not None and found is not None and given.error is not None:
            assert isinstance(found.error, NotFoundError)
            assert found.error.message == "gone"
        else:
            assert found == given


def test_a_parameter_that_is_no_plain_value_is_refused_by_name(ends: tuple[End, End]) -> None:
    response = InferResponse("m", "1", parameters={"when": [1]})  # type: ignore[dict-item]
    with pytest.raises(InternalError, match="'when' has a value of type list"):
        response_body(1, response, True, Packer())


def test_a_body_of_any_length_arrives(ends: tuple[End, End]) -> None:
    here, there = ends
    body = {"config": "x" * 300_000}
    here.channel.send(Kind.COMPLETE, body)
    assert there.channel.receive().body == body
    here.channel.send(Kind.COMPLETE, ["short"])
    assert there.channel.receive().body == ["short"]


def _tensor(kind: Kind) -> tuple[Kind, list[Any], Packer]:
    """A message with a tensor that is too large for a packet."""
    packer = Packer()
    return kind, [packer.add("x", Tensor.of(np.zeros(50_000)))], packer


def test_a_body_that_cannot_be_sent_leaves_the_channel_as_it_was(ends: tuple[End, End]) -> None:
    here, there = ends
    circle: list[Any] = []
    circle.append(circle)
    there.channel.send(*_tensor(Kind.CALL))
    here.channel.receive()
    assert there.arena.used_blocks == 1
    for body, error in (([object()], TypeError), (circle, ValueError)):
        with pytest.raises(error):
            here.channel.send(Kind.ASK, body, _tensor(Kind.ASK)[2])
    assert here.arena.used_blocks == 0
    here.channel.send(Kind.ASK, [1])
    assert there.channel.receive().body == [1]
    assert there.arena.used_blocks == 0, "a block is not given back any more"


def test_a_packet_that_the_kernel_does_not_take_leaves_the_channel_as_it_was(ends: tuple[End, End]) -> None:
    here, there = ends
    here.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # The kernel makes some kilobytes of it.
    with pytest.raises(OSError, match="Message too long"):
        here.channel.send(Kind.ASK, "x" * 10_000, _tensor(Kind.ASK)[2])
    assert here.arena.used_blocks == 0
    here.channel.send(*_tensor(Kind.ASK))
    assert there.channel.receive().kind == Kind.ASK


def test_a_channel_that_cannot_send_what_it_keeps_ends_for_both_sides(ends: tuple[End, End]) -> None:
    here, there = ends
    while not here.channel.backlogged:
        here.channel.send(Kind.ASK, "x" * 10_000)
    here.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    here.channel.flush()
    assert not here.channel.backlogged
    while there.channel.receive() is not None:
        pass
    with pytest.raises(UndeliveredError):
        here.channel.send(Kind.ASK, [1])


def test_blocks_come_back_with_the_next_message(ends: tuple[End, End]) -> None:
    here, there = ends
    for _ in range(20):
        packer = Packer()
        here.channel.send(Kind.CALL, [packer.add("x", Tensor.of(np.zeros(50_000)))], packer)
        message = there.channel.receive()
        tensors = tensors_of(message.body, message.payload)
        del message
        there.channel.send(Kind.RELEASE)
        assert here.channel.receive().kind == Kind.RELEASE
        assert here.arena.used_blocks == 1
        del tensors
    there.channel.send(Kind.RELEASE)
    here.channel.receive()
    assert here.arena.used_blocks == 0
    assert here.arena.total_bytes <= 4 << 20


def test_segments_that_come_and_go_are_forgotten_by_both_ends(ends: tuple[End, End], monkeypatch: Any) -> None:
    here, there = ends
    monkeypatch.setattr(channel, "_REMEMBERED", 4)
    here.arena._limit = 0  # type: ignore[misc]
    for number in range(30):
        packer = Packer()
        here.channel.send(Kind.CALL, [packer.add("x", Tensor.of(np.full(5000, number)))], packer)
        message = there.channel.receive()
        assert tensors_of(message.body, message.payload)["x"].array[-1] == number
        del message
        there.channel.send(Kind.RELEASE)
        here.channel.receive()
    assert here.arena.total_bytes == 0
    assert len(here.channel._announced) <= 5
    assert len(there.mapping._maps) <= 1


def test_any_number_of_blocks_can_come_back_at_once(ends: tuple[End, End]) -> None:
    here, there = ends
    kept = []
    for _ in range(3000):
        packer = Packer()
        here.channel.send(Kind.CALL, [packer.add("x", Tensor.of(np.zeros(2100)))], packer)
        message = there.channel.receive()
        kept.append(tensors_of(message.body, message.payload))
    del message
    kept.clear()
    while here.arena.used_blocks:
        there.channel.send(Kind.RELEASE, "." * 31_000)
        assert here.channel.receive() is not None


def test_a_patient_channel_keeps_what_the_other_side_does_not_take_yet(ends: tuple[End, End]) -> None:
    here, there = ends
    packer = Packer()
    entry = packer.add("x", Tensor.of(np.arange(10_000)))
    for number in range(400):
        here.channel.send(Kind.CALL_RESPONSE, [number, "." * 2000])
    here.channel.send(Kind.CALL_RESPONSE, [400, entry], packer)
    assert here.channel.backlogged
    assert here.backlogs > 100
    for number in range(400):
        assert there.channel.receive().body[0] == number
        here.channel.flush()
    assert not here.channel.backlogged
    message = there.channel.receive()
    assert tensors_of([message.body[1]], message.payload)["x"].array[-1] == 9999


def test_the_end_of_the_other_side_is_noticed(ends: tuple[End, End]) -> None:
    here, there = ends
    there.channel.send(Kind.ASK, ["last words"])
    there.channel.shutdown()
    assert here.channel.receive().body == ["last words"]
    assert here.channel.receive() is None
    with pytest.raises(PeerGoneError):
        here.channel.send(Kind.ASK, [1])


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        struct.pack("<BBI", 1, 0, 5) + b"{{{{{",
        struct.pack("<BBI", 1, 0, 2) + b"[]",
        struct.pack("<BBI", 1, 0, 2) + b"\xff\xff",
        struct.pack("<BBI", 1, 0, 20) + b"[1,[7,0,9],[],[],[]]",
        struct.pack("<BBI", 1, 0, 24) + b"[1,null,[[1,2,3]],[],[]]",
        struct.pack("<BBI", 1, 0, 23) + b"[1,null,[],[],[[1,99]]]",
        struct.pack("<BBI", 1, 0, 22) + b"[1,null,[],[],[]]  [2]",
        struct.pack("<BBI", 1, 1, 20) + b"[null,null,[],[],[]]",
        struct.pack("<BBI", 1, 0, 40_000) + b"[" * 40_000,
        b"\0" * 70_000,
    ],
)
def test_a_packet_that_makes_no_sense_is_a_protocol_error(ends: tuple[End, End], packet: bytes) -> None:
    here, there = ends
    there.socket.send(packet)
    with pytest.raises(ProtocolError):
        here.channel.receive()


def test_descriptors_that_nobody_asked_for_are_closed(ends: tuple[End, End], nothing_left: NothingLeft) -> None:
    here, there = ends
    text = b"[1,null,[],[],[]]"
    with nothing_left():
        socket.send_fds(there.socket, [struct.pack("<BBI", 11, 0, len(text)) + text], [0, 1, 2])
        with pytest.raises(ProtocolError, match="nothing names"):
            here.channel.receive()
        for thread in threading.enumerate():
            if thread.name == "repoagent-close":
                thread.join()


@pytest.mark.parametrize(
    "entry",
    [
        ["x", 11, [5], 0, 20],
        ["x", 11, [-1], 0, 4],
        ["x", 0, [1], 0, 4],
        ["x", 99, [1], 0, 4],
        ["x", 13, [2], 0, 4],
        ["x", 13, [1], 0, 3],
        ["x", 11, [1], 16, 4],
        ["x", 11, ["1"], 0, 4],
        ["x", 11, 3, 0, 4],
        ["x"],
        7,
    ],
)
def test_a_tensor_that_does_not_lie_in_the_memory_is_a_protocol_error(entry: Any) -> None:
    with pytest.raises(ProtocolError):
        tensors_of([entry], bytearray(16))


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "behind others"])
def test_a_block_that_is_released_before_it_was_given_gives_no_other_file_away(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """The descriptor of its segment may have become another file's: such as a key."""
    ours, theirs = ends
    monkeypatch.setattr(ours.arena, "_limit", 0)  # What is released goes at once.
    while waits and not ours.channel.backlogged:
        ours.channel.send(Kind.LOG, "x" * 30_000)
    packer = Packer()
    packer.add("t", Tensor.of(np.zeros(1 << 20, np.uint8)))
    number = ours.arena._next

    class Payload:
        size = packer.size

        def write(self, memory: Any, start: int) -> None:
            packer.write(memory, start)
            if not waits:
                ours.arena.release(number, start)

    if waits:
        ours.channel.send(Kind.LOG, "y", Payload())
        ours.arena.release(number, 0)
    else:
        with pytest.raises(OSError, match="released before it was given"):
            ours.channel.send(Kind.LOG, "y", Payload())
    with open("/proc/self/status", "rb"):  # It gets the lowest number that is free.
        while ours.channel.backlogged:
            ours.channel.flush()
            while theirs.channel.wait(0):
                assert theirs.channel.receive() is not None


def test_a_message_that_is_cut_off_is_not_filled_up_with_the_last_one(ends: tuple[End, End]) -> None:
    ours, theirs = ends
    ours.channel.send(Kind.LOG, "hello")
    assert theirs.channel.receive().body == "hello"
    for part in (b"\x0c", struct.pack("<BBI", Kind.LOG, 0, 20), struct.pack("<BBI", Kind.LOG, 0, 20) + b"["):
        ours.socket.send(part)
        with pytest.raises(ProtocolError, match="cut off"):
            theirs.channel.receive()


ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())])]
"""


@pytest.mark.timeout(60)
def test_inputs_that_are_more_than_a_socket_takes_are_an_error_of_their_batch(run_in_process_of_its_own: Any) -> None:
    model = run_in_process_of_its_own(ECHO)
    child = model.instance.supervisor.child
    channel = child.work
    channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # The kernel makes some kilobytes of it.
    text = model.error(np.zeros(3000))
    assert text == "the inputs of 'm_0_0' cannot be handed over: [Errno 90] Message too long"
    assert model.value(np.zeros(10)).shape == (10,)
    assert model.instance.supervisor.child is child
