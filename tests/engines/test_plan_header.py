"""What is read from the head of a plan, and what is refused before a library sees it."""

import struct

import pytest

from repoagent.engines.flavours import Flavour
from repoagent.engines.plan_header import HEADER_SIZE, PlanHeader, judge
from repoagent.errors import InvalidArgumentError, UnsupportedError

HERE = "1.7.1.116"


def rtx_plan(*, version: bytes = bytes((1, 7, 1, 116)), capabilities: int = 0x7E, body: bytes = b"kernels") -> bytes:
    """The head that TensorRT for RTX 1.7 writes, as it was seen, with something behind it."""
    size = HEADER_SIZE + len(body)
    head = b"vtrt" + struct.pack("<IIIQ", 0, 2, 0, size) + version + b"vtrt" + struct.pack("<I", capabilities)
    return head.ljust(HEADER_SIZE, b"\0") + body


def _judge(plan: bytes, version: str = HERE, *capabilities: tuple[int, int]) -> None:
    judge(PlanHeader.of(plan), flavour=Flavour.RTX, version=version, capabilities=capabilities)


def test_flavour_version_and_gpus_are_read() -> None:
    header = PlanHeader.of(rtx_plan(capabilities=0x0A))
    assert (header.flavour, header.version) == (Flavour.RTX, (1, 7, 1, 116))
    assert header.capabilities == frozenset({(8, 0), (8, 9)})
    assert str(header) == "TensorRT for RTX 1.7.1.116 for compute capability 8.0, 8.9"


def test_what_fits_passes() -> None:
    _judge(rtx_plan(), HERE, (8, 9), (12, 0))


@pytest.mark.parametrize("plan", [b"", b"onnx", b"\x08\x0b\x12\x00" * 40])
def test_garbage_is_not_a_plan(plan: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="not a TensorRT plan: it begins with"):
        PlanHeader.of(plan)


@pytest.mark.parametrize("length", [5, 63, 64, 70])
def test_a_plan_that_is_cut_off_is_refused_with_both_sizes(length: int) -> None:
    with pytest.raises(InvalidArgumentError, match="the plan is cut off"):
        PlanHeader.of(rtx_plan()[:length])


def test_bytes_behind_the_plan_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="followed by something else: it has 72 bytes, and its header"):
        PlanHeader.of(rtx_plan() + b"!")


def test_another_version_is_refused_with_both() -> None:
    with pytest.raises(
        UnsupportedError, match=r"built with TensorRT for RTX 1\.6\.1\.120, and here is version 1\.7\.1"
    ):
        _judge(rtx_plan(version=bytes((1, 6, 1, 120))))


def test_another_gpu_is_refused_with_both() -> None:
    with pytest.raises(UnsupportedError, match=r"of compute capability 8\.9, and here is one of 9\.0: build it again"):
        _judge(rtx_plan(capabilities=0x08), HERE, (9, 0))


def test_every_gpu_that_is_to_be_used_must_be_among_them() -> None:
    with pytest.raises(UnsupportedError, match=r"and here is one of 8\.6"):
        _judge(rtx_plan(capabilities=0x08), HERE, (8, 9), (8, 6))


def test_a_plan_of_the_other_flavour_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="built with TensorRT, and here is TensorRT for RTX"):
        _judge(b"ftrt".ljust(100, b"\0"))


def test_a_plan_of_tensorrt_is_left_to_its_library() -> None:
    header = PlanHeader.of(b"ftrt".ljust(100, b"\0"))
    judge(header, flavour=Flavour.TENSORRT, version="11.1.0", capabilities=[(9, 0)])
