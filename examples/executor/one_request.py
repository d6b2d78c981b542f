"""A request and its answer."""

from example_model import open_executor
from repoagent_llm import ExecutorConfig, OutputConfig, Request


def main() -> None:
    """Continue three tokens by ten."""
    with open_executor(ExecutorConfig()) as executor:
        request = Request([5, 9, 17], max_tokens=10, output_config=OutputConfig(exclude_input_from_output=True))
        request_id = executor.enqueue_request(request)
        (response,) = executor.await_responses(request_id)
        result = response.result
        print(f"request {response.request_id}: {result.output_token_ids[0]} ({result.finish_reasons[0].name})")


if __name__ == "__main__":
    main()
