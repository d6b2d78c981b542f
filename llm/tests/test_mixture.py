"""Requests of every kind at once on a real runner: each says what it says alone."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    KvCacheConfig,
    PromptTuningConfig,
    Request,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.builder import Form
from repoagent_llm.runner.ort import OrtRunner

from llm.tests.lora_sample import SampleAdapter
from llm.tests.reference import Reference

VOCABULARY = 96
TABLE = np.random.default_rng(0).standard_normal((4, 64), np.float32) * np.float32(0.5)
CONFIGS = {
    "together": ExecutorConfig(max_beam_width=2),
    "chunked": ExecutorConfig(max_beam_width=2, enable_chunked_context=True, max_num_tokens=17),
    "paused": ExecutorConfig(
        max_beam_width=2,
        max_num_tokens=300,
        scheduler_config=SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
        kv_cache_config=KvCacheConfig(max_tokens=320),
    ),
}


def _request(chance: random.Random, adapters: list[SampleAdapter]) -> Request:
    """Perhaps with a shared prefix, an adapter, a prompt table; beams, drawn tokens, drafts or none of these."""
    prompt = [chance.randrange(3, VOCABULARY) for _ in range(chance.randint(1, 60))]
    if chance.random() < 0.4:
        prompt = [7] * 36 + prompt[:20]
    options: dict[str, Any] = {}
    if chance.random() < 0.5:
        number = chance.randrange(len(adapters))
        options["lora_config"] = adapters[number].config(number)
    if chance.random() < 0.3:
        prompt[chance.randrange(len(prompt))] = VOCABULARY + chance.randrange(len(TABLE))
        extra = [int(token >= VOCABULARY) for token in prompt]
        options["prompt_tuning_config"] = PromptTuningConfig(TABLE, extra)
    kind = chance.random()
    if kind < 0.3:
        options["sampling_config"] = SamplingConfig(beam_width_array=chance.choice([[1, 2], [2, 1], [2, 2]]))
    elif kind < 0.5:
        options["sampling_config"] = SamplingConfig(top_k=4, seed=chance.randrange(9), repetition_penalty=1.2)
    elif kind < 0.6:
        options["external_draft_tokens_config"] = ExternalDraftTokensConfig([5, 6])
    return Request(prompt, chance.randint(1, 16), end_id=2, **options)


@pytest.mark.slow
@pytest.mark.parametrize("form", list(Form))
def test_a_mixture_of_everything(
    form: Form, open_runner: Callable[..., OrtRunner], reference: Callable[[str], Reference]
) -> None:
    chance, model = random.Random(1), reference("llama")
    adapters = [SampleAdapter(model, seed, rank=1 + seed) for seed in range(3)]
    requests = [_request(chance, adapters) for _ in range(24)]

    def texts(config: ExecutorConfig, groups: list[list[Request]]) -> list[list[list[int]]]:
        found = []
        runner = open_runner("llama", form, lora=True, max_sequences=8, max_seq_len=100)
        with Executor.from_runner(runner, config) as executor:
            for group in groups:
                answers = executor.await_responses(executor.enqueue_requests(group), timedelta(seconds=60))
                found += [responses[0].result.output_token_ids for responses in answers]
            assert executor._assembly.budget.used == 0
        return found

    no_reuse = ExecutorConfig(max_beam_width=2, kv_cache_config=KvCacheConfig(enable_block_reuse=False))
    alone = texts(no_reuse, [[request] for request in requests])
    for name, config in CONFIGS.items():
        assert texts(config, [requests]) == alone, name
