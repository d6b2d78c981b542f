"""Beam search: the best texts, best first, with their scores."""

from example_model import open_executor
from repoagent_llm import ExecutorConfig, OutputConfig, Request, SamplingConfig


def main() -> None:
    """Look for the three best texts of eight tokens."""
    with open_executor(ExecutorConfig(max_beam_width=3)) as executor:
        request = Request(
            [5, 9, 17],
            8,
            end_id=2,
            sampling_config=SamplingConfig(beam_width=3, length_penalty=1.0, early_stopping=0),
            output_config=OutputConfig(return_log_probs=True, exclude_input_from_output=True),
        )
        (response,) = executor.await_responses(executor.enqueue_request(request))
        result = response.result
        for tokens, score in zip(result.output_token_ids, result.cum_log_probs or [], strict=True):
            print(f"{score:8.4f}  {tokens}")


if __name__ == "__main__":
    main()
