"""LoRA: requests with different adapters, and with none, in one batch."""

import tempfile
from pathlib import Path

import numpy as np
from repoagent_llm import Executor, ExecutorConfig, LoraConfig, ModelType, OutputConfig, Request
from repoagent_llm.builder import build
from synthetic import synthetic_checkpoint

HIDDEN, LAYERS, RANK = 64, 2, 4
ATTENTION_OUT = 4  # the number that TensorRT-LLM gives the linear layer after attention


def random_adapter(task_id: int) -> LoraConfig:
    """An adapter with random weights; ``repoagent_llm.lora.read_peft`` reads one that PEFT has saved."""
    source = np.random.default_rng(task_id)
    # Of each layer [rank, inputs] and [outputs, rank], flat, one after the other.
    weights = source.standard_normal((LAYERS, RANK * (HIDDEN + HIDDEN)), np.float32) * np.float32(0.3)
    config = np.array([(ATTENTION_OUT, layer, RANK) for layer in range(LAYERS)], np.int32)
    return LoraConfig(task_id, weights, config)


def main() -> None:
    """Send each adapter once; later requests name its task only."""
    with tempfile.TemporaryDirectory() as place:
        checkpoint = synthetic_checkpoint(Path(place) / "checkpoint")
        folder = build(checkpoint, Path(place) / "decoder", lora=True)
        adapters = [None, random_adapter(1), random_adapter(2), LoraConfig(1)]
        output = OutputConfig(exclude_input_from_output=True)
        requests = [Request([5, 9, 17], 8, lora_config=lora, output_config=output) for lora in adapters]
        with Executor(folder, ModelType.DECODER_ONLY, ExecutorConfig()) as executor:
            ids = executor.enqueue_requests(requests)
            for lora, (response,) in zip(adapters, executor.await_responses(ids), strict=True):
                name = "no adapter" if lora is None else f"task {lora.task_id}"
                print(f"{name}: {response.result.output_token_ids[0]}")


if __name__ == "__main__":
    main()
