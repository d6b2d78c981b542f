"""Arrays over memory that is there already."""

import numpy as np

from repoagent.serving.requests.tensor import array_at


def test_an_array_is_a_view_of_the_memory() -> None:
    memory = bytearray(np.arange(8, dtype=np.float32).tobytes())
    array = array_at(memory, 8, np.dtype(np.float32), [2, 3])
    assert array.tolist() == [[2, 3, 4], [5, 6, 7]]
    assert np.shares_memory(array, np.frombuffer(memory, np.uint8))


def test_an_array_that_would_lie_unaligned_is_copied_to_where_it_is_aligned() -> None:
    memory = b"x" + np.arange(4, dtype=np.float64).tobytes()
    array = array_at(memory, 1, np.dtype(np.float64), [4])
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2, 3]


def test_an_array_without_elements_needs_no_memory() -> None:
    assert array_at(b"", 0, np.dtype(np.float32), (0, 3)).shape == (0, 3)
