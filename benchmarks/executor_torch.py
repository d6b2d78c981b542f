"""transformers' generate on torch, and CTranslate2, which converts the checkpoint through transformers."""

import json
from pathlib import Path
from typing import Any

from executor_ours import THREADS
from executor_trace import Run, Serve, by_batches


def transformers_generate(checkpoint: Path) -> Serve:
    """transformers' generate: one static batch."""
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    class Streamer:
        """Called with the prompts, then with every step's tokens."""

        def __init__(self, run: Run, numbers: list[int]) -> None:
            self.run, self.numbers, self.begun = run, numbers, False

        def put(self, tokens: Any) -> None:
            if self.begun:
                for number, token in zip(self.numbers, tokens.reshape(-1).tolist(), strict=True):
                    self.run.note(number, token)
            self.begun = True

        def end(self) -> None:
            pass

    def generate(run: Run, numbers: list[int], prompts: list[list[int]], new_tokens: int) -> None:
        ids = torch.tensor(prompts)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=-1,
            streamer=Streamer(run, numbers),
        )

    return by_batches(generate)


def ctranslate2_generator(checkpoint: Path, kind: str = "float32") -> Serve:
    """CTranslate2: its own batching. ``kind`` of weights: float32, int8."""
    import ctranslate2
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    words = Tokenizer(models.WordLevel({str(token): token for token in range(size)}, unk_token="0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="1", eos_token="2", unk_token="0")
    tokenizer.save_pretrained(checkpoint)
    target = checkpoint.parent / f"ctranslate2-{kind}"
    if not target.exists():
        ctranslate2.converters.TransformersConverter(str(checkpoint)).convert(str(target), quantization=kind)
    generator = ctranslate2.Generator(str(target), intra_threads=THREADS, inter_threads=1, compute_type=kind)

    def generate(run: Run, numbers: list[int], prompts: list[list[int]], new_tokens: int) -> None:
        def note(step: Any) -> bool:
            run.note(numbers[step.batch_id], step.token_id)
            return False

        generator.generate_batch(
            [[str(token) for token in prompt] for prompt in prompts],
            max_length=new_tokens,
            min_length=new_tokens,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=[size - 1],
            callback=note,
        )

    return by_batches(generate)
