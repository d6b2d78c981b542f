"""Many requests at once, token by token. They share every iteration, and none waits for another's end."""

from example_model import open_executor
from repoagent_llm import ExecutorConfig, Request, SamplingConfig


def main() -> None:
    """Stream four requests with different settings."""
    with open_executor(ExecutorConfig()) as executor:
        requests = [
            Request([5, 9, 17], 6, streaming=True),
            Request([3, 3], 4, streaming=True, sampling_config=SamplingConfig(top_k=10, temperature=1.5, seed=1)),
            Request([60, 41, 8], 8, streaming=True, sampling_config=SamplingConfig(top_p=0.9, seed=2)),
            Request([7], 5, streaming=True, stop_words=[[47]], end_id=2),
        ]
        waiting = set(executor.enqueue_requests(requests))
        while waiting:
            for response in executor.await_responses():
                if response.has_error():
                    print(f"request {response.request_id}: {response.error_msg}")
                    waiting.discard(response.request_id)
                    continue
                result = response.result
                print(f"request {response.request_id}: +{result.output_token_ids[0]} {result.finish_reasons[0].name}")
                if result.is_final:
                    waiting.discard(response.request_id)


if __name__ == "__main__":
    main()
