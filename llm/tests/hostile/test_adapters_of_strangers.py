"""An adapter that the operator has put beside a model is what its number means, whatever clients send."""

from pathlib import Path

import numpy as np
import pytest

from llm.tests.backend.conftest import Asker, WriteModel, core, decoder, write_llm  # noqa: F401
from repoagent.errors import InvalidArgumentError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.tensor import Array

_CONFIG = np.array([[1, 0, 2]], np.int32)
_ROOM = 6000
"""For two adapters."""


def _weights(seed: int) -> Array:
    """Queries of layer 0, rank 2."""
    return np.random.default_rng(seed).standard_normal((1, 2 * 64 + 64 * 2)).astype(np.float16)


@pytest.fixture
def adapted(core: ServingCore, write_llm: WriteModel) -> Asker:  # noqa: F811
    """A model whose folder has adapter 7."""
    place: Path = write_llm(lora="true", lora_prefetch_dir="adapters", lora_cache_host_memory_bytes=str(_ROOM))
    folder = place / "1" / "adapters" / "7"
    folder.mkdir(parents=True)
    np.save(folder / "model.lora_weights.npy", _weights(1))
    np.save(folder / "model.lora_config.npy", _CONFIG)
    core.load("m")
    return Asker(core)


def test_no_number_of_others_makes_the_server_forget_it(adapted: Asker) -> None:
    wanted = adapted.ask("hello", lora_task_id=7).texts()
    for number in range(100, 106):
        adapted.ask("hello", lora_task_id=number, lora_weights=_weights(number), lora_config=_CONFIG).one()
    with pytest.raises(InvalidArgumentError, match="LoRA task 100 not found"):
        adapted.ask("hello", lora_task_id=100).one()
    assert adapted.ask("hello", lora_task_id=7, lora_weights=_weights(5), lora_config=_CONFIG).texts() == wanted
    assert adapted.ask("hello", lora_task_id=7).texts() == wanted
