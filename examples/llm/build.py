"""Makes the model that ``repository/nonsense`` configures: a small Llama with random weights, and a tokenizer of bytes.

What it says makes no sense. To serve a real one put its decoder folder, with its tokenizer.json, into a version
directory: ``repoagent.executor.builder.build(checkpoint, folder)`` makes one of a checkpoint in safetensors.
"""

import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from repoagent.executor.builder import build
from repoagent.executor.builder.synthetic import synthetic_checkpoint

REPOSITORY = Path(__file__).parent / "repository"


def tokenizer() -> Tokenizer:
    """One token for each byte, and three special ones."""
    special = ["<unk>", "<s>", "</s>"]
    names = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    return made


def main(repository: Path) -> None:
    """Write version 1 of the model."""
    version = repository / "nonsense" / "1"
    with tempfile.TemporaryDirectory() as place:
        bytes_of_text = tokenizer()
        checkpoint = synthetic_checkpoint(Path(place), vocab_size=bytes_of_text.get_vocab_size())
        bytes_of_text.save(str(checkpoint / "tokenizer.json"))
        build(checkpoint, version)
    print(f"wrote {version}: {', '.join(sorted(path.name for path in version.iterdir()))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY)
