"""The model of the examples: a folder given on the command line, or a tiny one with random weights."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repoagent_llm import Executor, ExecutorConfig, ModelType
from repoagent_llm.builder import build
from synthetic import synthetic_checkpoint


@contextmanager
def model_folder(vocab_size: int = 96) -> Iterator[Path]:
    """The model's folder."""
    with tempfile.TemporaryDirectory() as place:
        if len(sys.argv) > 1:
            yield Path(sys.argv[1])
        else:
            checkpoint = synthetic_checkpoint(Path(place) / "checkpoint", vocab_size=vocab_size)
            yield build(checkpoint, Path(place) / "decoder")


@contextmanager
def open_executor(config: ExecutorConfig, vocab_size: int = 96) -> Iterator[Executor]:
    """An executor over the model."""
    with model_folder(vocab_size) as folder, Executor(folder, ModelType.DECODER_ONLY, config) as executor:
        yield executor
