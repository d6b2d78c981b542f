"""Statistics: of iterations, of the KV cache, of one request."""

from example_model import open_executor
from repoagent_llm import ExecutorConfig, OutputConfig, Request


def main() -> None:
    """Ask the same thing twice; the second time most of the prompt is found in the cache."""
    prompt = [number % 90 for number in range(70)]
    with open_executor(ExecutorConfig(iter_stats_max_iterations=100)) as executor:
        for _ in range(2):
            request = Request(prompt, 5, output_config=OutputConfig(return_perf_metrics=True))
            (response,) = executor.await_responses(executor.enqueue_request(request))
            metrics = response.result.request_perf_metrics
            assert metrics is not None
            times, cache = metrics.timing_metrics, metrics.kv_cache_metrics
            first = (times.first_token_time - times.arrival_time).total_seconds() * 1000
            print(f"first token after {first:.2f} ms, {cache.num_reused_blocks} blocks reused")
        for stats in executor.get_latest_iteration_stats()[-1:]:
            print(stats.to_json_str())


if __name__ == "__main__":
    main()
