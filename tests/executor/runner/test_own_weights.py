"""A session with weights of its own: the folder may go once it is loaded."""

import os
import shutil
from pathlib import Path

import pytest

from repoagent.errors import UnsafePathError
from repoagent.executor import Executor, ExecutorConfig, ModelType, Request, RunnerOptions
from repoagent.executor.builder import Form, Precision
from repoagent.executor.types.errors import DecoderError
from tests.executor.conftest import MakeFolder
from tests.executor.foreign import copy_folder


def open_executor(folder: Path, *, own_weights: bool = False) -> Executor:
    config = ExecutorConfig()
    vars(config)["runner_options"] = RunnerOptions(threads=1, spinning=False, own_weights=own_weights)
    return Executor(folder, ModelType.DECODER_ONLY, config)


def answer(executor: Executor) -> list[int]:
    (response,) = executor.await_responses(executor.enqueue_request(Request([3, 4, 5, 6], 24)))
    tokens: list[int] = response.result.output_token_ids[0]
    return tokens


@pytest.mark.parametrize(
    ("kind", "form", "precision"),
    [
        *(("llama", Form.GQA, precision) for precision in Precision),
        ("llama", Form.STD, Precision.FP32),
        ("gpt2", Form.STD, Precision.FP32),
    ],
)
def test_answers_do_not_depend_on_the_files(
    decoder_folder: MakeFolder, tmp_path: Path, kind: str, form: Form, precision: Precision
) -> None:
    folder = copy_folder(decoder_folder(kind, form, precision), tmp_path / "decoder")
    with open_executor(folder) as executor:
        wanted = answer(executor)
    with open_executor(folder, own_weights=True) as executor:
        for path in folder.iterdir():
            os.truncate(path, 0)  # what is still mapped ends the process with SIGBUS
        shutil.rmtree(folder)
        assert answer(executor) == wanted


def test_a_missing_file_of_weights_is_named(decoder_folder: MakeFolder, tmp_path: Path) -> None:
    folder = copy_folder(decoder_folder(), tmp_path / "decoder")
    (weights,) = folder.glob("*.data")
    weights.unlink()
    with pytest.raises(DecoderError, match=rf"the file of weights '{weights.name}' cannot be read"):
        open_executor(folder, own_weights=True)


def test_a_file_of_weights_outside_of_the_folder_is_not_read(decoder_folder: MakeFolder, tmp_path: Path) -> None:
    folder = copy_folder(decoder_folder(), tmp_path / "decoder")
    (weights,) = folder.glob("*.data")
    outside = tmp_path / "outside"
    weights.rename(outside)
    weights.symlink_to(outside)
    with pytest.raises(UnsafePathError, match=f"'{weights.name}' is a link that leaves the model's directory"):
        open_executor(folder, own_weights=True)
