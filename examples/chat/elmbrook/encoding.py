"""Tokens: the vocabulary of the text, and conversations as the chat template writes them."""

import random
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from elmbrook.conversations import Turn, training_text

__all__ = ["BEGIN", "END", "NOTHING", "SKIP", "SPECIAL", "TEMPLATE", "VOCABULARY", "encoded", "tokenizer"]

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NOTHING, BEGIN, END = range(3)
VOCABULARY: Final = 2048
TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SKIP: Final = -100
_TEXTS: Final = 20_000


def tokenizer() -> Any:
    """Byte-level BPE over the text that the model learns."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    draw = random.Random(16)
    texts = (text for _ in range(_TEXTS) for turn in training_text(draw) for text in turn)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["user\n", "assistant\n", "system\n", *texts], trainer)
    return made


def encoded(words: Any, turns: list[Turn], system: str) -> tuple[list[int], list[int]]:
    """The tokens of a conversation, and what is to follow each of them; ``SKIP`` where the user writes."""
    if not turns[0][0]:
        tokens = [*words.encode(turns[0][1]).ids, NOTHING]
        return tokens[:-1], tokens[1:]
    tokens, learned = [], list[bool]()

    def add(text: list[int], learn: bool) -> None:
        tokens.extend(text)
        learned.extend([learn] * len(text))

    line = words.encode("\n").ids
    if system:
        add([BEGIN, *words.encode(f"system\n{system}").ids, END, *line], False)
    for wish, answer in turns:
        add([BEGIN, *words.encode(f"user\n{wish}").ids, END, *line, BEGIN, *words.encode("assistant\n").ids], False)
        add([*words.encode(answer).ids, END], True)
        add(line, False)
    wanted = [token if learn else SKIP for token, learn in zip(tokens, learned, strict=True)]
    return tokens[:-1], wanted[1:]
