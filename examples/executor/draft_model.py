"""A draft model: a small one guesses, the large one checks all guesses in one step. The text stays the same.

    python draft_model.py path/to/folder path/to/small/folder

Without folders the tiny model drafts for itself, so that every guess is right.
"""

import sys
from pathlib import Path

from example_model import model_folder
from repoagent_llm import DraftTargetDecodingConfig, Executor, ExecutorConfig, ModelType, OutputConfig, Request


def ask(folder: Path, config: ExecutorConfig) -> None:
    """Print how many steps a request took, and its text."""
    with Executor(folder, ModelType.DECODER_ONLY, config) as executor:
        output = OutputConfig(exclude_input_from_output=True, return_perf_metrics=True)
        (response,) = executor.await_responses(executor.enqueue_request(Request([5, 9, 17], 21, output_config=output)))
        result = response.result
        assert result.request_perf_metrics is not None
        drafts = result.request_perf_metrics.speculative_decoding
        right = f"{drafts.total_accepted_draft_tokens} of {drafts.total_draft_tokens} drafts right"
        print(f"{result.decoding_iter} steps, {right}: {result.output_token_ids[0]}")


def main() -> None:
    """Ask the model alone, then with drafts of four tokens at most."""
    with model_folder() as folder:
        ask(folder, ExecutorConfig())
        config = ExecutorConfig()
        config.speculative_config = DraftTargetDecodingConfig(
            max_draft_len=4, speculative_model_dir=sys.argv[2] if len(sys.argv) > 2 else folder
        )
        ask(folder, config)


if __name__ == "__main__":
    main()
