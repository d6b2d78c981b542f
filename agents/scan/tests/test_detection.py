"""The format of a file is told by its content, shown with files that other programs made."""

import gzip
import io
import marshal
import pickle
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from repoagent_scan.formats.detection import detect
from repoagent_scan.formats.format import Format, MalformedError

from agents.scan.tests.making_models import onnx_model, safetensors


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
