"""Folders as others write them give the logits that their files describe, or are refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm import Executor, ExecutorConfig, ModelType
from repoagent_llm.builder import Form
from repoagent_llm.runner.ort_forms import OrtGqaRunner, OrtStdRunner
from repoagent_llm.runner.ort_mixed import OrtMixedRunner
from repoagent_llm.runner.protocol import Logits, Segment
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_errors import DecoderError, UnsupportedFeatureError

from llm.tests.foreign import cap_logits, change_config, change_graph, copy_folder, set_windows

GENAI = Path(__file__).parents[1] / "data" / "genai"
#: Longer than the window of 8 that the Mistral of the tests has.
PROMPT = np.random.default_rng(3).integers(3, 60, 41).astype(np.int32)
Folder = Callable[..., Path]


def logits(folder: Path, kind: type[OrtGqaRunner] = OrtGqaRunner, pieces: int = 1) -> npt.NDArray[np.float32]:
    """Those of each token of the prompt, read in so many pieces."""
    runner = kind(folder, RunnerOptions(threads=1, spinning=False, max_sequences=2, max_seq_len=64))
    seq = runner.open()
    assert seq is not None
    found = [runner.step([Segment(seq, piece, Logits.ALL)]).logits.copy() for piece in np.array_split(PROMPT, pieces)]
    runner.close()
    return np.concatenate(found)


@pytest.fixture
def windowless(tmp_path: Path, decoder_folder: Folder) -> Path:
    """The Mistral of the tests, its window of 8 tokens in the configuration instead of the graph."""
    folder = copy_folder(decoder_folder("mistral"), tmp_path / "windowless")
    change_graph(folder, lambda graph: set_windows(graph, -1, range(2)))
    return change_config(folder, lambda model: model["decoder"].update(sliding_window={"window_size": 8}))


@pytest.mark.parametrize("kind", [OrtGqaRunner, OrtMixedRunner])
@pytest.mark.parametrize("pieces", [1, 3, 41])
def test_a_sliding_window_in_the_configuration_is_applied(
    windowless: Path, decoder_folder: Folder, reference: Callable[[str], Any], kind: type[OrtGqaRunner], pieces: int
) -> None:
    found = logits(windowless, kind, pieces)
    np.testing.assert_allclose(found, reference("mistral").logits(PROMPT.tolist()), atol=2e-4)
    np.testing.assert_allclose(found, logits(decoder_folder("mistral"), kind, pieces), atol=1e-5)


def test_a_window_of_some_layers_is_applied_to_these_alone(windowless: Path, tmp_path: Path) -> None:
    known = change_graph(copy_folder(windowless, tmp_path / "known"), lambda graph: set_windows(graph, 8, [1]))
    change_config(known, lambda model: model["decoder"].pop("sliding_window"))
    whole = logits(windowless)
    change_config(windowless, lambda model: model["decoder"]["sliding_window"].update(layers=[1]))
    np.testing.assert_array_equal(logits(windowless), logits(known))
    assert np.abs(logits(windowless) - whole)[8:].max() > 0.01


def test_a_window_that_graph_and_configuration_agree_on_changes_nothing(tmp_path: Path, decoder_folder: Folder) -> None:
    folder = copy_folder(decoder_folder("mistral"), tmp_path / "folder")
    before = logits(folder)
    values = {"window_size": 8, "slide_key_value_cache": False, "slide_inputs": False, "layers": [0, 1]}
    change_config(folder, lambda model: model["decoder"].update(sliding_window=values))
    np.testing.assert_array_equal(logits(folder), before)


@pytest.mark.parametrize("size", [None, 0, -1])
def test_no_window_is_no_window(windowless: Path, size: int | None) -> None:
    whole = logits(windowless)
    change_config(windowless, lambda model: model["decoder"]["sliding_window"].update(window_size=size))
    assert np.abs(logits(windowless) - whole)[8:].max() > 0.01


def test_windows_that_contradict_each_other_are_refused(tmp_path: Path, decoder_folder: Folder) -> None:
    folder = copy_folder(decoder_folder("mistral"), tmp_path / "folder")
    change_config(folder, lambda model: model["decoder"].update(sliding_window={"window_size": 9}))
    with pytest.raises(DecoderError, match=r"attends to 8 tokens, but genai_config\.json has .*window_size 9"):
        OrtGqaRunner(folder)


def test_a_window_that_a_graph_cannot_have_is_refused_by_name(tmp_path: Path, decoder_folder: Folder) -> None:
    folder = copy_folder(decoder_folder("mistral", Form.STD), tmp_path / "folder")
    change_config(folder, lambda model: model["decoder"].update(sliding_window={"window_size": 8}))
    with pytest.raises(UnsupportedFeatureError, match=r"model\.decoder\.sliding_window is not supported"):
        OrtStdRunner(folder)


def test_a_folder_that_caps_its_logits_gives_capped_ones(tmp_path: Path) -> None:
    """Gemma-2's folders do. The builder's notes on shapes stop being true where rows are chosen before the head."""
    plain = logits(GENAI)
    folder = change_graph(copy_folder(GENAI, tmp_path / "capped"), lambda graph: cap_logits(graph, 0.5))
    np.testing.assert_allclose(logits(folder), 0.5 * np.tanh(plain / 0.5), atol=1e-5)
    with Executor(folder, ModelType.DECODER_ONLY, ExecutorConfig()) as executor:
        assert executor.can_enqueue_requests()
