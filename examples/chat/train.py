"""Trains the chat model of this example: a Llama of 2 million parameters that knows one village.

Needs torch (a build for CPUs will do) and transformers, in an environment of their own. The result is shipped in
``repository/elmbrook/1``, so nobody has to run this::

    python -m venv .venvs/train
    .venvs/train/bin/pip install torch transformers
    .venvs/train/bin/python examples/chat/train.py

It takes some minutes on two cores. ``judge.py`` then asks the model questions that it has not seen.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import torch
from elmbrook.conversations import Turn, practice_text, training_text
from elmbrook.encoding import BEGIN, END, NOTHING, SKIP, SPECIAL, TEMPLATE, VOCABULARY, encoded, tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

CHECKPOINT: Final = Path(__file__).parent / "repository" / "elmbrook" / "1"
Text = Callable[[random.Random], list[Turn]]
SYSTEM: Final = ("You are the guide of Elmbrook.", "You are a helpful assistant.", "Answer in short sentences.")
SEED: Final = 16
STAGES: Final = ((training_text, 1000, 1.0), (practice_text, 500, 0.5))
"""Which text, how many batches, and the share of the rates."""
BATCH_TOKENS, POOL = 2048, 2048
RATE, MATRIX_RATE = 3e-3, 0.02


def batches(words: Any, text_of: Text, draw: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Texts of about one length together, so that little is filled up."""
    while True:
        pool = [encoded(words, text_of(draw), draw.choice(SYSTEM) if draw.random() < 0.15 else "") for _ in range(POOL)]
        pool.sort(key=lambda text: len(text[0]))
        groups: list[list[tuple[list[int], list[int]]]] = [[]]
        for text in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(text[0]) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(text)
        draw.shuffle(groups)
        for group in groups:
            length = max(len(tokens) for tokens, _ in group)
            tokens = torch.full((len(group), length), NOTHING)
            wanted = torch.full((len(group), length), SKIP)
            for row, (have, want) in enumerate(group):
                tokens[row, : len(have)] = torch.tensor(have)
                wanted[row, : len(want)] = torch.tensor(want)
            yield tokens, wanted


def untrained() -> LlamaForCausalLM:
    """The model before it has seen anything."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=BEGIN,
            eos_token_id=END,
            pad_token_id=NOTHING,
        )
    )


def optimizers(model: LlamaForCausalLM, share: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, which learns facts in fewer steps than AdamW; that for the embedding and the norms."""
    inner = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(inner, lr=share * MATRIX_RATE, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=share * RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(model: LlamaForCausalLM, words: Any, text_of: Text, steps: int, share: float) -> None:
    """Show ``steps`` batches to ``model``, at this share of the rates."""
    model.train()
    used = optimizers(model, share)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(one, lambda step: min((step + 1) / 30, 1.05 - step / steps)) for one in used
    ]
    start, seen, losses = time.monotonic(), 0, list[float]()
    for step, (tokens, wanted) in zip(range(steps), batches(words, text_of, random.Random(SEED + steps)), strict=False):
        learned = wanted != SKIP
        logits = model.lm_head(model.model(tokens).last_hidden_state[learned])
        loss = cross_entropy(logits, wanted[learned])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one in (*used, *schedules):
            one.step()
        seen, losses = seen + tokens.numel(), [*losses[-49:], loss.item()]
        if step % 50 == 49:
            mean = sum(losses) / len(losses)
            print(
                f"step {step + 1:5}  loss {mean:.3f}  tokens {seen:9,}  {time.monotonic() - start:4.0f} s", flush=True
            )


def write(folder: Path, words: Any, model: LlamaForCausalLM) -> None:
    """The files of a checkpoint, as published ones have them."""
    folder.mkdir(parents=True, exist_ok=True)
    deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "eos_token": SPECIAL[END],
        "pad_token": SPECIAL[NOTHING],
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    sampling = {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
        "max_new_tokens": 256,
        "bos_token_id": BEGIN,
        "eos_token_id": [END, NOTHING],
        "pad_token_id": NOTHING,
    }
    for name, values in (("tokenizer_config.json", settings), ("generation_config.json", sampling)):
        (folder / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def main(folder: Path) -> None:
    """Write the checkpoint into ``folder``."""
    torch.manual_seed(SEED)
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))
    words, model = tokenizer(), untrained()
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters", flush=True)
    for text_of, steps, share in STAGES:
        print(text_of.__name__, flush=True)
        train(model, words, text_of, steps, share)
        write(folder, words, model)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKPOINT)
