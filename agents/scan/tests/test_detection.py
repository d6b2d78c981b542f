"""The format of a file is told by its content, shown with files that other programs made."""

import collections
import datetime as dt
import gzip
import io
import marshal
import os
import pickle
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_scan.agent import ScanAgent
from repoagent_scan.formats.detection import detect
from repoagent_scan.formats.format import ACCEPTED, Format, MalformedError
from repoagent_scan.formats.pickles import looks_like_pickle
from repoagent_scan.formats.zipped import skops_types

from agents.scan.tests.making_models import onnx_model, safetensors
from repoagent.api import Parameters


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"x")
    return buffer.getvalue()


SCHEMA = b'{"__class__": "Ridge", "__module__": "sklearn.linear_model", "content": [{"__class__": "f"}]}'


def skops(schema: bytes = SCHEMA, array: bytes | None = None, more: dict[str, bytes] | None = None) -> bytes:
    """What skops writes, made here."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("140650316286352.npy", npy(np.zeros(3)) if array is None else array)
        for name, content in (more or {}).items():
            file.writestr(name, content)
        file.writestr("schema.json", schema)
    return buffer.getvalue()


def test_the_types_in_a_file_of_skops_are_listed() -> None:
    assert skops_types(skops()) == ["None.f", "sklearn.linear_model.Ridge"]


def test_an_archive_that_unpacks_to_much_is_not_unpacked() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("1.npy", npy(np.zeros(9 << 20)))
        file.writestr("schema.json", SCHEMA)
    assert len(buffer.getvalue()) < 1 << 20
    assert detect("model.skops", buffer.getvalue()) is Format.ARCHIVE


def tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(tarfile.TarInfo("x"))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("model.onnx", onnx_model().SerializeToString(), Format.ONNX),
        ("weights", onnx_model().SerializeToString(), Format.ONNX),
        ("model.safetensors", safetensors(), Format.SAFETENSORS),
        ("model.gguf", b"GGUF\3\0\0\0", Format.GGUF),
        ("model.plan", b"ftrt" + bytes(60), Format.PLAN),
        ("labels.txt", "Katze\nträge\n".encode(), Format.TEXT),
        ("empty", b"", Format.TEXT),
        ("model.py", b"import os\n", Format.PYTHON),
        ("run", b"#!/usr/bin/env python3\n", Format.PYTHON),
        ("model.pyc", marshal.dumps(compile("1", "x", "eval")), Format.PYTHON),
        ("w.npy", npy(np.zeros(3)), Format.NUMPY),
        ("w.npy", npy(np.array([{}], dtype=object)), Format.PICKLE),
        ("model.pt", archive("archive/data.pkl", "archive/data/0"), Format.PICKLE),
        ("weights.npz", archive("a.npy"), Format.ARCHIVE),
        ("model.keras", archive("metadata.json", "config.json", "model.weights.h5"), Format.KERAS),
        ("model.keras", archive("metadata.json", "config.json", "model.weights.h5", "x.py"), Format.ARCHIVE),
        ("model.cbm", b"CBM1" + bytes(60), Format.CATBOOST),
        ("model.skops", skops(), Format.SKOPS),
        ("model.skops", b"x" + skops(), Format.ARCHIVE),
        ("model.skops", skops(more={"run.py": b"x"}), Format.ARCHIVE),
        ("model.skops", skops(array=npy(np.array([{}], object))), Format.ARCHIVE),
        ("model.skops", skops(schema=b"{"), Format.ARCHIVE),
        ("x.tar", tar(), Format.ARCHIVE),
        ("x.gz", gzip.compress(b"x", mtime=0), Format.ARCHIVE),
        ("model.ort", bytes(4) + b"ORTM" + bytes(64), Format.ORT),
        ("model.h5", b"\x89HDF\r\n\x1a\n" + bytes(64), Format.HDF5),
        ("python", Path(sys.executable).resolve().read_bytes()[:4096], Format.NATIVE),
        ("noise", bytes(range(1, 200)), Format.UNKNOWN),
        ("weights.txt", pickle.dumps(print), Format.PICKLE),
        ("half.txt", b"text\xff", Format.UNKNOWN),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_content_decides(name: str, content: bytes, expected: Format) -> None:
    assert detect(name, content) is expected


@pytest.mark.parametrize("head", [b"cat\ndog\n" * 1000, b"GGUF\3\0\0\0", b"ftrt" + bytes(60), npy(np.zeros(3))])
def test_an_archive_behind_something_else_is_an_archive(head: bytes) -> None:
    assert detect("model", head + archive("a.txt")) is Format.ARCHIVE
    assert detect("model", head + archive("archive/data.pkl")) is Format.PICKLE


def test_an_archive_in_the_last_weights_of_a_model_is_an_archive() -> None:
    zipped = archive("archive/data.pkl")
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(zipped), len(zipped))
    tensors = len(header).to_bytes(8, "little") + header + zipped
    assert detect("model.safetensors", tensors) is Format.PICKLE
    model = onnx_model()
    model.graph.initializer.add(name="w", data_type=2, dims=[len(zipped)], raw_data=zipped)
    assert detect("model.onnx", model.SerializeToString()) is Format.PICKLE


@pytest.mark.parametrize("tail", [b"x", bytes(1000)])
def test_safetensors_with_bytes_after_the_last_tensor_are_malformed(tail: bytes) -> None:
    with pytest.raises(MalformedError, match="bytes follow the last tensor"):
        detect("model.safetensors", safetensors(tail))


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[3,8]}}',
        b'{"a":{"data_offsets":[4,8]}}',
        b'{"a":{"data_offsets":[8,0]}}',
        b'{"a":[]}',
        b"{" + b'"a":' * 5,
    ],
)
def test_safetensors_whose_tensors_do_not_cover_the_file_are_malformed(header: bytes) -> None:
    with pytest.raises(MalformedError):
        detect("model.safetensors", safetensors(header=header))


def test_a_header_of_millions_of_values_is_not_parsed() -> None:
    with pytest.raises(MalformedError, match="more than 1000000 values"):
        detect("model.safetensors", safetensors(header=b"{" + b"[" * 1_000_001))


# Files that begin as a format that is accepted, or as none, and that another program reads as code.

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


# Pickles of every protocol are recognised; text and weights that look similar are not.


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("true",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [Command(), collections.OrderedDict(a=1), dt.date(2026, 1, 1), np.zeros(4), os.system, Command],
    ids=lambda value: type(value).__name__,
)
def test_what_imports_is_a_pickle_in_every_protocol(value: object, protocol: int) -> None:
    assert looks_like_pickle(pickle.dumps(value, protocol))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_a_pickle_where_a_header_says_so(protocol: int) -> None:
    assert looks_like_pickle(pickle.dumps({"a": [1, 2.5]}, protocol))


def test_a_pickle_that_goes_on_after_the_head_is_one() -> None:
    assert looks_like_pickle(pickle.dumps(np.zeros(1_000_000), 4)[: 1 << 16])


def test_code_that_runs_before_a_stream_breaks_is_a_pickle() -> None:
    assert looks_like_pickle(pickle.dumps(Command(), 0)[:-1] + b"\0broken")


@pytest.mark.parametrize("text", [b"cat\ndog\nRabbit\n", b"config: 1\nname\n", b"i1\n2\n.", b"", b"I1\n.", b"(lp0\n."])
def test_text_that_begins_with_an_opcode_is_not_a_pickle(text: bytes) -> None:
    assert not looks_like_pickle(text)


def test_safetensors_whose_size_reads_as_a_header_is_not_a_pickle() -> None:
    assert not looks_like_pickle((0x0480).to_bytes(8, "little") + b"{" + b" " * 0x480)


def test_no_text_of_this_project_is_taken_for_a_pickle() -> None:
    pages = list((Path(__file__).parents[3] / "docs").rglob("*.md"))
    assert pages
    assert [page for page in pages if looks_like_pickle(page.read_bytes())] == []


@pytest.mark.parametrize("filler", [b"N0", b"(0", b"I1\n0"])
def test_an_import_behind_any_amount_of_filler_is_a_pickle(filler: bytes) -> None:
    assert looks_like_pickle(filler * 1_000_000 + pickle.dumps(Command(), 0))


# What the agent says about parameters of a policy.


def test_a_strict_scan_has_none() -> None:
    assert ScanAgent.weaknesses(Parameters([("modelaudit", "required")])) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("allow", "pickle"), ("allow_file", "*"), ("allow_operator", "com.vendor"), ("modelaudit", "auto")],
)
def test_each_exception_is_one(name: str, value: str) -> None:
    others = [] if name == "modelaudit" else [("modelaudit", "off")]
    (sentence,) = ScanAgent.weaknesses(Parameters([(name, value), *others]))
    assert value in sentence or name == "modelaudit"
