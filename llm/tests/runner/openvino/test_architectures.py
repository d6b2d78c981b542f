"""Every architecture on pages beside what transformers computed; see data/make_architectures.py."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm import Executor, ExecutorConfig, OutputConfig, Request, Result, SamplingConfig
from repoagent_llm.builder import build
from repoagent_llm.runner.decoder_spec import read_spec
from repoagent_llm.runner.openvino.model import open_paged
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import Logits, Segment
from repoagent_llm.runner.runner_options import RunnerOptions

from llm.tests.conftest import need_openvino
from llm.tests.tiny_checkpoints import TEXT, tiny_checkpoint

RECORDED: dict[str, Any] = json.loads(Path(__file__).parents[2].joinpath("data", "architectures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = RECORDED["variants"]
TOGETHER = [name for name, entry in VARIANTS.items() if "greedy" in entry]
Open = Callable[..., PagedRunner]


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """``variant(name, precision)``: a decoder folder of a tiny checkpoint."""
    root = tmp_path_factory.mktemp("variants")

    def make(name: str, precision: str) -> Path:
        source, folder = root / name, root / f"{name}-{precision}"
        if not source.exists():
            tiny_checkpoint(source, VARIANTS[name])
        return folder if folder.exists() else build(source, folder, form="paged", precision=precision, block=16)

    return make


@pytest.fixture
def open_variant(variant: Callable[[str, str], Path]) -> Iterator[Open]:
    """``open_variant(name, precision, **options)``: a runner over a tiny checkpoint, closed at the end."""
    need_openvino()
    opened = []

    def make(name: str, precision: str = "fp32", **options: Any) -> PagedRunner:
        folder = variant(name, precision)
        settings = {"threads": 1, "max_sequences": 8, "max_seq_len": VARIANTS[name]["length"], **options}
        opened.append(open_paged(read_spec(folder), RunnerOptions(**settings)))
        return opened[-1]

    yield make
    for runner in opened:
        runner.close()


def _logits(runner: PagedRunner, *pieces: list[int]) -> npt.NDArray[np.float32]:
    seq = runner.open()
    assert seq is not None
    found = [runner.step([Segment(seq, np.array(piece, np.int32), Logits.ALL)]).logits.copy() for piece in pieces]
    runner.free(seq)
    return np.concatenate(found)


@pytest.mark.parametrize("name", list(VARIANTS))
def test_logits_are_those_of_transformers_and_pieces_those_of_the_whole(name: str, open_variant: Open) -> None:
    runner, entry = open_variant(name), VARIANTS[name]
    text = TEXT[: entry["length"]]
    whole = _logits(runner, text)
    np.testing.assert_allclose(whole[entry["rows"]], entry["logits"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(_logits(runner, text[:1], text[1:20], text[20:21], text[21:]), whole, rtol=0, atol=1e-5)
    assert runner.pool.busy == 0


def _ask(executor: Executor, requests: list[Request]) -> list[Result]:
    ids = executor.enqueue_requests(requests)
    return [responses[0].result for responses in executor.await_responses(ids, timedelta(seconds=120))]


@pytest.mark.parametrize("name", TOGETHER)
def test_texts_beams_and_their_scores_are_those_of_transformers(name: str, open_variant: Open) -> None:
    runner, entry = open_variant(name), VARIANTS[name]
    output = OutputConfig(exclude_input_from_output=True, return_log_probs=True)
    prompt, beams = TEXT[: RECORDED["prompt"]], entry["beams"]
    width, length = len(beams["tokens"]), len(beams["tokens"][0])
    requests = [
        Request(prompt, len(entry["greedy"]["tokens"]), output_config=output),
        Request(prompt, length, sampling_config=SamplingConfig(width, length_penalty=0.0), output_config=output),
    ]
    with Executor.from_runner(runner, ExecutorConfig(max_beam_width=width)) as executor:
        together = _ask(executor, requests)
        alone = [_ask(executor, [request])[0] for request in requests]
    assert runner.pool.busy == 0
    for greedy, beam in (together, alone):
        assert greedy.output_token_ids == [entry["greedy"]["tokens"]]
        assert greedy.log_probs is not None
        assert beam.cum_log_probs is not None
        np.testing.assert_allclose(greedy.log_probs, [entry["greedy"]["log_probs"]], rtol=0, atol=5e-5)
        assert beam.output_token_ids == beams["tokens"]
        np.testing.assert_allclose(beam.cum_log_probs, beams["scores"], rtol=0, atol=2e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("name", ["qwen2_moe", "gpt_oss"])
def test_a_text_does_not_depend_on_the_experts_of_those_beside_it(
    name: str, precision: str, open_variant: Open
) -> None:
    runner = open_variant(name, precision)
    texts = [np.roll(TEXT[:40], number).astype(np.int32) for number in range(6)]
    seqs = [seq for seq in (runner.open() for _ in texts) if seq is not None]
    found: list[list[npt.NDArray[np.float32]]] = [[] for _ in texts]
    for start, stop in ((0, 33), (33, 34), (34, 40)):
        result = runner.step([Segment(s, t[start:stop], Logits.ALL) for s, t in zip(seqs, texts, strict=True)])
        for mine, rows in zip(found, result.rows, strict=True):
            mine.append(result.logits[rows].copy())
    for seq in seqs:
        runner.free(seq)
    for text, mine in zip(texts, found, strict=True):
        np.testing.assert_allclose(np.concatenate(mine), _logits(runner, text.tolist()), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("precision", "most"), [("bf16", 0.08), ("int8", 0.08), ("int4", 0.6)])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "gemma3"])
def test_rounded_weights_stay_close(name: str, precision: str, most: float, open_variant: Open) -> None:
    text = TEXT[:60]
    exact, rounded = (_logits(open_variant(name, kind), text) for kind in ("fp32", precision))
    assert 0 < np.abs(rounded - exact).mean() / exact.std() < most


def test_a_model_of_windows_gives_blocks_back_and_the_text_stays_right(open_variant: Open) -> None:
    runner = open_variant("mixtral", max_sequences=2)
    seq, text = runner.open(), TEXT[:80]
    assert seq is not None
    whole = _logits(open_variant("mixtral"), text)
    for number, token in enumerate(text):
        found = runner.step([Segment(seq, np.array([token], np.int32))]).logits
        np.testing.assert_allclose(found[0], whole[number], rtol=0, atol=1e-5)
    assert len(runner._sequences[seq].table) == runner.pool.busy == 1  # of three
    runner.free(seq)
    assert runner.pool.busy == 0
