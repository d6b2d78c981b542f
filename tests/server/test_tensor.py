import sys
import weakref
from typing import Any

import numpy as np
import onnxruntime
import pytest

from repoagent.server import (
    DataType,
    DLDeviceType,
    InvalidArgumentError,
    MemoryBuffer,
    MemoryType,
    Tensor,
    UnsupportedError,
)
from repoagent.server.tensor import from_core, to_core
from repoagent.serving.requests.tensor import Tensor as CoreTensor

NUMBERS = [np.bool_, *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64))]
NUMBERS += ["float16", "float32", "float64"]


class Exporter:
    """An object that is no array but speaks DLPack, with a capsule that is not about the object itself."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_an_array_gets_exactly_one_reference_and_is_not_copied() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = sys.getrefcount(array)
    tensor = Tensor.from_dlpack(array)
    assert sys.getrefcount(array) == before + 1
    assert tensor.data_ptr == array.ctypes.data
    assert (tensor.data_type, tuple(tensor.shape), tensor.size) == (DataType.FP32, (2, 3), 24)
    assert (tensor.memory_type, tensor.memory_type_id) == (MemoryType.CPU, 0)
    del tensor
    assert sys.getrefcount(array) == before


def test_a_view_adds_exactly_one_reference_to_the_tensor_and_both_go_back() -> None:
    array = np.arange(6, dtype=np.int64)
    of_array = sys.getrefcount(array)
    tensor = Tensor.from_dlpack(array)
    of_tensor = sys.getrefcount(tensor)
    view = np.from_dlpack(tensor)
    assert sys.getrefcount(tensor) == of_tensor + 1
    assert view.ctypes.data == array.ctypes.data
    del view
    assert sys.getrefcount(tensor) == of_tensor
    del tensor
    assert sys.getrefcount(array) == of_array


def test_a_view_outlives_the_tensor_and_the_array() -> None:
    array = np.arange(1000)
    gone = weakref.ref(array)
    view = np.from_dlpack(Tensor.from_dlpack(array))
    del array
    assert gone() is not None
    assert view.sum() == 499500
    del view
    assert gone() is None


def test_a_view_keeps_its_shape_when_the_tensor_gets_another() -> None:
    tensor = Tensor.from_dlpack(np.arange(6))
    view = np.from_dlpack(tensor)
    tensor.shape = (2, 3)
    assert view.shape == (6,)
    assert np.from_dlpack(tensor).shape == (2, 3)


def test_a_capsule_that_nobody_uses_lets_go_of_the_tensor() -> None:
    tensor = Tensor.from_dlpack(np.arange(6))
    before = sys.getrefcount(tensor)
    capsule = tensor.__dlpack__()
    assert sys.getrefcount(tensor) == before + 1
    del capsule
    assert sys.getrefcount(tensor) == before


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_numeric_type_survives_both_ways(dtype: Any) -> None:
    array = np.array([0, 1, 1]).astype(dtype)
    for source in (array, Exporter(array)):
        view = np.from_dlpack(Tensor.from_dlpack(source))
        assert view.dtype == array.dtype
        assert (view == array).all()


def test_memory_that_only_the_capsule_holds_stays() -> None:
    class Copying:
        def __dlpack__(self) -> Any:
            return np.arange(100_000).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    tensor = Tensor.from_dlpack(Copying())
    others = [np.zeros(100_000, np.int64) for _ in range(10)]
    assert np.from_dlpack(tensor).sum() == sum(range(100_000))
    assert len(others) == 10


def test_onnxruntime_reads_and_gives_bfloat16_through_dlpack() -> None:
    bits = np.array([0x3F80, 0x4000, 0xC040], np.uint16)  # 1, 2, -3
    tensor = from_core(CoreTensor(DataType.BF16, bits))
    assert tensor.data_type is DataType.BF16
    value = onnxruntime.OrtValue.from_dlpack(tensor.__dlpack__())
    assert value.element_type() == 16  # TensorProto.BFLOAT16
    assert value.data_ptr() == bits.ctypes.data

    back = Tensor.from_dlpack(value)
    assert back.data_type is DataType.BF16
    assert to_core(back).array.tolist() == bits.tolist()


def test_bfloat16_has_no_numpy_array() -> None:
    tensor = from_core(CoreTensor(DataType.BF16, np.array([1], np.uint16)))
    with pytest.raises(InvalidArgumentError, match=r"Unsupported Triton data type. Can't convert .*BF16.* to Numpy"):
        tensor.to_numpy()


def test_numpy_takes_a_tensor_as_an_array() -> None:
    array = np.arange(3, dtype=np.float32)
    tensor = Tensor.from_dlpack(array)
    assert np.asarray(tensor).ctypes.data == array.ctypes.data
    assert np.array(tensor).ctypes.data != array.ctypes.data
    assert np.asarray(tensor, dtype=np.int64).dtype == np.int64
    assert np.asarray(Tensor.from_bytes_array([b"a"])).tolist() == [b"a"]


def test_the_tensor_of_a_tensor_is_over_the_same_memory() -> None:
    tensor = Tensor.from_dlpack(np.arange(3))
    before = sys.getrefcount(tensor)
    again = Tensor.from_dlpack(tensor)
    assert sys.getrefcount(tensor) == before + 1
    assert again.data_ptr == tensor.data_ptr


def test_an_empty_tensor_survives_both_ways() -> None:
    tensor = Tensor.from_dlpack(np.empty((0, 3), np.float32))
    assert tensor.size == 0
    assert np.from_dlpack(tensor).shape == (0, 3)


@pytest.mark.parametrize("source", [np.arange(6).reshape(2, 3).T, Exporter(np.arange(6)[::2])])
def test_memory_with_gaps_is_refused(source: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="Only contiguous memory is supported"):
        Tensor.from_dlpack(source)


def test_strides_of_dimensions_of_one_do_not_matter() -> None:
    array = np.arange(12).reshape(3, 1, 4)[:, :, :4].transpose(1, 0, 2)
    assert Tensor.from_dlpack(Exporter(array)).shape == (1, 3, 4)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("text", "Object does not support DLpack protocol"),
        (np.array([object()]), "Object does not support DLpack protocol: "),
        (np.array([1], ">i4"), "Object does not support DLpack protocol: "),
        (np.array([1j]), r"Unsupported DLPack data type. Can't convert \(5, 128\) to Triton server data type"),
    ],
)
def test_what_is_no_tensor_is_refused(source: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Tensor.from_dlpack(source)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (DLDeviceType.kDLCUDA, "Object does not support DLPack protocol: .*GPU 3"),
        (DLDeviceType.kDLROCM, "Unsupported DLPack device type. Can't convert 10 to Triton server memory type"),
    ],
)
def test_memory_of_another_device_is_refused(device: DLDeviceType, message: str) -> None:
    class Elsewhere(Exporter):
        def __dlpack_device__(self) -> tuple[int, int]:
            return device, 3

    with pytest.raises(InvalidArgumentError, match=message):
        Tensor.from_dlpack(Elsewhere(np.arange(3)))


def test_only_the_default_stream_of_a_cpu_tensor_exists() -> None:
    tensor = Tensor.from_dlpack(np.arange(3))
    tensor.__dlpack__(stream=0)
    with pytest.raises(
        UnsupportedError, match=r"DLPack stream synchronization on memory type .*CPU and stream 5 not supported"
    ):
        tensor.__dlpack__(stream=5)


def test_pinned_memory_is_exported_as_such() -> None:
    array = np.arange(3, dtype=np.int32)
    tensor = Tensor(DataType.INT32, (3,), MemoryBuffer(array.ctypes.data, MemoryType.CPU_PINNED, 1, 12, array))
    assert tensor.__dlpack_device__() == (DLDeviceType.kDLCUDAHost, 1)
    assert tensor.to_host() is tensor
    assert Tensor.from_dlpack(Exporter(tensor)).memory_type is MemoryType.CPU_PINNED


def test_text_is_kept_as_lengths_and_utf8() -> None:
    tensor = Tensor.from_string_array(np.array([["a", "bé"]], dtype=object))
    assert (tensor.data_type, tensor.shape) == (DataType.BYTES, (1, 2))
    memory = (tensor.to_host()._view()).tobytes()
    assert memory == b"\x01\x00\x00\x00a\x03\x00\x00\x00b\xc3\xa9"
    assert tensor.to_bytes_array().tolist() == [[b"a", b"b\xc3\xa9"]]
    assert tensor.to_string_array().tolist() == [["a", "bé"]]


def test_bytes_that_are_no_text_come_back_as_bytes_only() -> None:
    tensor = Tensor.from_bytes_array(np.array([b"\xff\x00", b""], dtype=object))
    assert tensor.to_bytes_array().tolist() == [b"\xff\x00", b""]
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        tensor.to_string_array()


def test_elements_are_asked_of_a_bytes_tensor_only() -> None:
    tensor = Tensor.from_dlpack(np.arange(3, dtype=np.float32))
    for read in (tensor.to_bytes_array, tensor.to_string_array):
        with pytest.raises(InvalidArgumentError, match=r"Tensor has data type .*FP32 not .*BYTES"):
            read()


def test_memory_that_is_smaller_than_the_shape_says_is_not_read() -> None:
    array = np.arange(2, dtype=np.int64)
    tensor = Tensor(DataType.INT64, (3,), MemoryBuffer(array.ctypes.data, MemoryType.CPU, 0, 16, array))
    for read in (tensor.__dlpack__, tensor.to_numpy, lambda: to_core(tensor)):
        with pytest.raises(InvalidArgumentError, match="needs 24 bytes, but its memory buffer has 16"):
            read()


def test_bytes_that_do_not_make_up_the_shape_are_refused() -> None:
    tensor = Tensor.from_bytes_array([b"abc", b"d"])
    tensor.shape = (3,)
    with pytest.raises(InvalidArgumentError, match=r"needs 3 elements.*holds 2, and 0 bytes are left"):
        tensor.to_bytes_array()
    tensor.memory_buffer.size -= 1
    with pytest.raises(InvalidArgumentError, match="holds 1, and 4 bytes are left"):
        tensor.to_bytes_array()


@pytest.mark.parametrize(
    "device", ["cpu", "CPU:0", "Cpu", MemoryType.CPU, (MemoryType.CPU, 0), (DLDeviceType.kDLCPU, 0)]
)
def test_a_cpu_tensor_is_on_the_cpu_already(device: Any) -> None:
    tensor = Tensor.from_dlpack(np.arange(3))
    assert tensor.to_device(device) is tensor


@pytest.mark.parametrize("device", ["gpu", "GPU:1", MemoryType.GPU, (DLDeviceType.kDLCUDA, 1), "cpu_pinned"])
def test_nothing_is_moved_to_another_device(device: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"Conversion from \(.*CPU.*, 0\) to \(.*\) not supported."):
        Tensor.from_dlpack(np.arange(3)).to_device(device)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cpu:x", "Invalid memory type string cpu:x"),
        ("cpu:0:1", "Invalid memory type string cpu:0:1"),
        ("disk", "Unsupported Memory Type String. Can't convert DISK to Triton server memory type"),
        ((1, 2, 3), r"Invalid memory type \(1, 2, 3\)"),
        (7, "Invalid memory type 7"),
        ((DLDeviceType.kDLMetal, 0), "Unsupported DLPack device type"),
    ],
)
def test_a_device_that_is_none_is_refused(device: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Tensor.from_dlpack(np.arange(3)).to_device(device)


def test_a_buffer_can_be_made_of_anything_that_speaks_dlpack() -> None:
    array = np.arange(4, dtype=np.int32)
    buffer = MemoryBuffer.from_dlpack(Exporter(array))
    assert (buffer.data_ptr, buffer.size, buffer.memory_type) == (array.ctypes.data, 16, MemoryType.CPU)
