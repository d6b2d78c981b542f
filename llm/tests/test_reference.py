"""The executor beside the decoder in plain NumPy: logits, greedy tokens, beams, and what is drawn how often."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from repoagent_llm import Executor, OutputConfig, Request, SamplingConfig
from repoagent_llm.builder import Form

from llm.tests.conftest import results_of
from llm.tests.reference import Array, Reference, Scaling, log_softmax

KINDS = ["llama", "mistral", "qwen2", "qwen3", "gpt2"]
# Longer than the window of the mistral shape, so that the window matters.
PROMPT = np.random.default_rng(11).integers(3, 90, 40).tolist()


@pytest.fixture
def runner_options() -> dict[str, Any]:
    return {"max_seq_len": 96}


def _new_tokens() -> OutputConfig:
    return OutputConfig(exclude_input_from_output=True, return_log_probs=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_computes_what_transformers_computed(
    kind: str, oracle: dict[str, Any], reference: Callable[[str], Reference]
) -> None:
    """Otherwise the comparisons below would prove nothing."""
    model, entry = reference(kind), oracle["models"][kind]
    for prompt, expected in zip(oracle["prompts"], entry["logits"], strict=True):
        np.testing.assert_allclose(model.logits(prompt)[[0, -1]], expected, atol=2e-4)
    assert [model.greedy(prompt, 8, oracle["end_id"]) for prompt in oracle["prompts"]] == [
        tokens[:8] for tokens in entry["greedy"]
    ]


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_greedy_tokens(
    kind: str, form: Form, start: Callable[..., Executor], reference: Callable[[str], Reference]
) -> None:
    model = reference(kind)
    output = _new_tokens()
    output.return_context_logits = output.return_generation_logits = True
    (result,) = results_of(start(kind, form), [Request(PROMPT, 12, output_config=output)])
    tokens = result.output_token_ids[0]
    assert tokens == model.greedy(PROMPT, 12)
    expected = model.logits(PROMPT + tokens[:-1])
    np.testing.assert_allclose(result.context_logits, expected[: len(PROMPT)], atol=2e-4)
    np.testing.assert_allclose(result.generation_logits[0], expected[len(PROMPT) - 1 :], atol=2e-4)
    chosen = log_softmax(expected[len(PROMPT) - 1 :])[range(12), tokens]
    np.testing.assert_allclose(result.log_probs[0], chosen, atol=2e-4)  # type: ignore[index]


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("form", [Form.GQA, Form.PAGED])
@pytest.mark.parametrize("kind", KINDS)
def test_beams_and_their_scores(
    kind: str, form: Form, width: int, start: Callable[..., Executor], reference: Callable[[str], Reference]
) -> None:
    expected = reference(kind).beams(PROMPT[:10], 6, [width])
    request = Request(PROMPT[:10], 6, sampling_config=SamplingConfig(width), output_config=_new_tokens())
    (result,) = results_of(start(kind, form), [request])
    assert result.output_token_ids == [text for text, _ in expected]
    assert result.cum_log_probs == pytest.approx([total for _, total in expected], abs=1e-3)


@pytest.mark.parametrize("widths", [[1, 3], [2, 4, 3], [4, 2, 1, 4], [3, 1]])
@pytest.mark.parametrize("form", [Form.GQA, Form.PAGED])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_beams_whose_number_changes_from_step_to_step(
    kind: str, form: Form, widths: list[int], start: Callable[..., Executor], reference: Callable[[str], Reference]
) -> None:
    model = reference(kind)
    requests = [
        Request(prompt, 6, sampling_config=SamplingConfig(beam_width_array=widths), output_config=_new_tokens())
        for prompt in (PROMPT[:10], PROMPT[20:33])
    ]
    for request, result in zip(requests, results_of(start(kind, form), requests), strict=True):
        expected = model.beams(request.input_token_ids, 6, widths)
        assert result.output_token_ids == [text for text, _ in expected]
        assert result.cum_log_probs == pytest.approx([total for _, total in expected], abs=1e-3)


def _cut(probabilities: Array, top_k: int, top_p: float) -> Array:
    """The distribution that is left of one: its ``top_k`` tokens, of these those that make up ``top_p``."""
    order = np.argsort(-probabilities)[: top_k or None]
    kept = probabilities[order] / probabilities[order].sum()
    count = int(np.searchsorted(kept.cumsum(), top_p)) + 1
    left = np.zeros_like(probabilities)
    left[order[:count]] = kept[:count] / kept[:count].sum()
    return left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 0.999999), (0.7, 0, 0.9), (1.5, 5, 1.0), (1.3, 8, 0.8)]
)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_tokens_are_drawn_as_often_as_they_should_be(
    kind: str,
    temperature: float,
    top_k: int,
    top_p: float,
    start: Callable[..., Executor],
    reference: Callable[[str], Reference],
) -> None:
    """400 seeds. The seeds are fixed, so the frequencies are too: the test cannot fail by chance."""
    log_probs = reference(kind).log_probs(PROMPT[:7], Scaling(temperature))
    expected = _cut(np.exp(log_probs), top_k, top_p)
    requests = [
        Request(
            PROMPT[:7],
            1,
            sampling_config=SamplingConfig(top_k=top_k, top_p=top_p, temperature=temperature, seed=seed),
            output_config=_new_tokens(),
        )
        for seed in range(400)
    ]
    results = results_of(start(kind), requests)
    drawn = [result.output_token_ids[0][0] for result in results]
    for token, result in zip(drawn, results, strict=True):
        assert result.log_probs is not None
        assert result.log_probs[0] == pytest.approx([log_probs[token]], abs=1e-3)
    assert expected[drawn].min() > 0
    counts = np.bincount(drawn, minlength=len(expected))
    spread = np.sqrt(400 * expected * (1 - expected)) + 1
    assert (np.abs(counts - 400 * expected) / spread).max() < 4.5
