"""JSON forms of the statistics, and results as bytes."""

import json

import numpy as np
import pytest
from repoagent_llm import deserialize_result, serialize_result
from repoagent_llm.types.enums import FinishReason, RequestStage
from repoagent_llm.types.result import AdditionalOutput, Result
from repoagent_llm.types.stats import (
    InflightBatchingStats,
    IterationStats,
    KvCacheStats,
    RequestStats,
    RequestStatsPerIteration,
)

# fmt: off
ITERATION_KEYS = [
    "timestamp", "iter", "iterLatencyMS", "newActiveRequestsQueueLatencyMS", "numNewActiveRequests",
    "numActiveRequests", "numQueuedRequests", "numCompletedRequests", "maxNumActiveRequests",
    "maxBatchSizeStatic", "maxBatchSizeTunerRecommended", "maxBatchSizeRuntime", "maxNumTokensStatic",
    "maxNumTokensTunerRecommended", "maxNumTokensRuntime", "gpuMemUsage", "cpuMemUsage", "pinnedMemUsage",
    "kvCacheStats", "crossKvCacheStats", "staticBatchingStats", "inflightBatchingStats", "specDecodingStats",
]
# fmt: on


def test_iteration_statistics_have_their_keys_in_order_and_absent_parts_are_null() -> None:
    body = json.loads(IterationStats().to_json_str())
    assert list(body) == ITERATION_KEYS
    assert body["kvCacheStats"] is None
    assert body["specDecodingStats"] is None


def test_parts_of_iteration_statistics_are_objects() -> None:
    stats = IterationStats(
        iter=4, kv_cache_stats=KvCacheStats(max_num_blocks=9), inflight_batching_stats=InflightBatchingStats()
    )
    body = json.loads(stats.to_json_str())
    assert body["kvCacheStats"]["maxNumBlocks"] == 9
    assert body["kvCacheStats"]["cacheHitRate"] == 0.0
    assert body["inflightBatchingStats"]["avgNumDecodedTokensPerIter"] == 0.0


def test_request_statistics_name_their_stage() -> None:
    stats = RequestStats(id=5, stage=RequestStage.GENERATION_IN_PROGRESS)
    body = json.loads(stats.to_json_str())
    assert body["stage"] == "GENERATION_IN_PROGRESS"
    assert body["disServingStats"] is None
    assert body["kvCacheHitRatePerRequest"] == 0.0
    per_iteration = json.loads(RequestStatsPerIteration(2, [stats]).to_json_str())
    assert per_iteration == {"iter": 2, "requestStats": [body]}


def test_a_result_survives_serialization() -> None:
    result = Result(
        is_final=True,
        output_token_ids=[[1, 2], [3]],
        cum_log_probs=[-0.5, -1.5],
        context_logits=np.arange(6, dtype=np.float32).reshape(2, 3),
        finish_reasons=[FinishReason.END_ID, FinishReason.LENGTH],
        additional_outputs=[AdditionalOutput("hidden", np.eye(2))],
    )
    copy = deserialize_result(serialize_result(result))
    assert copy.output_token_ids == [[1, 2], [3]]
    assert copy.finish_reasons == [FinishReason.END_ID, FinishReason.LENGTH]
    assert np.array_equal(copy.context_logits, result.context_logits)
    assert copy.additional_outputs[0].name == "hidden"
    assert np.array_equal(copy.additional_outputs[0].output, np.eye(2))


def test_foreign_bytes_are_refused() -> None:
    good = serialize_result(Result(context_logits=np.zeros((2, 3), np.float32)))
    evaluated = good.replace(b'"<f4"', b'"<07"')
    assert evaluated != good
    for wrong in (b"", b"hello world", good[:-1], good + b"x", good[:8] + b"\xff" * 20, evaluated):
        with pytest.raises(RuntimeError, match="not a serialized Result"):
            deserialize_result(wrong)
