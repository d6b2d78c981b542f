"""The reader of GGUF beside the package ``gguf``, and what it refuses."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm.builder.gguf import _KINDS, GgufFile, _Head

from llm.tests.builder.conftest import FILES, GGUF, RECORDED
from repoagent.errors import InvalidArgumentError, UnsupportedError


@pytest.mark.parametrize("name", list(RECORDED["blocks"]))
def test_blocks_stand_for_what_gguf_makes_of_them(name: str) -> None:
    entry = RECORDED["blocks"][name]
    raw = np.frombuffer(bytes.fromhex(entry["raw"]), np.uint8)
    (kind,) = (kind for kind in _KINDS.values() if kind.name == name)
    assert len(raw) == 3 * kind.size
    np.testing.assert_array_equal(kind.floats(raw).reshape(-1), np.frombuffer(bytes.fromhex(entry["floats"]), "<f4"))


@pytest.mark.parametrize("name", list(FILES))
def test_keys_and_tensors_are_found(name: str) -> None:
    file = GgufFile(GGUF / f"{name}.gguf")
    assert file.values["general.architecture"] in name.replace("mixtral", "llama")
    assert len(file.values["tokenizer.ggml.tokens"]) == FILES[name]["config"]["vocab_size"]
    assert file.floats("token_embd.weight").shape == tuple(FILES[name]["tensors"]["model.embed_tokens.weight"])
    assert np.isfinite(file.floats("output_norm.weight")).all()


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _key(name: bytes, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _tensor(name: bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def _file(keys: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), size: int = 64, **head: Any) -> bytes:
    version, counts = head.get("version", 3), head.get("counts", (len(tensors), len(keys)))
    body = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + bytes(size)


def test_a_file_made_by_hand_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(_file((_key(b"a", 5, struct.pack("<i", -5)),), (_tensor(b"t", (4, 4)),)))
    file = GgufFile(tmp_path / "m.gguf")
    assert file.values == {"a": -5}
    np.testing.assert_array_equal(file.floats("t"), np.zeros((4, 4)))
    np.testing.assert_array_equal(file.floats("t", 3), np.zeros(4))


_HUGE = struct.pack("<Q", 2**63)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not a GGUF file"),
        (b"GGUF", "cut short"),
        (b"GGML" + bytes(64), "is not a GGUF file"),
        (_file(version=1), "GGUF of version 1; versions 2 and 3"),
        (_file(version=3 << 24), "its numbers are big-endian"),
        (_file(counts=(2**64 - 1, 0)), "has 18446744073709551615 tensors"),
        (_file(counts=(0, 2**31)), "has 2147483648 keys"),
        (_file((_key(b"a", 4, bytes(4)),))[:40], "cut short"),
        (_file((_key(b"a", 4, bytes(4)),) * 2), "the key 'a' twice"),
        (_file((_key(b"x" * 300, 4, bytes(4)),)), "a name or text of 300 bytes"),
        (_file((_HUGE,)), "has a name or text of 9223372036854775808 bytes"),
        (_file((_key(b"a", 8, _HUGE),)), "has a name or text of 9223372036854775808 bytes"),
        (_file((_key(b"a", 8, _text(b"\xff")),)), "not UTF-8"),
        (_file((_key(b"a", 13, bytes(4)),)), "the key 'a' has the type 13"),
        (_file((_key(b"a", 7, b"\2"),)), "the key 'a' must be true or false, not 2"),
        (_file((_key(b"a", 9, struct.pack("<I", 4) + _HUGE),)), "cut short"),
        (_file((_key(b"a", 9, struct.pack("<I", 8) + _HUGE),)), "the key 'a' has 9223372036854775808 texts"),
        (_file((_key(b"a", 9, struct.pack("<IQ", 9, 1)),)), "the key 'a' is an array of the type 9"),
        (_file((_key(b"general.alignment", 4, bytes(4)),)), "general.alignment must be a power of two, not 0"),
        (_file((_key(b"general.alignment", 4, b"\3\0\0\0"),)), "general.alignment must be a power of two, not 3"),
        (_file((_key(b"general.alignment", 6, struct.pack("<f", 32)),)), "a power of two, not 32.0"),
        (_file((_key(b"general.alignment", 9, struct.pack("<IQII", 4, 2, 32, 32)),)), r"a power of two, not array\(\["),
        (_file((_key(b"general.alignment", 9, struct.pack("<IQI", 4, 1, 32)),)), r"a power of two, not array\(\["),
        (_file((), (_tensor(b"t", ()),)), "'t' has 0 dimensions"),
        (_file((), (_tensor(b"t", (1,) * 5),)), "'t' has 5 dimensions"),
        (_file((), (_tensor(b"t", (0, 4)),)), r"'t' of F32 cannot have the shape \[4, 0\]"),
        (_file((), (_tensor(b"t", (33,), 8),)), r"'t' of Q8_0 cannot have the shape \[33\]"),
        (_file((), (_tensor(b"t", (256,), 11),)), "'t' has the type Q3_K, which is not read; read are BF16, F16, F32"),
        (_file((), (_tensor(b"t", (256,), 999),)), "'t' has the type 999"),
        (_file((), (_tensor(b"t", (2**32, 2**32)),)), "'t' lies behind its end"),
        (_file((), (_tensor(b"t", (17,)),)), "'t' lies behind its end"),
        (_file((), (_tensor(b"t", (4,), 0, 2**63),)), "'t' lies behind its end"),
        (_file((), (_tensor(b"t", (4,), 0, 8),)), r"'t' begins at 8, not at 32 \* n"),
        (_file((), (_tensor(b"t", (4,)), _tensor(b"u", (4,)))), "'t' and 'u' overlap"),
        (_file((), (_tensor(b"t", (4,)), _tensor(b"t", (4,), 0, 32))), "the tensor 't' twice"),
    ],
)
def test_a_file_that_lies_is_refused_by_what_is_wrong(content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises((InvalidArgumentError, UnsupportedError), match=f"m.gguf: .*{text}"):
        GgufFile(tmp_path / "m.gguf")


def test_a_file_that_is_cut_short_after_its_head_was_read_is_an_error(tmp_path: Path) -> None:
    """It may lie where others write: a page of a map behind the end of a file would end the server."""
    place = tmp_path / "m.gguf"
    place.write_bytes(_file((), (_tensor(b"t", (1 << 14,)),), 1 << 16))
    file = GgufFile(place)
    os.truncate(place, 100)
    with pytest.raises(InvalidArgumentError, match=r"m.gguf: .*'t'.* changed while it was read"):
        file.floats("t")


def test_a_file_that_is_cut_short_while_its_head_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "m.gguf"
    place.write_bytes(_file(tuple(_key(b"k%d" % number, 8, _text(b"x" * 9000)) for number in range(200))))
    begin = _Head.begin

    def cut(head: _Head) -> int:
        os.truncate(place, 100)
        return begin(head)

    monkeypatch.setattr(_Head, "begin", cut)
    with pytest.raises(InvalidArgumentError, match=r"m.gguf: is not a whole GGUF file: cut short"):
        GgufFile(place)
