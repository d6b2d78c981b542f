"""Trains the model of this example: a small Llama that adds two numbers and shows its steps.

Needs torch and transformers. The results are shipped in ``checkpoint``, so nobody has to run this::

    python examples/llm/train.py

It takes some minutes on one core, and ends with the share of sums that it gets right of those it has not seen.
"""

import random
import sys
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

CHECKPOINT = Path(__file__).parent / "checkpoint"
SPECIAL = ["<unk>", "<s>", "</s>"]
LETTERS = [chr(code) for code in range(ord(" "), ord("~") + 1)]
BEGIN, END, LENGTH = 1, 2, 48
STEPS, BATCH = 5000, 64


def worked(left: int, right: int) -> tuple[str, str]:
    """(prompt, answer) of a sum: ``47+85:`` and `` 7+5=12, 4+8+1=13. 132``."""
    digits = [number[::-1] for number in (str(left), str(right))]
    steps, carry = [], 0
    for place in range(max(map(len, digits))):
        terms = [int(number[place]) for number in digits if place < len(number)] + [1] * carry
        steps.append(f"{'+'.join(map(str, terms))}={sum(terms)}")
        carry = sum(terms) // 10
    return f"{left}+{right}:", f" {', '.join(steps)}. {left + right}"


def number(draw: random.Random) -> int:
    """As many of one digit as of two and of three."""
    return draw.randrange(10 ** draw.randint(1, 3))


def tokenizer() -> Tokenizer:
    """One token for each character, and ``<s>`` before a prompt."""
    vocabulary = {text: number for number, text in enumerate([*SPECIAL, *LETTERS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[0]))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    made.add_special_tokens(SPECIAL)
    return made


def encoded(letters: Tokenizer, pair: tuple[int, int]) -> tuple[list[int], list[int]]:
    """The tokens of a sum's prompt, and those of its answer, with the one that ends it."""
    prompt, answer = worked(*pair)
    return letters.encode(prompt).ids, [*letters.encode(answer, add_special_tokens=False).ids, END]


def batch(letters: Tokenizer, draw: random.Random, held_out: set[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and what is to follow each; -100 where that is no part of an answer."""
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    wanted = torch.full((BATCH, LENGTH), -100)
    for row in range(BATCH):
        pair = number(draw), number(draw)
        while pair in held_out:
            pair = number(draw), number(draw)
        prompt, answer = encoded(letters, pair)
        text = prompt + answer
        tokens[row, : len(text)] = torch.tensor(text)
        wanted[row, len(prompt) - 1 : len(text) - 1] = torch.tensor(answer)
    return tokens, wanted


def train(letters: Tokenizer, held_out: set[tuple[int, int]]) -> LlamaForCausalLM:
    """A model that has seen STEPS batches."""
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(LETTERS),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=BEGIN,
        eos_token_id=END,
    )
    model, draw = LlamaForCausalLM(config), random.Random(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS)
    for step in range(STEPS):
        tokens, wanted = batch(letters, draw, held_out)
        loss = cross_entropy(model(tokens).logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"{step:5} {loss.item():.4f}", flush=True)
    return model.eval()


def right(model: LlamaForCausalLM, letters: Tokenizer, pair: tuple[int, int]) -> bool:
    """Whether the model's text is the one that is wanted."""
    prompt, answer = encoded(letters, pair)
    found = model.generate(torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False, pad_token_id=END)
    text: list[int] = found[0, len(prompt) :].tolist()
    return text == answer


def main(folder: Path) -> None:
    """Write config.json, model.safetensors and tokenizer.json."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    draw = random.Random(8)
    held_out = {(number(draw), number(draw)) for _ in range(1000)}
    letters = tokenizer()
    model = train(letters, held_out).to(torch.bfloat16)
    model.save_pretrained(folder)
    letters.save(str(folder / "tokenizer.json"))
    exact = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = [right(exact, letters, pair) for pair in sorted(held_out)]
    print(f"{sum(found)} of {len(found)} sums that were held out are right")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKPOINT)
