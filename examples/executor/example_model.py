"""The model of the examples: a folder given on the command line, or a tiny one with random weights."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repoagent.executor import Executor, ExecutorConfig, ModelType
from repoagent.executor.builder import build
from repoagent.executor.builder.synthetic import synthetic_checkpoint


@contextmanager
def open_executor(config: ExecutorConfig, vocab_size: int = 96) -> Iterator[Executor]:
    """An executor over the model."""
    with tempfile.TemporaryDirectory() as place:
        if len(sys.argv) > 1:
            folder = Path(sys.argv[1])
        else:
            checkpoint = synthetic_checkpoint(Path(place) / "checkpoint", vocab_size=vocab_size)
            folder = build(checkpoint, Path(place) / "decoder")
        with Executor(folder, ModelType.DECODER_ONLY, config) as executor:
            yield executor
