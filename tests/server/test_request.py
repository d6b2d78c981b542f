"""What becomes of the memory of inputs: it is used as it is wherever that is possible."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.server import Server
from repoagent.server.memory import address_of
from repoagent.server.request import core_input

NUMBERS = np.arange(12, dtype=np.float32)


class Exporter:
    """An object that is no array but speaks DLPack, as it was before 1.0 or as NumPy speaks it."""

    def __init__(self, array: Any, *, old: bool = False) -> None:
        self.array = array
        self._old = old

    def __dlpack__(self, **options: Any) -> Any:
        if self._old and options:
            raise TypeError("this library is too old for options")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def read_only(array: Any) -> Any:
    array = array.view()
    array.flags.writeable = False
    return array


def unaligned(array: Any) -> Any:
    return np.frombuffer(bytearray(bytes(1) + array.tobytes()), np.uint8)[1:].view(array.dtype)


@pytest.mark.parametrize("wrap", [np.asarray, Exporter, lambda array: Exporter(array, old=True)])
@pytest.mark.parametrize("array", [NUMBERS, NUMBERS[3:], NUMBERS.reshape(3, 4), NUMBERS[:0]])
def test_memory_that_can_be_used_is_used(wrap: Any, array: Any) -> None:
    seen = core_input(wrap(array)).array
    assert np.array_equal(seen, array)
    assert not array.size or address_of(seen) == address_of(array)


@pytest.mark.parametrize("wrap", [np.asarray, Exporter])
def test_so_is_memory_that_can_only_be_read(wrap: Any) -> None:
    array = read_only(NUMBERS)
    seen = core_input(wrap(array)).array
    assert address_of(seen) == address_of(array)
    assert not seen.flags.writeable


@pytest.mark.parametrize("wrap", [np.asarray, Exporter, lambda array: Exporter(array, old=True)])
@pytest.mark.parametrize("array", [NUMBERS[::2], NUMBERS.reshape(3, 4).T, NUMBERS[::-1], unaligned(NUMBERS)])
def test_what_has_gaps_or_is_not_aligned_is_copied(wrap: Any, array: Any) -> None:
    seen = core_input(wrap(array)).array
    assert seen.flags.carray
    assert np.array_equal(seen, array)
    assert not np.shares_memory(seen, array)


@pytest.mark.parametrize("form", [np.asarray, read_only])
def test_the_owner_lives_as_long_as_the_tensor_of_the_core(form: Any) -> None:
    owner = Exporter(form(NUMBERS.copy()))
    memory = weakref.ref(owner.array)
    tensor = core_input(owner)
    del owner
    gc.collect()
    assert memory() is not None
    assert tensor.array.tolist() == NUMBERS.tolist()
    del tensor
    gc.collect()
    assert memory() is None


MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

def address(array):
    return array.__array_interface__["data"][0]

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            (tensor,) = request.inputs()
            places = [address(tensor.as_numpy()), address(np.from_dlpack(tensor))]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("places", np.array(places, np.int64))]))
        return responses
"""

CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "places" data_type: TYPE_INT64 dims: [ 2 ] }
"""


@pytest.mark.parametrize("wrap", [np.asarray, Exporter])
def test_a_model_in_the_same_process_reads_the_memory_of_the_client(wrap: Any, tmp_path: Path) -> None:
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(MODEL)
    (model / "config.pbtxt").write_text(CONFIG)
    with Server(model_repository=str(tmp_path / "models"), workspace_directory=str(tmp_path / "work")) as server:
        (response,) = server.model("m").infer(inputs={"x": wrap(NUMBERS)})
        assert response.error is None
        assert np.asarray(response.outputs["places"]).tolist() == [address_of(NUMBERS)] * 2
