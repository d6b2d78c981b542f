"""Whatever is changed in a GGUF file: an error of ours that names the file, or a checkpoint; never much memory."""

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm.builder import build
from repoagent_llm.builder.gguf import GgufFile
from repoagent_llm.builder.gguf_checkpoint import GgufCheckpoint, gguf_parts
from repoagent_llm.builder.gguf_tokenizer import GgufTokenizer

from repoagent.errors import InvalidArgumentError, RepoAgentError
from tests.extent import in_full

FOLDER = Path(__file__).parents[1] / "data" / "gguf"
NAMES = ["llama-q4_0", "llama-q4_k", "llama-q8_0", "mixtral-q4_0", "qwen2-f16", "gemma3-f16", "phi3-f16"]
HEAD = 14_000
"""Bytes before the tensors, about; changes of numbers of weights are no errors."""
MOST_BYTES = 24 << 20
NUMBERS = [0, 1, 2, 31, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def _spoiled(data: bytes, random: np.random.Generator) -> bytes:
    """Some bytes changed, a number written over others, a piece cut out, doubled or moved."""
    spoiled = np.frombuffer(data, np.uint8).copy()
    kind, place = random.integers(0, 5), int(random.integers(0, HEAD))
    if kind == 0:
        places = random.integers(0, HEAD, random.choice([1, 3, HEAD // 100]))
        spoiled[places] = random.integers(0, 256, len(places))
    elif kind == 1:
        size = int(random.choice([1, 2, 4, 8]))
        number = int(random.choice(np.array(NUMBERS, np.uint64))) % 256**size
        spoiled[place : place + size] = np.frombuffer(number.to_bytes(size, "little"), np.uint8)
    elif kind == 2:
        return data[: int(random.integers(0, len(data)))]
    else:
        piece = data[place : place + int(random.integers(1, 200))]
        other = int(random.integers(0, HEAD))
        return data[:other] + piece + data[other if kind == 3 else other + len(piece) :]
    return spoiled.tobytes()


def _refused(path: Path) -> str | None:
    """Why the file is refused, after all that a conversion reads."""
    try:
        found = GgufCheckpoint(path)
        found.tokenizer_files()
        shape = found.shape
        found.read("model.embed_tokens.weight", (shape.vocab_size, shape.hidden_size))
        found.read("model.layers.0.self_attn.q_proj.weight", (shape.heads * shape.head_size, shape.hidden_size))
        found.blocks("model.layers.0.self_attn.q_proj.weight")
    except RepoAgentError as error:
        return str(error)
    return None


@pytest.mark.slow
def test_a_changed_file_is_an_error_or_a_checkpoint(tmp_path: Path) -> None:
    random, refused, path = np.random.default_rng(11), 0, tmp_path / "m.gguf"
    files = [(FOLDER / f"{name}.gguf").read_bytes() for name in NAMES]
    count = in_full(10_000, otherwise=1_000)
    for number in range(count):
        path.unlink(missing_ok=True)  # the file before may still be mapped
        path.write_bytes(_spoiled(files[number % len(files)], random))
        found = _refused(path)
        assert found is None or ("m.gguf" in found and len(found) < 600), found
        refused += found is not None
    assert count // 4 < refused < count


def test_a_changed_file_takes_no_more_memory_than_its_size_allows(tmp_path: Path) -> None:
    random, path = np.random.default_rng(12), tmp_path / "m.gguf"
    files = [(FOLDER / f"{name}.gguf").read_bytes() for name in NAMES]
    for number in range(in_full(500, otherwise=50)):
        path.unlink(missing_ok=True)
        path.write_bytes(_spoiled(files[number % len(files)], random))
        with _at_most(MOST_BYTES):
            _refused(path)


@contextmanager
def _at_most(size: int) -> Iterator[None]:
    """What happens within takes at most ``size`` bytes."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size


def _written(path: Path, values: dict[str, Any], tensors: dict[str, npt.NDArray[np.float32]]) -> Path:
    """A GGUF file: whole numbers, reals, texts, lists of texts and arrays of float32 under keys; tensors in F32."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(found: Any) -> bytes:
        match found:
            case int():
                return struct.pack("<II", 4, found)
            case float():
                return struct.pack("<If", 6, found)
            case str():
                return struct.pack("<I", 8) + text(found)
            case list():
                return struct.pack("<IIQ", 9, 8, len(found)) + b"".join(map(text, found))
        reals = np.asarray(found, "<f4")
        return struct.pack("<IIQ", 9, 6, len(reals)) + reals.tobytes()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(text(key) + value(found) for key, found in values.items())
    data = b""
    for name, tensor in tensors.items():
        dims = tensor.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, len(data))
        data += tensor.astype("<f4").tobytes()
        data += bytes(-len(data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


LETTERS = [f"<{number}>" for number in range(3)] + list("abcdefghijklm")


def _values(head: int, **more: Any) -> dict[str, Any]:
    """A model of Llama's kind with two heads of that size; ``more``: its own keys, without the dots."""
    own: dict[str, Any] = {"context_length": 16, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32}
    own |= {"attention.head_count": 2, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5}
    own |= {"attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head // 2 * 2}
    tokens = {"model": "llama", "tokens": LETTERS, "scores": np.zeros(len(LETTERS)), "unknown_token_id": 0}
    found = {f"llama.{key}": value for key, value in (own | more).items() if value is not None}
    return {"general.architecture": "llama", **found, **{f"tokenizer.ggml.{key}": v for key, v in tokens.items()}}


def _tensors(head: int) -> dict[str, npt.NDArray[np.float32]]:
    shapes = {"token_embd": (16, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {"blk.0.attn_q": (2 * head, 32), "blk.0.attn_k": (head, 32), "blk.0.attn_v": (head, 32)}
    shapes |= {"blk.0.attn_output": (32, 2 * head)}
    shapes |= {f"blk.0.ffn_{name}": (32, 32) for name in ("gate", "up", "down")}
    return {f"{name}.weight": np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("head", "more", "text"),
    [
        (15, {}, "15 columns of a head cannot turn in pairs"),
        (1, {}, "rope.dimension_count' must be a whole number from 1 to 1, not 0"),
        (
            16,
            {"attention.head_count": 64, "attention.key_length": None, "attention.value_length": None}
            | {"rope.dimension_count": None},
            "1 of 1 columns of a head cannot turn in pairs",
        ),
    ],
)
def test_heads_that_cannot_be_are_refused(head: int, more: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = _written(tmp_path / "m.gguf", _values(head, **more), _tensors(head))
    with pytest.raises(RepoAgentError, match=f"m.gguf: .*{text}"):
        build(path, tmp_path / "d", form="paged")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
@pytest.mark.parametrize("length", ["long", "short"])
def test_rope_factors_of_any_length_are_checked(length: str, bad: float, tmp_path: Path) -> None:
    """Also those that texts of the longest length do not use."""
    data = bytearray((FOLDER / "phi3-f16.gguf").read_bytes())
    start = GgufFile(FOLDER / "phi3-f16.gguf").tensors[f"rope_factors_{length}.weight"].start
    struct.pack_into("<f", data, start, bad)
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(InvalidArgumentError, match=f"needs {length}_factor, a list of 4 numbers > 0"):
        build(tmp_path / "m.gguf", tmp_path / "d", form="paged")


@pytest.mark.parametrize(
    "key",
    [
        "general.alignment",
        "llama.context_length",
        "llama.rope.freq_base",
        "llama.attention.head_count",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.model",
    ],
)
def test_a_long_text_in_the_place_of_something_else_is_not_written_out(key: str, tmp_path: Path) -> None:
    """Written out, each of its characters would be four, of four bytes."""
    long = "\0" * (4 << 20) + "\U0001f600"
    path = _written(tmp_path / "m.gguf", _values(16) | {"tokenizer.ggml.model": "gpt2", key: long}, _tensors(16))
    with _at_most(32 << 20):  # the text itself takes 20
        found = _refused(path)
    assert found is not None
    assert len(found) < 600


def test_ends_that_the_model_has_not_are_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "m.gguf", _values(16) | {"tokenizer.ggml.eot_token_id": 16}, _tensors(16))
    with pytest.raises(InvalidArgumentError, match=r"eot_token_id' must be a whole number from 0 to 15, not 16"):
        GgufCheckpoint(path)


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "m.gguf", _values(16) | {"tokenizer.chat_template": 5}, _tensors(16))
    with pytest.raises(InvalidArgumentError, match=r"the key 'tokenizer.chat_template' must be a text, not 5"):
        GgufCheckpoint(path).tokenizer_files()


def test_a_vocabulary_of_all_halves_takes_little_more_memory_than_its_merges(tmp_path: Path) -> None:
    tokens = LETTERS[:3] + ["".join(letters) for size in range(1, 8) for letters in product("abcd", repeat=size)]
    values = _values(16)
    values |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": np.zeros(len(tokens))}
    file = GgufFile(_written(tmp_path / "m.gguf", values, {}))
    with _at_most(24 << 20):  # 126,000 merges
        GgufTokenizer(file).files(len(tokens))


def test_digits_of_other_writings_are_part_of_a_name() -> None:
    name = "m-\u0660\u0660\u0660\u0660\u0661-of-\u0660\u0660\u0660\u0660\u0663.gguf"
    assert gguf_parts(name) == [name]
