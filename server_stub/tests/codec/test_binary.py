"""Tensors as bytes; BYTES against the functions of Triton's own client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_server.codec.binary import RequestLabel, bytes_array, pack_bytes, unpack_bytes
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from repoagent.errors import InvalidArgumentError
from repoagent.limits import Limits

_ELEMENTS = st.lists(st.binary(max_size=40), max_size=20)


@given(_ELEMENTS)
def test_what_tritons_client_packs_is_unpacked(elements: list[bytes]) -> None:
    packed = serialize_byte_tensor(bytes_array(elements))
    data = packed.tobytes() if len(elements) == 0 else packed.item()
    assert unpack_bytes(memoryview(data), len(elements), "X", RequestLabel("m")) == elements


@given(_ELEMENTS)
def test_what_is_packed_is_unpacked_by_tritons_client(elements: list[bytes]) -> None:
    assert deserialize_bytes_tensor(pack_bytes(elements)).tolist() == elements


@given(st.binary(max_size=60), st.integers(0, 4))
def test_garbage_is_refused_or_is_all_used(data: bytes, count: int) -> None:
    try:
        elements = unpack_bytes(memoryview(data), count, "X", RequestLabel("m"))
    except InvalidArgumentError:
        return
    assert pack_bytes(elements) == data


def test_trailing_nuls_of_elements_are_kept() -> None:
    assert bytes_array([b"a\0\0", b""]).tolist() == [b"a\0\0", b""]


def test_more_elements_of_a_request_than_allowed_are_refused() -> None:
    label = RequestLabel("m", limits=Limits(request_texts=3))
    unpack_bytes(memoryview(bytes(8)), 2, "X", label)
    with pytest.raises(InvalidArgumentError, match=r"more than 3 elements of BYTES.*--limit-request-texts"):
        unpack_bytes(memoryview(bytes(8)), 2, "Y", label)


@pytest.mark.parametrize("size", [1, 3])
def test_a_cut_length_names_what_is_left(size: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"expecting 4 bytes but only {size} bytes available"):
        unpack_bytes(memoryview(bytes(size)), 1, "X", RequestLabel("m"))
