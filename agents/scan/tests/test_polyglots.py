"""Files that begin as a format that is accepted, or as none, and that another program reads as code."""

import io
import pickle
import tarfile

import numpy as np
import pytest
from repoagent_scan.formats.detection import detect
from repoagent_scan.formats.format import ACCEPTED, Format, MalformedError

from agents.scan.tests.making_models import safetensors

CALL = b"0cos\ngetcwd\n(tR."
"""Drops what lies on the stack, then calls a function."""


@pytest.mark.parametrize(
    "first", [b"I0x1\n", b"I010\n", b"I 1\n", b"L0x1\n", b"L0x1L\n", b"S'\xc3\xa9'\n"], ids=lambda first: repr(first)
)
def test_a_text_that_only_the_real_unpickler_reads_is_a_pickle(first: bytes) -> None:
    content = first + CALL
    assert isinstance(pickle.loads(content, encoding="utf-8"), str)
    assert detect("labels.txt", content) is Format.PICKLE


@pytest.mark.parametrize("first", [b"L119547037146038801333356L\n.I1001\n.", b"(lp0\n.", b"N."])
def test_code_in_a_later_pickle_of_a_file_counts(first: bytes) -> None:
    assert detect("model.pt", first + b"N" + CALL) is Format.PICKLE


@pytest.mark.parametrize("name", ["object", "object_"])
def test_an_array_of_objects_is_a_pickle_however_its_type_is_spelled(name: str) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    width = len(name) - len("|O")
    content = buffer.getvalue().replace(b"'|O'", f"'{name}'".encode()).replace(b" " * width + b"\n", b"\n", 1)
    if name == "object":
        assert np.load(io.BytesIO(content), allow_pickle=True)[0] is print
    assert detect("w.npy", content) is Format.PICKLE


def test_an_array_whose_type_has_object_fields_is_a_pickle() -> None:
    header = repr({"descr": [("a", "<f4"), ("b", [("c", "object", (2,))])], "fortran_order": False, "shape": (1,)})
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode()
    assert detect("w.npy", content) is Format.PICKLE


@pytest.mark.parametrize(
    "dtype", [np.dtype("<f4"), np.dtype("?"), np.dtype("M8[ns]"), np.dtype([("a", "S3"), ("b", "<U2", (2, 3))])]
)
def test_arrays_of_plain_types_are_accepted(dtype: "np.dtype[np.generic]") -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(2, dtype))
    assert detect("w.npy", buffer.getvalue()) is Format.NUMPY


@pytest.mark.parametrize("magic", [b"GGUF", b"ftrt", b"vtrt"])
def test_python_source_may_begin_as_anything(magic: bytes) -> None:
    content = magic + b" = 1\nimport os\n"
    compile(content, "model.py", "exec")
    assert detect("1/model.py", content) is Format.PYTHON


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["GGUF", "ftrt"])
@pytest.mark.parametrize("old", [False, True])
def test_a_tar_archive_is_one_whatever_its_first_member_is_called(format_: int, name: str, old: bool) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format_) as file:
        file.addfile(tarfile.TarInfo(name))
    content = _without_mark(buffer.getvalue()) if old else buffer.getvalue()
    with tarfile.open(fileobj=io.BytesIO(content)) as file:
        assert file.getnames() == [name]
    assert detect("model.gguf", content) is Format.ARCHIVE


def _without_mark(content: bytes) -> bytes:
    """As the first tar wrote it: known by the checksum alone."""
    header = content[:148] + b" " * 8 + content[156:257] + bytes(8) + content[265:512]
    return header[:148] + b"%06o\0 " % sum(header) + header[156:] + content[512:]


@pytest.mark.parametrize("offset", [512, 1024, 8192])
@pytest.mark.parametrize("begin", [b"GGUF", b"ftrt", b"\x93NUMPY"])
def test_an_hdf5_file_may_begin_at_512_times_a_power_of_two(offset: int, begin: bytes) -> None:
    content = begin + bytes(offset - len(begin)) + b"\x89HDF\r\n\x1a\n" + bytes(64)
    assert detect("model.gguf", content) is Format.HDF5


def test_an_ort_model_is_known_by_its_mark_behind_any_magic() -> None:
    assert detect("model.gguf", b"GGUFORTM" + bytes(64)) is Format.ORT


@pytest.mark.parametrize("number", [b"Infinity", b"1e999", b"NaN"])
def test_offsets_that_are_no_numbers_are_malformed(number: bytes) -> None:
    with pytest.raises(MalformedError):
        detect("m", safetensors(header=b'{"w":{"data_offsets":[0,%s]}}' % number))


def test_all_formats_of_these_tests_are_refused() -> None:
    assert not ACCEPTED & {Format.PICKLE, Format.PYTHON, Format.ARCHIVE, Format.HDF5, Format.ORT}
