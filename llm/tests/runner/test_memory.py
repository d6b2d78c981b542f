"""A cache that does not fit is refused before anything is served, with what to lower."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from repoagent_llm import Executor, ExecutorConfig, KvCacheConfig, ModelType, RunnerOptions
from repoagent_llm.builder import Form
from repoagent_llm.runner.memory import machine_bytes
from repoagent_llm.types.executor_errors import CheckError

from llm.tests.foreign import change_config, copy_folder
from repoagent.errors import InvalidArgumentError

Folder = Callable[..., Path]
BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 4  # keys and values, layers, KV heads, head size, float32

_LIMITED = """
import resource, sys
from repoagent_llm import Executor, ExecutorConfig, ModelType, RunnerOptions
config = ExecutorConfig(max_batch_size=64)
vars(config)["runner_options"] = RunnerOptions(threads=1, max_seq_len=65536)
pages = int(open("/proc/self/statm").read().split()[0])
space = pages * resource.getpagesize() + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (space, space))
try:
    Executor(sys.argv[1], ModelType.DECODER_ONLY, config)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def endless(tmp_path: Path, decoder_folder: Folder) -> Path:
    """A decoder whose context is as long as a number can say."""
    return change_config(
        copy_folder(decoder_folder("llama"), tmp_path / "endless"), lambda model: model.update(context_length=2**31 - 1)
    )


@pytest.mark.parametrize("max_tokens", [None, 65536])
def test_a_cache_larger_than_the_machine_names_the_settings_and_the_bytes(
    endless: Path, max_tokens: int | None
) -> None:
    config = ExecutorConfig(
        max_batch_size=2**14, max_beam_width=2, kv_cache_config=KvCacheConfig(max_tokens=max_tokens)
    )
    vars(config)["runner_options"] = RunnerOptions(threads=1, max_seq_len=2**20)
    with pytest.raises(CheckError) as caught:
        Executor(endless, ModelType.DECODER_ONLY, config)
    text = str(caught.value)
    for number in (2**15, 2**20, BYTES_PER_TOKEN, 2**15 * (2**20 + 1) * BYTES_PER_TOKEN, machine_bytes()):
        assert f" {number}" in text
    assert all(name in text for name in ("max_batch_size", "max_beam_width", "max_seq_len"))
    assert isinstance(caught.value, InvalidArgumentError)


@pytest.mark.slow
def test_a_cache_that_cannot_be_reserved_is_no_bare_memory_error(endless: Path) -> None:
    """This process may have less than the machine has."""
    need = 64 * 65537 * BYTES_PER_TOKEN
    command = [sys.executable, "-c", _LIMITED, str(endless), str(need // 2)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert found.startswith("CheckError the KV cache does not fit: 64 sequences of 65536 tokens"), found
    assert f"need {need} bytes" in found


def test_forms_are_alike(tmp_path: Path, decoder_folder: Folder) -> None:
    folder = copy_folder(decoder_folder("llama", Form.STD), tmp_path / "folder")
    change_config(folder, lambda model: model.update(context_length=2**31 - 1))
    config = ExecutorConfig(max_batch_size=2**14)
    vars(config)["runner_options"] = RunnerOptions(threads=1, max_seq_len=2**31 - 1)
    with pytest.raises(CheckError, match="the KV cache does not fit: 16384 sequences of 2147483647 tokens"):
        Executor(folder, ModelType.DECODER_ONLY, config)
