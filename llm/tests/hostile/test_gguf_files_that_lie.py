"""Whatever is changed in a GGUF file: an error of ours that names the file, or a checkpoint; never much memory."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from repoagent_llm.builder.gguf_checkpoint import GgufCheckpoint

from repoagent.errors import RepoAgentError
from tests.extent import in_full

FOLDER = Path(__file__).parents[1] / "data" / "gguf"
NAMES = ["llama-q4_0", "llama-q8_0", "mixtral-q4_0", "qwen2-f16", "gemma3-f16", "phi3-f16"]
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
    tracemalloc.start()
    try:
        for number in range(in_full(500, otherwise=50)):
            path.unlink(missing_ok=True)
            path.write_bytes(_spoiled(files[number % len(files)], random))
            tracemalloc.reset_peak()
            _refused(path)
            assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
