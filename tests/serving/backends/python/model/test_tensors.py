"""Tensors of the Python backend: names, types, DLPack, and the byte form of strings, against tritonclient's."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.utils as client

from repoagent.serving.backends.python.model.context import TritonModelException
from repoagent.serving.backends.python.model.tensors import (
    TRITON_STRING_TO_NUMPY,
    Tensor,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from repoagent.serving.requests.tensor import DataType
from repoagent.serving.requests.tensor import Tensor as CoreTensor


def test_an_array_is_not_copied_on_its_way_in_or_out() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = Tensor("x", array)
    assert tensor.as_numpy() is array
    assert tensor.shape() == [2, 3]
    assert np.shares_memory(np.from_dlpack(tensor), array)
    assert np.shares_memory(Tensor.from_dlpack("y", tensor.to_dlpack()).as_numpy(), array)


def test_what_is_shared_with_others_can_only_be_read() -> None:
    array = np.arange(3, dtype=np.float32)
    tensor = Tensor.wrap("x", CoreTensor(DataType.FP32, array), shared=True)
    seen = tensor.as_numpy()
    assert np.shares_memory(seen, array)
    assert (seen.flags.writeable, array.flags.writeable) == (False, True)
    given = np.from_dlpack(tensor)
    assert (given.tolist(), np.shares_memory(given, array)) == ([0, 1, 2], True)
    assert (given.flags.writeable, array.flags.writeable) == (False, True)


class Old:
    """What a consumer that knows no DLPack 1.0 asks for."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return self._tensor.__dlpack__(stream=None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()


@pytest.mark.parametrize("shared", [True, False])
def test_memory_that_can_only_be_read_is_marked_so_or_copied(shared: bool) -> None:
    array = np.frombuffer(np.arange(2, dtype=np.float32).tobytes(), np.float32)
    tensor = Tensor.wrap("x", CoreTensor(DataType.FP32, array), shared=shared)
    seen, copied = np.from_dlpack(tensor), np.from_dlpack(Old(tensor))
    assert (seen.tolist(), np.shares_memory(seen, array), seen.flags.writeable) == ([0, 1], True, False)
    assert (copied.tolist(), np.shares_memory(copied, array)) == ([0, 1], False)
    with pytest.raises(BufferError, match="tensor 'x' can only be given as a copy"):
        tensor.__dlpack__(copy=False)


def test_who_asks_for_a_copy_gets_one_and_gaps_are_closed() -> None:
    array = np.arange(6, dtype=np.float32)
    copied = np.from_dlpack(Tensor("x", array), copy=True)
    assert not np.shares_memory(copied, array)
    assert np.from_dlpack(Tensor("x", array[::2])).tolist() == [0, 2, 4]
    unaligned = np.frombuffer(bytes(1) + array.tobytes(), np.uint8)[1:].view(np.float32)
    assert np.from_dlpack(Tensor("x", unaligned)).tolist() == array.tolist()


@pytest.mark.parametrize("array", [np.array(["text"]), np.zeros(2, np.complex64)], ids=["str", "complex"])
def test_arrays_without_a_data_type_are_refused(array: np.ndarray) -> None:
    with pytest.raises(TritonModelException):
        Tensor("x", array)


def test_objects_that_are_no_text_are_told_as_text() -> None:
    texts = np.array([["a", b"b"]], np.object_)
    assert Tensor("x", texts).as_numpy() is texts
    mixed = np.array([["a", b"b"], [5, None]], np.object_)
    assert Tensor("x", mixed).as_numpy().tolist() == [["a", b"b"], ["5", "None"]]
    assert mixed[1, 0] == 5


BITS = np.array([0x3F80, 0xC000], np.uint16)
"""1.0 and -2.0."""


def test_bf16_is_no_array_of_numpy() -> None:
    with pytest.raises(TritonModelException, match="tensor dtype is bf16 and cannot be converted to numpy"):
        Tensor.wrap("x", CoreTensor(DataType.BF16, BITS)).as_numpy()


def bfloat16_of_onnxruntime(bits: Any) -> Any:
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
    return value._ortvalue


class OnlyDlpack:
    """The protocol and nothing else."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def __dlpack__(self, **_: Any) -> Any:
        return self._given.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_bf16_comes_from_other_libraries_by_dlpack() -> None:
    value = bfloat16_of_onnxruntime(BITS)
    for given in (value.to_dlpack(), OnlyDlpack(value)):
        tensor = Tensor.from_dlpack("x", given)
        assert tensor.unwrap().data_type is DataType.BF16
        assert tensor.unwrap().array.tolist() == BITS.tolist()
        assert tensor.shape() == [2]
        assert tensor.unwrap().array.ctypes.data == value.data_ptr(), "no copy was made"


def test_bf16_goes_to_other_libraries_by_dlpack() -> None:
    tensor = Tensor.wrap("x", CoreTensor(DataType.BF16, BITS.copy()))
    value = type(bfloat16_of_onnxruntime(BITS)).from_dlpack(tensor.to_dlpack(), False)
    assert value.data_type() == "tensor(bfloat16)"
    assert value.data_ptr() == tensor.unwrap().array.ctypes.data
    again = Tensor.from_dlpack("y", Tensor.from_dlpack("z", tensor))
    assert again.unwrap().data_type is DataType.BF16
    assert again.unwrap().array.tolist() == BITS.tolist()


def test_what_dlpack_cannot_give_is_refused_as_before() -> None:
    with pytest.raises(Exception, match=r"[cC]apsule"):
        Tensor.from_dlpack("x", object())
    assert Tensor.from_dlpack("x", np.frombuffer(b"1234", np.uint8)).as_numpy().tolist() == [49, 50, 51, 52], (
        "read-only"
    )
    used = np.ones(2, np.float32).__dlpack__()
    Tensor.from_dlpack("x", used)
    with pytest.raises(Exception, match=r"[cC]apsule"):
        Tensor.from_dlpack("x", used)


def test_strings_have_the_byte_form_that_triton_clients_use() -> None:
    values = np.array([b"abc", b"", "über".encode()], np.object_)
    theirs = client.serialize_byte_tensor(values).item()
    assert serialize_byte_tensor(values) == theirs
    forms: tuple[Any, ...] = (bytes, bytearray, memoryview, lambda given: np.frombuffer(given, np.uint8))
    for form in forms:
        found = deserialize_bytes_tensor(form(theirs)).tolist()
        assert [(type(one), one) for one in found] == [(bytes, one) for one in values]
    for cut in (theirs[:-1], theirs[:2]):
        with pytest.raises(TritonModelException, match="ends in the middle of an element"):
            deserialize_bytes_tensor(cut)


def test_types_go_both_ways() -> None:
    for kind in (np.bool_, np.uint8, np.int64, np.float16, np.float32, np.float64, np.object_):
        number = numpy_to_triton_type(kind)
        assert number is not None
        assert triton_to_numpy_type(number) is kind
    assert numpy_to_triton_type(np.complex64) is None
    assert triton_to_numpy_type(99) is None
    assert triton_string_to_numpy("TYPE_STRING") is np.object_
    assert triton_string_to_numpy("TYPE_INT8") is np.int8
    assert list(TRITON_STRING_TO_NUMPY)[0::12] == ["TYPE_BOOL", "TYPE_STRING"]
    assert all(triton_string_to_numpy(name) in (kind, np.bool_) for name, kind in TRITON_STRING_TO_NUMPY.items())
