"""A small language model with random weights, and tokenizers made by code. Its texts are any bytes at all."""

from pathlib import Path
from typing import Any

from repoagent_llm.builder import build
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from examples.executor.synthetic import synthetic_checkpoint

SPECIAL = ["<unk>", "<s>", "</s>"]


def byte_level() -> Any:
    """One token for each byte, and some for pairs of them: characters are cut, as by GPT-2's tokenizer and its kin."""
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("h", "e"), ("Ġ", "w"), ("l", "l")]
    vocabulary = {name: number for number, name in enumerate([*names, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def byte_fallback() -> Any:
    """Letters, words that begin with a space, and bytes for everything else, as Llama 2's tokenizer."""
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *map(chr, range(33, 127)), "▁", "▁a", "▁b"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: number for number, name in enumerate(names)},
            merges=[("▁", "a"), ("▁", "b")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def write_decoder(folder: Path, tokenizer: Any, *, lora: bool = False, **shape: Any) -> Path:
    """A decoder folder with ``tokenizer`` in it."""
    checkpoint = folder.parent / f"{folder.name}-checkpoint"
    # Some tokens more than the tokenizer has, as models are often filled up to a round number.
    synthetic_checkpoint(checkpoint, vocab_size=tokenizer.get_vocab_size() + 5, **shape)
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    return build(checkpoint, folder, lora=lora)
