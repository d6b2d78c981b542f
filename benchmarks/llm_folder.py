"""A decoder with random weights and a tokenizer that gives all of its tokens a text, and a repository around it."""

import json
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from executor_speed import SCALE, SIZES
from repoagent_llm.builder import Form, Precision, build
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from examples.executor.synthetic import synthetic_checkpoint


def _tokenizer(size: int) -> Any:
    """Byte-level BPE: bytes, then two and three letters, then the same with a space before them, until there are
    ``size`` tokens."""
    names = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    letters = ascii_lowercase
    merges = [
        *product(letters, letters),
        *(("".join(pair), letter) for pair in product(letters, letters) for letter in letters),
        *(("Ġ", letter) for letter in letters),
        *((f"Ġ{letter}", "".join(pair)) for letter in letters for pair in product(letters, letters)),
    ][: size - len(names)]
    vocabulary = {name: number for number, name in enumerate([*names, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def make_checkpoint(folder: Path, size: str) -> Path:
    """A checkpoint as Hugging Face's, of one of executor_speed.py's sizes."""
    shape = SIZES[size]
    synthetic_checkpoint(folder, scale=SCALE, **shape)
    _tokenizer(shape["vocab_size"]).save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


def make_repository(
    root: Path, checkpoint: Path, parameters: dict[str, str], precision: str = "fp32", form: Form = Form.GQA
) -> Path:
    """The model ``m`` in ``root/models``; its decoder folder."""
    folder = build(checkpoint, root / "models" / "m" / "1", form=form, precision=Precision(precision))
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in parameters.items()]
    (root / "models" / "m" / "config.pbtxt").write_text("\n".join(['backend: "llm"', *lines]))
    return folder


def prompts(checkpoint: Path, lengths: list[int]) -> list[tuple[str, list[int]]]:
    """Texts of about so many tokens, with their tokens; the same ones every time."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    source = np.random.default_rng(2)
    found = []
    for length in lengths:
        words = ["".join(map(chr, source.integers(97, 123, 3))) for _ in range(length)]
        text = " ".join(words)
        tokens = tokenizer.encode(text).ids[:length]
        text = tokenizer.decode(tokens)
        found.append((text, tokenizer.encode(text).ids))
    return found
