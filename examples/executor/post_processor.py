"""A logits post-processor: a function of the caller between the model and the choice of a token."""

from typing import Any

from example_model import open_executor
from repoagent_llm import ExecutorConfig, LogitsPostProcessorConfig, OutputConfig, Request


def only_even(_request_id: int, logits: Any, _ids: list[list[int]], _stream: None, _client_id: int | None) -> None:
    """Allow even tokens only. ``logits`` [1, beams, vocabulary] is changed in place; nothing is returned."""
    logits[..., 1::2] = float("-inf")


def main() -> None:
    """Use the processor by its name and as a function."""
    config = ExecutorConfig(logits_post_processor_config=LogitsPostProcessorConfig({"even": only_even}))
    with open_executor(config) as executor:
        output = OutputConfig(exclude_input_from_output=True)
        requests = [
            Request([5, 9, 17], 8, output_config=output),
            Request([5, 9, 17], 8, output_config=output, logits_post_processor_name="even"),
            Request([5, 9, 17], 8, output_config=output, logits_post_processor=only_even),
        ]
        for (response,) in executor.await_responses(executor.enqueue_requests(requests)):
            print(response.result.output_token_ids[0])


if __name__ == "__main__":
    main()
