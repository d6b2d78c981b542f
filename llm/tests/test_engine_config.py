"""Settings and fields that TensorRT-LLM's classes do not have."""

import pickle
from typing import Any

import pytest
from repoagent_llm import (
    Endings,
    EngineConfig,
    Executor,
    ExecutorConfig,
    KvCacheConfig,
    Request,
    RunnerOptions,
)
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.request import EngineRequest

from llm.tests.fake_runner import FakeRunner


def test_settings_are_the_same_as_attributes_and_by_their_class() -> None:
    plain = ExecutorConfig(max_batch_size=3)
    plain.answer_ngrams, plain.runner_options, plain.mine = 7, RunnerOptions(threads=1), "kept"
    typed = EngineConfig(max_batch_size=3, answer_ngrams=7, runner_options=RunnerOptions(threads=1))
    own = EngineConfig.of(plain)
    assert vars(own).pop("mine") == "kept"
    fields = [
        {name: value for name, value in vars(each).items() if name not in vars(ExecutorConfig())}
        for each in (own, typed)
    ]
    assert fields[0] == fields[1]
    assert pickle.loads(pickle.dumps(typed)).answer_ngrams == 7


def test_an_executor_has_a_copy_of_its_own() -> None:
    config = EngineConfig(kv_cache_config=KvCacheConfig(max_tokens=64))
    own = EngineConfig.of(config)
    config.kv_cache_config.max_tokens = 32
    assert own.kv_cache_config.max_tokens == 64


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, wrong) for name in ("answer_ngrams", "max_num_tokens_generating") for wrong in (0, True, "7", 1.5)),
        *(("token_gap_seconds", wrong) for wrong in (0, True, "1")),
        ("block_folder_bytes", -1),
        ("block_folder", 3),
        ("turns", 3),
        ("runner_options", {}),
        ("speculative_config", 3),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name: str, value: Any) -> None:
    config = ExecutorConfig()
    setattr(config, name, value)
    with pytest.raises((CheckError, TypeError), match=f"ExecutorConfig.{name} must be"):
        Executor.from_runner(FakeRunner(), config)
    with pytest.raises((CheckError, TypeError), match=f"EngineConfig.{name} must be"):
        EngineConfig(**{name: value})


def test_a_setting_that_is_none_is_the_default() -> None:
    config = ExecutorConfig()
    config.runner_options = config.turns = None
    own = EngineConfig.of(config)
    assert own.runner_options == RunnerOptions()
    assert own.turns is None


def test_a_request_has_the_same_as_attributes_and_by_its_class() -> None:
    request = Request([3], 1)
    vars(request).update(top_log_probs=2, endings=Endings([4]))
    own = EngineRequest.of(request)
    assert (own.top_log_probs, own.prompt_log_probs, own.endings.end_ids) == (2, None, [4])
    assert EngineRequest.of(request, top_log_probs=5).top_log_probs == 5
    assert not EngineRequest.of(Request([3], 1)).return_cached_tokens
    with pytest.raises(CheckError, match=r"Request\.prompt_log_probs must be a whole number from 0 on, not -1"):
        EngineRequest.of(request, prompt_log_probs=-1)
